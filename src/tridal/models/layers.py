"""Layers for Hugging Face's package `kernels`, which binds the forward of a layer to a module that has the weights.

Because `kernels` permits layers no constructor and no method but forward, the modules keep what they compute. Their
class computes what tridal does not, and activations and MLPs of a compiled function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tridal.models import activations, glu, norm_comparison
from tridal.models.comparison import isolated
from tridal.models.replacements import FORM, torch_computes
from tridal.pytorch.device_context import log


def _layer(name: str, find: Callable[[Any], Any], gated: bool = False) -> Any:
    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        return _compute(self, find, hidden_states)

    def forward_with_gate(self: Any, hidden_states: torch.Tensor, gate: Any = None) -> torch.Tensor:
        return _compute(self, find, hidden_states, gate)

    of_layer = {"forward": forward_with_gate if gated else forward, "can_torch_compile": True, "has_backward": True}
    return type(name, (torch.nn.Module,), of_layer)


RMSNorm = RMSNormZeroCentered = LayerNorm = Norm = _layer("Norm", norm_comparison.find_form)
RMSNormGated = _layer("RMSNormGated", norm_comparison.find_form, gated=True)
"""The layers have the names of those of transformers, if it has one."""
SwiGLUMLP = GeGLUMLP = _layer("MLP", glu.find_form)
GeLU = NewGELU = FastGELU = _layer("Activation", activations.find_form)


def _compute(module: Any, find: Callable[[Any], Any], *inputs: Any) -> torch.Tensor:
    """Compares the module in its first call, except by a compiler and where no backend serves the device."""
    x = inputs[0]
    if not hasattr(module, FORM):  # a compiler evaluates this again later, unlike `in module.__dict__`
        if torch.compiler.is_compiling() or not isinstance(x, torch.Tensor) or torch_computes(x.device):
            return type(module).forward(module, *inputs)  # type: ignore[no-any-return]
        found = isolated(find, module)
        module.__dict__[FORM] = _report(type(module).__name__, found) if isinstance(found, str) else found
    form = getattr(module, FORM)
    computes = form is not None and len(inputs) == form.inputs and form.computes(module, x)
    result: torch.Tensor | None = form.compute(module, *inputs) if computes else None
    return type(module).forward(module, *inputs) if result is None else result


@functools.cache
def _report(name: str, reason: str) -> None:
    log.warning("tridal's layer leaves %s to its class: %s", name, reason)
