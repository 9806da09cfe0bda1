"""Replaces the loss of a causal language model of transformers. A fused loss needs no logits.

For a fused loss, the forward of the model's class gets a `FusedCall` as `self`. In it, the head returns
`UnreadLogits`, and the loss function calls the head module for the loss of them. Only code that has this `self` meets
them. Other uses of the head, such as those of hooks and other threads, give logits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch

from tridal.models.losses import Head, Request, causal_lm_loss
from tridal.models.replacements import COMPARING, Replacement, hooks_of, is_traced, origin, torch_computes
from tridal.models.unread_logits import UnreadLogits
from tridal.pytorch.device_context import log

Tensor = torch.Tensor
_LINEAR = torch.nn.Linear.forward


@dataclass(frozen=True)
class CausalLMForm:
    """A causal language model. `head` is the name of the head whose loss is fused, or None."""

    loss: Callable[..., Tensor]
    """The loss function of transformers, which computes the same as tridal's."""
    head: str | None = None
    compiled: bool = True
    """Whether compiled functions fuse the loss, too. torch.compile cannot trace `super()` in a `FusedCall`."""
    logged: set[str] = field(default_factory=set, compare=False)
    """Why calls were not fused, for one message each. Copies of the model for several devices share it."""

    def log(self, model: str, reason: str) -> None:
        """Logs why the loss is not fused."""
        if reason not in self.logged:
            self.logged.add(reason)
            log.warning("the loss of %s is not fused: %s", model, reason)


class FusedCall:
    """The `self` of a model's forward in one call. Its attributes are those of the model, except head and loss."""

    # torch.compile reads the attributes of an object whose constructor has not run.
    _tridal_model: Any = None
    _tridal_head: Any = None
    _tridal_name = ""
    _tridal_fused = False
    """Whether a call of the loss function was fused."""

    def __init__(self, model: Any, name: str, head: Any) -> None:
        for own, value in (("model", model), ("head", head), ("name", name)):
            object.__setattr__(self, f"_tridal_{own}", value)

    def __getattr__(self, name: str) -> Any:
        if name == self._tridal_name:
            return _HeadOfCall(self._tridal_head)
        return getattr(self._tridal_model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._tridal_model, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the model, which `super()` and isinstance ask for."""
        return FusedCall if self._tridal_model is None else type(self._tridal_model)

    def loss_function(self, logits: Any, labels: Any, vocab_size: int, **kwargs: Any) -> Tensor:
        """Returns the loss. It is fused for logits that nothing else has read or changed."""
        head = self._tridal_head
        softcap = logits.softcap() if isinstance(logits, UnreadLogits) and not logits.is_read() else 0.0
        if softcap == 0.0 or vocab_size != head.out_features:
            logits = logits.read() if isinstance(logits, UnreadLogits) else logits
            return self._tridal_model.loss_function(logits=logits, labels=labels, vocab_size=vocab_size, **kwargs)  # type: ignore[no-any-return]
        request = Request(softcap, labels, kwargs)
        head(logits.hidden, request=request)
        object.__setattr__(self, "_tridal_fused", True)
        return request.loss.flatten()[0].clone()  # type: ignore[no-any-return]

    def complete(self, outputs: Any) -> Any:
        """Returns the outputs of the model with the logits, or without them if only a fused loss took them."""
        logits = outputs.get("logits")
        if not isinstance(logits, UnreadLogits):
            return outputs
        if logits.is_read() or not self._tridal_fused:
            return type(outputs)(**{**outputs, "logits": logits.read()})
        return type(outputs)(**{name: value for name, value in outputs.items() if name != "logits"})


class _HeadOfCall:
    """The head in a fused call: it returns logits that are not computed yet. Its attributes are those of the head."""

    _head: Any = None

    def __init__(self, head: Any) -> None:
        self._head = head

    def __call__(self, input: Tensor) -> Any:
        return self._head(input) if torch_computes(input.device) else UnreadLogits(input, self._head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)


class CausalLM(Replacement):
    """The loss of a causal language model of transformers, and its forward for a fused loss."""

    inherited_properties = ("loss_function",)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "forward" and getattr(self._tridal_form, "head", None) is not None:
            by = origin(value)
            if not by.startswith(("accelerate.", "torch.", "tridal.")):  # they call the forward that they wrap
                self._tridal_form.log(type(self).__name__, f"{by} {REPLACED}")

    @property
    def loss_function(self: Any) -> Any:
        """The function that the model's forward calls with logits and labels."""
        theirs, form = self._tridal_theirs(), self._tridal_form
        if form is None or torch.compiler.is_dynamo_compiling() or form.loss is not theirs:
            return theirs  # a compiler fuses it, and gets the graphs of the class
        return functools.partial(causal_lm_loss, theirs)

    @loss_function.setter
    def loss_function(self, value: Any) -> None:
        self._loss_function = value

    def _tridal_theirs(self: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return self._inherited_loss_function()
        return super().loss_function  # type: ignore[misc]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs of the model. If the loss is fused, they have no logits."""
        form = self._tridal_form
        compiling = torch.compiler.is_dynamo_compiling()
        if form is None or form.head is None or (compiling and not form.compiled) or is_traced():
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        if not self.training or not _returns_dict(self, kwargs):
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        head: Any = self._modules.get(form.head)
        reason = NO_LABELS if kwargs.get("labels") is None else _why_not_fused(self, form, head)
        if reason is None:
            call = FusedCall(self, form.head, head)
            outputs = call.complete(self._tridal_base.forward(call, *args, **kwargs))
            reason = None if call._tridal_fused else "its forward reads or changes the logits"
        else:
            outputs = super().forward(*args, **kwargs)  # type: ignore[misc]
        if reason is not None and not (compiling or get_ident() in COMPARING) and torch.is_grad_enabled():
            devices = {value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor)}
            if not any(map(torch_computes, devices)):  # the report says that no backend serves a device
                form.log(type(self).__name__, reason)
        return outputs


REPLACED = (
    "has replaced the forward of the model. Only calls that it passes to the model's own forward are fused. If it "
    "computes the loss itself, call kernelize without fused_loss. See docs/trainers.md"
)
NO_LABELS = (
    "the model is called in training without the keyword argument `labels`. Pass the labels to the model. A trainer "
    "that computes the loss itself, for example with label_smoothing_factor, needs the logits. See docs/trainers.md"
)
AGAIN = "To fuse it again: tridal.models.restore(model), then tridal.kernelize(model, fused_loss=True)"


def _why_not_fused(model: Any, form: CausalLMForm, head: Any) -> str | None:
    changed = None
    if not isinstance(head, Head):
        changed = form.head
    elif any(not _moves_tensors(hook) for hook in hooks_of(head)):
        return f"hooks run in calls of {form.head}, and may read logits. Without them, the loss is fused"
    elif torch.nn.Linear.forward is not _LINEAR or _has_other_forward(head):
        changed = f"the forward of {form.head}"
    elif form.loss is not model._tridal_theirs():
        changed = "its loss function"
    elif model._tridal_base.forward is not model._tridal_forward:
        changed = "the forward of its class"
    return None if changed is None else f"{changed} has changed since the model was kernelized. {AGAIN}"


def _moves_tensors(hook: Any) -> bool:
    """Returns whether a hook neither reads nor changes the numbers that the head computes, such as those of FSDP."""
    return (getattr(hook, "__module__", None) or "").startswith("torch.distributed.")


def _has_other_forward(head: Any) -> bool:
    """Returns whether a program has replaced the forward of a head. That of accelerate calls the head's own."""
    if "forward" not in head.__dict__:
        return False
    return torch.compiler.is_dynamo_compiling() or not origin(head.__dict__["forward"]).startswith("accelerate.")


def _returns_dict(model: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether a call of a model returns all logits in a dictionary, from which they can be left out."""
    logits_to_keep = kwargs.get("logits_to_keep", 0)
    return_dict = kwargs.get("return_dict")
    if return_dict is None:
        return_dict = getattr(model.config, "return_dict", True)
    return bool(return_dict) and isinstance(logits_to_keep, int) and logits_to_keep == 0
