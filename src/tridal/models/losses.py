"""The loss of causal language models of transformers, computed by tridal from logits or from the head's input."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from tridal.library.losses.functions import cross_entropy, linear_cross_entropy
from tridal.models.replacements import Replacement, torch_computes
from tridal.pytorch.torch import private

Tensor = torch.Tensor


def causal_lm_loss(
    theirs: Callable[..., Tensor], logits: Tensor, labels: Any, vocab_size: int, **options: Any
) -> Tensor:
    """Returns the loss of transformers' ForCausalLMLoss in float32, without a copy of the logits in float32.

    `theirs` is transformers' function, which computes calls on devices without a backend. The other arguments are those
    of this function.
    """
    if torch_computes(logits.device):
        return theirs(logits=logits, labels=labels, vocab_size=vocab_size, **options)
    logits = logits.float() if logits.dtype is torch.float64 else logits
    return _shifted_loss(functools.partial(cross_entropy, logits.view(-1, vocab_size)), logits, labels, **options)


def _shifted_loss(
    compute: Callable[..., Any],
    tensor: Tensor,
    labels: Any,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """Returns the loss in float32. `compute` takes the labels, and `tensor` is its argument.

    Position i has the label of position i + 1, unless there are `shift_labels`. `num_items_in_batch` divides the sum of
    the losses. By default, this is the number of labels that are not ignored. transformers' function ignores others.
    """
    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.contiguous().to(tensor.device).view(-1)
    kind = tensor.device.type
    scope: Any = nullcontext()
    if tensor.dtype.itemsize <= 2 and not private.autocast_enabled(kind):
        scope = torch.autocast(kind, tensor.dtype)  # the loss is float32 in it, and 16-bit tensors are not cast
    with scope:
        reduction = "mean" if num_items_in_batch is None else "sum"
        loss: Tensor = compute(target, ignore_index=ignore_index, reduction=reduction).float()
    if num_items_in_batch is None:
        return loss
    return loss / (num_items_in_batch.to(loss.device) if isinstance(num_items_in_batch, Tensor) else num_items_in_batch)


class Request:
    """A request for a fused loss, which a call of the head computes."""

    loss: Any = None
    """The loss, expanded to one element for each position."""

    def __init__(self, softcap: float | None, labels: Tensor, options: dict[str, Any]) -> None:
        self.softcap, self.labels, self.options = softcap, labels, options

    def compute(self, head: Any, hidden: Tensor) -> Tensor:
        """Returns the loss as the output of the head. It has the dims of logits, because hooks may redistribute it."""
        # Sums in the weight's 16 bits halve the peak memory of the loss.
        compute = functools.partial(
            linear_cross_entropy, hidden.flatten(0, -2), head.weight, linear_bias=head.bias, softcap=self.softcap,
            accum_dtype=head.weight.dtype if head.weight.dtype.itemsize == 2 else None,
        )  # fmt: skip
        loss = _shifted_loss(compute, hidden, self.labels, **self.options)
        self.loss = loss.expand(*hidden.shape[:-1], 1).clone()  # FSDP cannot see an in-place change of a view
        return self.loss  # type: ignore[no-any-return]


class Head(Replacement):
    """The forward of the last linear layer. It returns a loss instead of logits for a call that has a request."""

    def forward(self: Any, input: Tensor, request: Request | None = None) -> Tensor:
        """Returns the logits, or the loss, which is computed here, because FSDP gathers the weight for this forward."""
        return super().forward(input) if request is None else request.compute(self, input)  # type: ignore[misc]
