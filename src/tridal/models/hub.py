"""tridal's layers for Hugging Face's package `kernels`: a repository in a folder, and a mapping of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tridal.devices import registry
from tridal.models.candidates import decide
from tridal.models.comparison import isolated
from tridal.models.kernelize import device_notes
from tridal.models.norms import NormForm
from tridal.models.replacements import FORM, is_replaced
from tridal.pytorch.device_context import is_served, log

__all__ = ["LAYER", "kernel_mapping", "repository"]
__dir__ = __all__.copy

LAYER = "TridalNorm"
"""The layer name of classes that have no layer name in `kernels`."""


def repository() -> Path:
    """Returns the folder of tridal's kernel repository for the package `kernels`. It serves every backend.

    Its layers RMSNorm, RMSNormZeroCentered, RMSNormGated, LayerNorm, SwiGLUMLP, GeGLUMLP, GeLU, NewGELU and FastGELU
    compute what the class of a module computes. A module's first call compares both, as `tridal.kernelize` does. The
    class computes a module that differs, which the log says once, and a module that is compiled before its first call.

    `transformers.KernelConfig({"RMSNorm": f"{repository()}:RMSNorm"}, use_local_kernel=True)` and
    `kernels.LocalLayerRepository(repository(), layer_name="RMSNorm")` select a layer.

    Example:
        >>> import kernels
        >>> kernels.LocalLayerRepository(tridal.models.hub.repository(), layer_name="RMSNorm").layer_name
        'RMSNorm'
    """
    return Path(__file__).parent / "repository"


def kernel_mapping(model: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Returns a mapping of a model's norms for `kernels.use_kernel_mapping` or `kernels.register_kernel_mapping`.

    It leaves out norms with a gate, and compares the others as `tridal.kernelize` does. `kernels` finds a module by the
    layer name of its class. A class without one gets the name `LAYER`, with a condition that only norms of models
    passed to this function satisfy.

    The mapping covers the device types of the model and those that a backend serves under the current settings. It also
    contains the names of backends, because `kernels` may name a device after its backend.

    Raises:
        ImportError: the package kernels is not installed, or too old to give a class a layer name.

    Example:
        >>> import kernels
        >>> class Norm(torch.nn.RMSNorm):
        ...     pass
        >>> mapping = tridal.models.hub.kernel_mapping(torch.nn.Sequential(Norm(4)))
        >>> with kernels.use_kernel_mapping(mapping):
        ...     list(mapping)
        ['TridalNorm']
    """
    from kernels import LocalLayerRepository
    from kernels.layer.device import Device
    from kernels.layer.repos import DeviceRepos

    for module in model.modules():
        decision = None if FORM in module.__dict__ else isolated(decide, module)
        if decision is not None and isinstance(decision.form, NormForm) and decision.form.inputs == 1:
            module.__dict__[FORM] = decision.form
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
    return {layer: dict.fromkeys(types, LocalLayerRepository(repository(), layer_name="Norm")) for layer in names}


def _is_computed(module: torch.nn.Module) -> bool:
    return isinstance(module.__dict__.get(FORM), NormForm) and not is_replaced(module)


def _layer_name(kind: Any) -> str:
    """Returns the name by which `kernels` finds the modules of a class. Gives the class a name if it has none."""
    if not hasattr(kind, "kernel_layer_name"):
        import kernels

        try:
            kernels.replace_kernel_forward_from_hub(kind, LAYER, condition=_is_computed)
        except TypeError as error:
            found = f"kernels {kernels.__version__} cannot give {kind.__qualname__} a layer name"
            raise ImportError(f"{found}: pip install 'kernels>=0.17'") from error
    return str(kind.kernel_layer_name)
