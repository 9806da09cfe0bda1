"""Finds the modules of a model that tridal may compute, and decides how each is replaced, or why it is not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tridal.library.losses import modules as loss_modules
from tridal.library.norms import modules as norm_modules
from tridal.library.softmax import modules as nn
from tridal.models import activations, glu, loss_comparison, norms, rotary
from tridal.models.causal_lm import CausalLM, CausalLMForm, LossFunction
from tridal.models.losses import Head
from tridal.models.reads import names_in, own_forward
from tridal.models.replacements import Function, Layer, Replacement, origin

NORM = re.compile(r"(rms|layer|l2)_?norm", re.IGNORECASE)
"""A name of a class that may be a norm. The comparison decides whether it is one."""
FUNCTIONS = {torch.nn.Softmax: nn.Softmax, torch.nn.LogSoftmax: nn.LogSoftmax}
_FORWARD = "torch.nn.modules.activation.forward"
"""The `origin` of their forwards in torch."""
OURS = (
    nn.Softmax, nn.LogSoftmax, norm_modules.RMSNorm, norm_modules.LayerNorm, loss_modules.CrossEntropyLoss,
    loss_modules.LinearCrossEntropyLoss,
)  # fmt: skip
LOSS = "ForCausalLMLoss"
"""The name of transformers' function for the loss of causal language models."""
COMPILED = "compiled functions leave it to the compiler"
"""The reason where a compiler fuses a module's operations with others, which is faster. See docs/models.md."""


@dataclass(frozen=True)
class Decision:
    """How a module is replaced, or why it is left unchanged."""

    kind: type[Replacement] | None = None
    form: Any = None
    by: str | None = None
    """The function of tridal, for the report."""
    reason: str | None = None


def class_name(module: torch.nn.Module) -> str:
    """Returns the name of a module's class. For a module that TorchScript has compiled, it is the original class."""
    name = getattr(module, "original_name", None) if isinstance(module, torch.jit.ScriptModule) else None
    return name or type(module).__name__


def may_be_replaced(module: torch.nn.Module) -> bool:
    """Returns whether a module is a candidate: `decide` or `decide_loss` has a decision for it."""
    find = None if isinstance(module, Replacement) else _kind_of(module)[1]
    is_activation = find is activations.find_form
    return _has_loss(module) or (activations.find_form(module) is not None if is_activation else find is not None)


def decide(module: torch.nn.Module) -> Decision | None:
    """Returns the decision for a module, without the loss of a model. Returns None if the module is no candidate."""
    if isinstance(module, Replacement):
        return None
    replacement, find_form = _kind_of(module)
    if find_form is None:
        return None
    found = _why_not(module) or find_form(module)
    if isinstance(found, str):
        return Decision(reason=found)
    if found is None or isinstance(found, Decision):
        return found
    return Decision(replacement, found, str(found), COMPILED)


def _kind_of(module: torch.nn.Module) -> tuple[type[Replacement], Callable[[Any], Any] | None]:
    """Returns how a module may be replaced, and the function that finds its form. This is None for other modules.

    The function returns a form or a decision, or why there is none, or None if the module is no candidate.
    """
    if isinstance(module, torch.jit.ScriptModule):  # `_why_not` refuses it
        is_function = class_name(module) in {kind.__name__ for kind in FUNCTIONS}
        return Layer, _decide_norm if is_function or _may_be_norm(module) else None
    if activations.NAME.search(type(module).__name__) and not type(module).__module__.startswith("torch."):
        return Layer, activations.find_form  # an activation of torch calls one function of torch already
    if glu.may_be_glu(module):
        return Layer, glu.find_form
    if rotary.function_name(module) is not None:
        return rotary.Attention, rotary.find_form
    if glu.may_be_experts(module):
        return glu.Experts, glu.find_form_of_experts
    if isinstance(module, tuple(FUNCTIONS)):
        return Function, _decide_function
    return Layer, _decide_norm if _may_be_norm(module) else None


def _decide_function(module: torch.nn.Module) -> Decision | str:
    function, ours = next((kind, ours) for kind, ours in FUNCTIONS.items() if isinstance(module, kind))
    if origin(type(module).forward) != _FORWARD:
        return f"it has its own forward, which is not that of torch.nn.{function.__name__}"
    return Decision(Function, ours, "tridal.softmax" if function is torch.nn.Softmax else "tridal.log_softmax")


def _decide_norm(module: torch.nn.Module) -> Decision | str:
    form = norms.find_form(module)
    if isinstance(form, str):
        return form
    reasons = COMPILED if form.compiler_is_faster else None, form.describe(module)
    return Decision(Layer, form, str(form), "; ".join(filter(None, reasons)) or None)


def decide_loss(model: Any, head: torch.nn.Module | None, fused: bool) -> list[tuple[torch.nn.Module, Decision]]:
    """Returns decisions for the loss of a model, and for its head if the loss is fused. Returns [] for other modules.

    `head` is the linear layer that computes the logits, or None if it must not be replaced.
    """
    if not _has_loss(model):
        return []
    if (reason := _why_not_loss(model)) is not None:
        return [(model, Decision(reason=f"loss: {reason}"))]
    loss, by = LossFunction.of(model.loss_function), "tridal.cross_entropy for the loss"
    if not fused:
        return [(model, Decision(CausalLM, CausalLMForm(loss), by, COMPILED))]
    changed = None if head is None else _why_not(head)
    found = loss_comparison.find_fused(model, head) if changed is None else f"the output layer: {changed}"
    if isinstance(found, str):
        return [(model, Decision(CausalLM, CausalLMForm(loss), by, f"the loss is not fused: {found}"))]
    name, softcap = found
    by = "tridal.linear_cross_entropy for the loss in training" + (f", softcap={softcap}" if softcap else "")
    assert head is not None
    is_compiled = "__class__" not in own_forward(model).__code__.co_freevars  # it does not call super()
    fused_loss = Decision(CausalLM, CausalLMForm(loss, name, is_compiled), by, None if is_compiled else COMPILED)
    return [(model, fused_loss), (head, Decision(Head, True, "the fused loss"))]


def _why_not_loss(model: Any) -> str | None:
    if not _calls_loss_function(model):
        return "it computes its loss in its own forward, not with transformers' loss_function"
    if (name := getattr(model.loss_function, "__name__", "a function without a name")) != LOSS:
        return f"its loss_function is {name}, and tridal computes {LOSS}"
    return _why_not(model) or loss_comparison.find_difference(LossFunction.of(model.loss_function))


def _may_be_norm(module: torch.nn.Module) -> bool:
    if isinstance(module, (torch.nn.LayerNorm, torch.nn.RMSNorm)):
        return True
    name = class_name(module)
    return bool(NORM.search(name)) and (not module._modules or name.lower().endswith("norm"))


def _has_loss(model: Any) -> bool:
    """Returns whether a module is a model of transformers that computes a loss."""
    if not isinstance(getattr(type(model), "loss_function", None), property):
        return False
    return _calls_loss_function(model) or "labels" in inspect.signature(type(model).forward).parameters


def _calls_loss_function(model: Any) -> bool:
    return "loss_function" in names_in(own_forward(model))


def _why_not(module: torch.nn.Module) -> str | None:
    """Returns why no module of this kind can be replaced, or None."""
    if isinstance(module, OURS):
        return "it is a module of tridal"
    if isinstance(module, torch.jit.ScriptModule):
        return "TorchScript has compiled it, and only modules of Python can be replaced"
    if "forward" in module.__dict__:
        found = origin(module.__dict__["forward"])
        return f"another package has replaced its forward by {found}; call kernelize before that package"
    return None
