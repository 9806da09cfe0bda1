"""Layers for Hugging Face's package `kernels`, which replaces the forward of modules by that of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tridal.devices import registry
from tridal.models import replacements
from tridal.models.norm_comparison import find_form
from tridal.models.norm_forms import NormForm
from tridal.models.norm_identity import device_of
from tridal.models.replacements import FORM
from tridal.pytorch.device_context import is_served

LAYERS = ("RMSNorm", "RMSNormZeroCentered", "LayerNorm")
"""Names of layers in `kernels`. The classes with one of these names compute different norms, so each is compared."""


class Norm(torch.nn.Module):
    """A stateless layer. `kernels` binds its forward to a module of another class, which has the weights."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Returns the norm that the class of the module computes. The class computes it where tridal does not."""
        form = getattr(self, FORM, None)
        if form is None and not torch.compiler.is_dynamo_compiling():
            form = _remember_form(self)
        result = None if form is None else form.compute(self, hidden_states)
        return type(self).forward(self, hidden_states) if result is None else result


def _remember_form(module: torch.nn.Module) -> NormForm:
    """Compares the class of a module with tridal's norms, and stores the result in the module."""
    form = find_form(module, device_of(module)).form or NormForm("rms_norm", None, None, (0,), None)  # computes nothing
    module.__dict__[FORM] = form
    return form


@dataclass(frozen=True)
class Repository:
    """A repository of one layer, which needs no download."""

    layer_name: str

    def load(self) -> type[torch.nn.Module]:
        """Returns the layer."""
        return Norm

    def __str__(self) -> str:
        return f"tridal (layer {self.layer_name})"


def kernel_mapping(model: torch.nn.Module | None = None) -> dict[str, dict[str, Any]]:
    """Returns a mapping for `kernels.use_kernel_mapping` or `kernels.register_kernel_mapping`.

    It has tridal's layers for each device type that a backend serves under the current settings. `kernels` may call a
    device as its backend is called, so the names of backends are added. Pass the mapping before `kernels.kernelize`.

    Args:
        model: its norms are compared now. Other norms are compared in their first call; a norm whose first call is
            compiled computes as its class.

    Raises:
        ImportError: the package kernels is not installed.
    """
    for module in () if model is None else model.modules():
        if getattr(type(module), "kernel_layer_name", None) in LAYERS and not replacements.is_replaced(module):
            _remember_form(module)
    from kernels.layer.device import Device
    from kernels.layer.repos import DeviceRepos

    served = [backend for backend in registry.loaded() if is_served(backend.device_type)]
    types = []
    for name in sorted({backend.device_type for backend in served} | {backend.name for backend in served}):
        try:
            DeviceRepos.create_repo(Device(type=name))
        except ValueError:  # a name that `kernels` does not know
            continue
        types.append(name)
    return {layer: {name: Repository(layer) for name in types} for layer in LAYERS}
