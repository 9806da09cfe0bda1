"""Layers for Hugging Face's package `kernels`, which replaces the forward of modules by that of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tridal.devices import registry
from tridal.models import replacements
from tridal.models.candidates import decide
from tridal.models.kernelize import device_notes
from tridal.models.replacements import FORM
from tridal.pytorch.device_context import is_served, log

LAYER = "TridalNorm"
"""The layer name of classes that have no layer name in `kernels`."""


class Norm(torch.nn.Module):
    """A stateless layer. `kernels` binds its forward to a module of another class, which has the weights."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Returns the norm that the class of the module computes. The class computes it where tridal does not."""
        form = getattr(self, FORM, None)
        result = None if form is None else form.compute(self, hidden_states)
        return type(self).forward(self, hidden_states) if result is None else result


@dataclass(frozen=True)
class Repository:
    """A repository of one layer, which needs no download."""

    layer_name: str

    def load(self) -> type[torch.nn.Module]:
        """Returns the layer."""
        return Norm

    def __str__(self) -> str:
        return f"tridal (layer {self.layer_name})"


def kernel_mapping(model: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Returns a mapping of a model's norms for `kernels.use_kernel_mapping` or `kernels.register_kernel_mapping`.

    The norms are compared as by `tridal.kernelize`. `kernels` finds a module by the layer name of its class. A class
    without one, for example of a version of transformers that does not support the installed version of `kernels`,
    gets the name `LAYER`, with a condition that only norms of models given to this function satisfy.

    The mapping is for the device types of the model, and those that a backend serves under the current settings.
    `kernels` may call a device as its backend is called, so the names of backends are added.

    Raises:
        ImportError: the package kernels is not installed, or too old to give a class a layer name.
    """
    from kernels.layer.device import Device
    from kernels.layer.repos import DeviceRepos

    names = {_layer_name(type(module)) for module in model.modules() if _is_computed(module)}
    notes = device_notes(model) if names else ["it has no norm that tridal computes; tridal.kernelize(model) says why"]
    for note in notes:
        log.warning("kernel_mapping of %s: %s", type(model).__name__, note)
    served = [backend for backend in registry.loaded() if is_served(backend.device_type)]
    kinds = {parameter.device.type for parameter in model.parameters()}
    types = []
    for name in sorted(kinds | {backend.device_type for backend in served} | {backend.name for backend in served}):
        try:
            DeviceRepos.create_repo(Device(type=name))
        except ValueError:  # a name that `kernels` does not know
            continue
        types.append(name)
    return {layer: {name: Repository(layer) for name in types} for layer in names}


def _is_compared(module: torch.nn.Module) -> bool:
    """Returns whether a module is a norm of a model that was given to `kernel_mapping`, and tridal computes it."""
    return FORM in module.__dict__ and not replacements.is_replaced(module)


def _is_computed(module: torch.nn.Module) -> bool:
    """Returns whether tridal computes a norm. Compares it the first time, and stores in the module what it computes."""
    decision = None if FORM in module.__dict__ else decide(module)
    if decision is not None and decision.kind is replacements.Norm:
        module.__dict__[FORM] = decision.form
    return _is_compared(module)


def _layer_name(kind: Any) -> str:
    """Returns the name by which `kernels` finds the modules of a class. Gives the class a name if it has none."""
    if not hasattr(kind, "kernel_layer_name"):
        import kernels

        try:
            kernels.replace_kernel_forward_from_hub(kind, LAYER, condition=_is_compared)
        except TypeError as error:
            found = f"kernels {kernels.__version__} cannot give {kind.__qualname__} a layer name"
            raise ImportError(f"{found}: pip install 'kernels>=0.17'") from error
    return str(kind.kernel_layer_name)
