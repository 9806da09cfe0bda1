"""The loss of causal language models of transformers, computed by tridal: from logits, or from the head's input."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from tridal.library.losses.functions import cross_entropy
from tridal.library.losses.linear_functions import linear_cross_entropy
from tridal.models.replacements import Replacement, torch_computes
from tridal.pytorch.device_context import log
from tridal.pytorch.torch import private

Tensor = torch.Tensor
DEFAULTS = {"labels": None, "shift_labels": None, "num_items_in_batch": None, "ignore_index": -100}
"""The arguments of a model that the loss depends on."""


def causal_lm_loss(
    theirs: Callable[..., Tensor],
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """Computes the loss of transformers' ForCausalLMLoss in float32, without a copy of the logits in float32.

    Args:
        theirs: transformers' function, which computes calls on devices without a backend.
        logits: shape (..., vocab_size).
        labels: shape (...). Position i has the label of position i + 1. Not used if `shift_labels` is given.
        num_items_in_batch: divides the sum of the losses. By default, the number of labels that are not ignored.
        ignore_index, shift_labels: the ignored label, and labels that have been shifted already.
        **kwargs: are ignored, as by transformers' function.
    """
    if torch_computes(logits.device):
        return theirs(
            logits=logits, labels=labels, vocab_size=vocab_size, num_items_in_batch=num_items_in_batch,
            ignore_index=ignore_index, shift_labels=shift_labels, **kwargs,
        )  # fmt: skip
    logits = logits.float() if logits.dtype is torch.float64 else logits
    compute = functools.partial(cross_entropy, logits.view(-1, vocab_size))
    return _shifted_loss(compute, logits, labels, shift_labels, num_items_in_batch, ignore_index)


def _shifted_loss(
    compute: Callable[..., Any], tensor: Tensor, labels: Tensor | None, shift_labels: Tensor | None,
    num_items_in_batch: Any, ignore_index: int,
) -> Tensor:  # fmt: skip
    """Returns the loss of shifted labels in float32. `compute` takes the labels, and `tensor` is its argument."""
    if shift_labels is None:
        assert labels is not None
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.contiguous().to(tensor.device).view(-1)
    kind = tensor.device.type
    scope: Any = nullcontext()
    if tensor.dtype.itemsize <= 2 and not private.autocast_enabled(kind):
        scope = torch.autocast(kind, tensor.dtype)  # the loss is float32 in it, and 16-bit tensors are not cast
    with scope:
        reduction = "mean" if num_items_in_batch is None else "sum"
        loss: Tensor = compute(target, ignore_index=ignore_index, reduction=reduction)
    if num_items_in_batch is None:
        return loss
    return loss / (num_items_in_batch.to(loss.device) if isinstance(num_items_in_batch, Tensor) else num_items_in_batch)


@dataclass(frozen=True)
class HeadForm:
    """The head of a language model, whose loss is computed from the head's input."""

    softcap: float | None


class Head(Replacement):
    """The forward of the last linear layer. While a model asks for a loss, it computes the loss instead of logits."""

    _tridal_request: dict[str, Any] | None = None
    """The arguments of the loss in `DEFAULTS`, while the model computes a fused loss."""
    _tridal_loss: Tensor | None = None
    """The loss as a tensor of shape (..., 1), which stands for the logits."""

    def forward(self: Any, input: Tensor) -> Tensor:
        """Returns the logits, or the loss expanded to the shape (..., 1)."""
        request, form = self._tridal_request, self._tridal_form
        if request is None or form is None or torch_computes(input.device):
            return super().forward(input)  # type: ignore[misc, no-any-return]
        # The loss is computed here, because FSDP gathers the weight only for this forward.
        # Sums in the weight's 16 bits halve the peak memory of the loss.
        compute = functools.partial(
            linear_cross_entropy, input.flatten(0, -2), self.weight, linear_bias=self.bias, softcap=form.softcap,
            accum_dtype=self.weight.dtype if self.weight.dtype.itemsize == 2 else None,
        )  # fmt: skip
        loss = _shifted_loss(compute, input, **request)
        self._tridal_loss = found = loss.expand(*input.shape[:-1], 1)
        return found


@dataclass(frozen=True)
class CausalLMForm:
    """A causal language model. `head` is the name of the head whose loss is fused, or None."""

    head: str | None = None


class CausalLM(Replacement):
    """The loss of a causal language model of transformers, and its forward for a fused loss."""

    inherited_properties = ("loss_function",)

    @property
    def loss_function(self: Any) -> Any:
        """The function that the model's forward calls with logits and labels."""
        theirs = self._inherited_loss_function()
        form = self._tridal_form
        if form is None or "_loss_function" in self.__dict__:
            return theirs
        head = self._modules.get(form.head)
        if getattr(head, "_tridal_loss", None) is not None:
            return functools.partial(_loss_of, head)
        if torch.compiler.is_dynamo_compiling():
            return theirs  # a compiler fuses it, and gets the same graphs as without this replacement
        return functools.partial(causal_lm_loss, theirs)

    @loss_function.setter
    def loss_function(self, value: Any) -> None:
        self._loss_function = value

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs of the model. If the loss is fused, they have no logits."""
        name = None if self._tridal_form is None else self._tridal_form.head
        if name is None or not self.training or not _asks_for_loss_only(self, kwargs):
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        head: Any = self._modules.get(name)
        if not isinstance(head, Head) or _reads_logits(head):
            if not torch.compiler.is_dynamo_compiling():
                _log_unfused(type(self).__name__, name, isinstance(head, Head))
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        given = {name: kwargs[name] for name in DEFAULTS if kwargs.get(name) is not None}
        head._tridal_request = {**DEFAULTS, **given}
        try:
            outputs = super().forward(*args, **kwargs)  # type: ignore[misc]
            fused = head._tridal_loss is not None
        finally:
            head._tridal_request = head._tridal_loss = None
        return type(outputs)(**{k: v for k, v in outputs.items() if k != "logits"}) if fused else outputs


def _reads_logits(head: Any) -> bool:
    """Returns whether a hook reads or changes what the head computes. The hooks of FSDP do not."""
    hooks = (*head._forward_hooks.values(), *head._forward_pre_hooks.values())
    return not all((getattr(hook, "__module__", None) or "").startswith("torch.distributed.") for hook in hooks)


@functools.cache
def _log_unfused(model: str, head: str, has_hooks: bool) -> None:
    """Logs once that a loss is not fused any more, because the program has changed the head."""
    why = "has hooks, which read logits" if has_hooks else "is another module than when the model was kernelized"
    log.warning(
        "the loss of %s is not fused: %s %s. To fuse it again: tridal.models.restore(model), then "
        "tridal.kernelize(model, fused_loss=True)", model, head, why,
    )  # fmt: skip


def _loss_of(head: Head, *args: Any, **kwargs: Any) -> Tensor:
    """Returns the loss that the head has computed."""
    assert head._tridal_loss is not None
    return head._tridal_loss.flatten()[0]


def _asks_for_loss_only(model: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether a call of a model has labels, and returns a dictionary, from which logits can be left out."""
    logits_to_keep = kwargs.get("logits_to_keep", 0)
    return_dict = kwargs.get("return_dict")
    if return_dict is None:
        return_dict = getattr(model.config, "return_dict", True)
    has_labels = kwargs.get("labels") is not None
    return has_labels and bool(return_dict) and isinstance(logits_to_keep, int) and logits_to_keep == 0
