"""Finds the modules of a model that tridal may compute, and decides how each is replaced, or why it is not."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

import torch

from tridal.models import loss_comparison, norm_comparison, norm_identity
from tridal.models.losses import CausalLM, CausalLMForm, Head
from tridal.models.replacements import Function, Norm, Replacement
from tridal.pytorch import loss_modules, nn, norm_modules

NORM = re.compile(r"(rms|layer|l2)_?norm", re.IGNORECASE)
"""A name of a class that may be a norm. The comparison decides whether it is one."""
FUNCTIONS = {torch.nn.Softmax: nn.Softmax, torch.nn.LogSoftmax: nn.LogSoftmax}
OURS = (
    nn.Softmax, nn.LogSoftmax, norm_modules.RMSNorm, norm_modules.LayerNorm, loss_modules.CrossEntropyLoss,
    loss_modules.LinearCrossEntropyLoss,
)  # fmt: skip
LOSS = "ForCausalLMLoss"
"""The name of transformers' function for the loss of causal language models."""
LOSS_TYPES = ("ForCausalLM", "ForConditionalGeneration")
"""transformers' names of the models that have this loss."""


@dataclass(frozen=True)
class Decision:
    """How a module is replaced, or why it is left unchanged."""

    kind: type[Replacement] | None = None
    form: Any = None
    by: str | None = None
    """The function of tridal, for the report."""
    reason: str | None = None


def decide(module: torch.nn.Module) -> Decision | None:
    """Returns the decision for a module, without the loss of a model. Returns None if the module is no candidate."""
    function = next((kind for kind in FUNCTIONS if isinstance(module, kind)), None)
    if not _may_be_norm(module) and function is None:
        return None
    reason = _why_not(module)
    if reason is not None:
        return Decision(reason=reason)
    if function is not None:
        if type(module).forward is not function.forward:
            return Decision(reason=f"it has its own forward, which is not that of torch.nn.{function.__name__}")
        name = "softmax" if function is torch.nn.Softmax else "log_softmax"
        return Decision(Function, FUNCTIONS[function], f"tridal.{name}")
    found = norm_comparison.find_form(module, norm_identity.device_of(module))
    if found.form is None:
        return Decision(reason=found.reason)
    return Decision(Norm, found.form, str(found.form), norm_comparison.describe(found, module))


def decide_loss(model: Any, head: torch.nn.Module | None, fused: bool) -> list[tuple[torch.nn.Module, Decision]]:
    """Returns decisions for the loss of a model, and for its head if the loss is fused. Returns [] for other modules.

    `head` is the linear layer that computes the logits, or None if it must not be replaced.
    """
    if not isinstance(getattr(type(model), "loss_function", None), property):
        return []
    if "loss_function" not in inspect.unwrap(type(model).forward).__code__.co_names:
        reason = "loss: it computes its loss in its own forward, not with transformers' loss_function"
        return [(model, Decision(reason=reason))] if getattr(model, "loss_type", None) in LOSS_TYPES else []
    theirs = model.loss_function
    if getattr(theirs, "__name__", "") != LOSS:
        return []
    different = _why_not(model) or loss_comparison.difference(theirs)
    if different is not None:
        return [(model, Decision(reason=f"loss: {different}"))]
    plain = (model, Decision(CausalLM, CausalLMForm(), "tridal.cross_entropy for the loss"))
    if not fused:
        return [plain]
    found = loss_comparison.find_fused(model, head)
    if isinstance(found, str):
        return [(model, Decision(CausalLM, CausalLMForm(), plain[1].by, f"the loss is not fused: {found}"))]
    name, form = found
    by = "tridal.linear_cross_entropy for the loss in training" + (f", softcap={form.softcap}" if form.softcap else "")
    assert head is not None
    return [(model, Decision(CausalLM, CausalLMForm(name), by)), (head, Decision(Head, form, "the fused loss"))]


def _may_be_norm(module: torch.nn.Module) -> bool:
    if module._modules or isinstance(module, Replacement):
        return False
    return isinstance(module, (torch.nn.LayerNorm, torch.nn.RMSNorm)) or bool(NORM.search(type(module).__name__))


def _why_not(module: torch.nn.Module) -> str | None:
    """Returns why no module of this kind can be replaced, or None."""
    if isinstance(module, OURS):
        return "it is a module of tridal"
    if isinstance(module, torch.jit.ScriptModule):
        return "TorchScript has compiled it, and only modules of Python can be replaced"
    if "forward" in module.__dict__:
        owner = getattr(module.__dict__["forward"], "__module__", None) or type(module.__dict__["forward"]).__module__
        return f"another package ({owner}) has replaced its forward"
    return None
