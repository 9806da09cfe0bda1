"""Finds the modules of a model that tridal could replace, and decides how each is replaced, or why it is not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tridal.library.losses import modules as loss_modules
from tridal.library.norms import modules as norm_modules
from tridal.library.softmax import modules as softmax_modules
from tridal.models import (
    activations,
    glu,
    loss_comparison,
    modulations,
    norm_comparison,
    rotary,
    rotary_processors,
    router_comparison,
    routers,
)
from tridal.models.causal_lm import CausalLM, CausalLMForm
from tridal.models.losses import Head
from tridal.models.reads import names_in, own_forward
from tridal.models.replacements import Layer, Replacement, class_name, origin

OURS = (
    softmax_modules.Softmax, softmax_modules.LogSoftmax, norm_modules.RMSNorm, norm_modules.LayerNorm,
    loss_modules.CrossEntropyLoss, loss_modules.LinearCrossEntropyLoss,
)  # fmt: skip
NORM = re.compile(r"(rms|layer|l2)_?norm", re.IGNORECASE)
"""A name of a class that may be a norm. The comparison decides whether it is one."""
LOSS = "ForCausalLMLoss"
"""The name of transformers' function for the loss of causal language models."""
COMPILED = "compiled functions leave it to the compiler"
"""The reason where a compiler fuses a module's operations with others, which is faster. See docs/models.md."""


class Family(NamedTuple):
    """Modules that tridal could replace in the same way."""

    matches: Callable[[Any], bool]
    find_form: Callable[[Any], Any]
    """The form that a module computes, or why there is none, or None if the module is no candidate."""
    replacement: type[Replacement] = Layer


def _may_be_norm(module: torch.nn.Module) -> bool:
    """Whether a module is a norm of torch, or its class has the name of a norm."""
    if isinstance(module, (torch.nn.LayerNorm, torch.nn.RMSNorm)):
        return True
    name = class_name(module)
    return bool(NORM.search(name)) and (not module._modules or name.lower().endswith("norm"))


_NORMS = Family(_may_be_norm, norm_comparison.find_form)
FAMILIES = (
    Family(modulations.has_modulation, modulations.find_form, modulations.Modulated),
    Family(activations.may_be_activation, activations.find_form),
    Family(glu.may_be_glu, glu.find_form),
    Family(lambda module: rotary.function_name(module) is not None, rotary.find_form, rotary.Attention),
    Family(
        lambda m: rotary_processors.function_name(m) is not None,
        rotary_processors.find_form,
        rotary_processors.Processed,
    ),
    Family(glu.may_be_experts, glu.find_form_of_experts, glu.Experts),
    Family(activations.is_softmax, activations.find_softmax),
    Family(routers.may_be_router, router_comparison.find_form),
    _NORMS,
)
"""A module belongs to the first family that it matches."""


@dataclass(frozen=True)
class Decision:
    """How a module is replaced, or why it is left unchanged."""

    kind: type[Replacement] | None = None
    form: Any = None
    by: str | None = None
    """The function of tridal, for the report."""
    reason: str | None = None


def may_be_replaced(module: torch.nn.Module) -> bool:
    """Whether a module is a candidate. Only a comparison shows whether an activation calls one function of torch."""
    family = _family_of(module)
    if family is not None and family.find_form is activations.find_form:
        return family.find_form(module) is not None
    return family is not None or _has_loss(module)


def decide(module: torch.nn.Module) -> Decision | None:
    """Decides how to replace a module, apart from the loss of a model. Returns None if the module is no candidate."""
    family = None if isinstance(module, Replacement) else _family_of(module)
    found = None if family is None else _why_not(module) or family.find_form(module)
    if family is None or found is None:
        return None
    if isinstance(found, str):
        return Decision(reason=found)
    reasons = COMPILED if found.compiler_is_faster else None, found.describe(module)
    return Decision(family.replacement, found, str(found), "; ".join(filter(None, reasons)) or None)


def _family_of(module: torch.nn.Module) -> Family | None:
    if isinstance(module, torch.jit.ScriptModule):  # `_why_not` refuses it
        return _NORMS if class_name(module) in ("Softmax", "LogSoftmax") or _may_be_norm(module) else None
    return next((family for family in FAMILIES if family.matches(module)), None)


def decide_loss(model: Any, head: torch.nn.Module | None, fused: bool) -> list[tuple[torch.nn.Module, Decision]]:
    """Returns decisions for the loss of a model, and for its head if the loss is fused. Returns [] for other modules.

    `head` is the linear layer that computes the logits, or None if it must not be replaced.
    """
    if not _has_loss(model):
        return []
    if (reason := _why_not_loss(model)) is not None:
        return [(model, Decision(reason=f"loss: {reason}"))]
    loss, by = model.loss_function, "tridal.cross_entropy for the loss"
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
    return _why_not(model) or loss_comparison.find_difference(model.loss_function)


def _has_loss(model: Any) -> bool:
    if not isinstance(getattr(type(model), "loss_function", None), property):
        return False
    return _calls_loss_function(model) or "labels" in inspect.signature(type(model).forward).parameters


def _calls_loss_function(model: Any) -> bool:
    return "loss_function" in names_in(own_forward(model))


def _why_not(module: torch.nn.Module) -> str | None:
    if isinstance(module, OURS):
        return "it is a module of tridal"
    if isinstance(module, torch.jit.ScriptModule):
        return "TorchScript has compiled it, and tridal replaces only Python modules"
    if "forward" in module.__dict__:
        found = origin(module.__dict__["forward"])
        return f"another package has replaced its forward by {found}; call kernelize before that package"
    return None
