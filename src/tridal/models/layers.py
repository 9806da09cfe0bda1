"""Layers for Hugging Face's package `kernels`, which binds the forward of a layer to a module that has the weights.

`kernels` permits layers no constructor and no methods but forward. So the modules keep what they compute.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tridal.models import activations, glu, norm_comparison
from tridal.models.isolation import isolated
from tridal.models.replacements import FORM, torch_computes
from tridal.pytorch.device_context import log


class Norm(torch.nn.Module):
    """Computes the norm of the module's class."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Returns the normalised tensor. The module's class computes it where tridal does not."""
        return _compute(self, hidden_states, _find_norm)


class Activation(torch.nn.Module):
    """Computes the activation of the module's class by one function of torch."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Returns the activation. The module's class computes it where it is no function of torch, and if compiled."""
        return _compute(self, hidden_states, _find_activation)


class MLP(torch.nn.Module):
    """Computes the gated MLP of the module's class, with one call for the activation and the product."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Returns the output of the last layer. The module's class computes what tridal does not, and if compiled."""
        return _compute(self, hidden_states, _find_glu)


SwiGLUMLP = GeGLUMLP = MLP
RMSNorm = RMSNormZeroCentered = LayerNorm = Norm
GeLU = NewGELU = FastGELU = Activation
"""The names of layers for classes whose modules tridal may compute: those of transformers, if it has one."""


def _compute(module: Any, x: Any, find: Callable[[Any], Any]) -> torch.Tensor:
    form = _form(module, x, find)
    result: torch.Tensor | None = None if form is None else form.compute(module, x)
    return type(module).forward(module, x) if result is None else result


def _form(module: Any, x: Any, find: Callable[[Any], Any]) -> Any:
    """Returns what a module computes. Returns None if its class computes the input.

    A module is compared in its first call, except by a compiler and where no backend serves the device.
    """
    if not hasattr(module, FORM):  # a compiler evaluates this again later, unlike `in module.__dict__`
        if torch.compiler.is_compiling() or not isinstance(x, torch.Tensor) or torch_computes(x.device):
            return None
        module.__dict__[FORM] = isolated(find, module)
    return getattr(module, FORM)


def _find_norm(module: Any) -> Any:
    return _form_or_report(module, norm_comparison.find_form(module))


def _find_activation(module: Any) -> Any:
    return _form_or_report(module, activations.find_form(module))


def _find_glu(module: Any) -> Any:
    return _form_or_report(module, glu.find_form(module))


def _form_or_report(module: Any, found: Any) -> Any:
    """Returns a form, or None if the class computes the module, which the log says unless it is torch's function."""
    return _report(type(module).__name__, found) if isinstance(found, str) else found


@functools.cache
def _report(name: str, reason: str) -> None:
    log.warning("the layer of tridal computes %s by its class: %s", name, reason)
