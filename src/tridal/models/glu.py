"""Replaces the product of gated MLPs and experts, activation(gate) * up, by `tridal.swiglu` or `tridal.geglu`.

transformers multiplies the weights of all experts at once, and calls a method of their class for the product. This
method is compared. The experts are not called.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tridal.models.comparison import find
from tridal.models.glu_comparison import GluForm, Parts, Roles, compare
from tridal.models.reads import names_in, own_forward
from tridal.models.replacements import Replacement

Tensor = torch.Tensor
NAME = re.compile("swiglu|geglu|gated_?(mlp|linear|dense|act|ffn|feed)", re.IGNORECASE)
"""A name of a class that says that it is a gated MLP."""
EXPERTS = re.compile("expert", re.IGNORECASE)
"""A name of a class for experts of a mixture."""
ACTIVATION = re.compile("gelu|silu|swish|glu|sigmoid|relu|(^|_)act(_|$|ivation)", re.IGNORECASE)
"""A name of an activation that a forward calls or reads."""
DROPOUT = (
    torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d, torch.nn.AlphaDropout,
    torch.nn.FeatureAlphaDropout, torch.nn.Identity,
)  # fmt: skip
_METHOD = "_apply_gate"
"""transformers' name of the method for the product of experts."""


class Experts(Replacement):
    """The product of experts. The class multiplies with the weights of the experts."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs of the class's forward, which calls `_apply_gate`."""
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def _apply_gate(self, gate_up: Tensor) -> Any:
        form = self._tridal_form
        if form is None or not form.computes(self, gate_up):
            return super()._apply_gate(gate_up)  # type: ignore[misc]
        return form.product(self, gate_up, None)


def _layers_of(module: torch.nn.Module) -> dict[str, tuple[Any, Any]]:
    sizes = {name: (getattr(m, "out_features", None), getattr(m, "in_features", None)) for name, m in _inside(module)}
    return {name: pair for name, pair in sizes.items() if all(isinstance(size, int) for size in pair)}


def _inside(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _roles_of(module: torch.nn.Module) -> Iterator[Roles]:
    sizes = _layers_of(module)
    if len(sizes) < 2 and NAME.search(type(module).__name__):
        yield next(iter(sizes), None), None, None
    for names in itertools.permutations(sizes) if len(sizes) in (2, 3) else ():
        first, down = sizes[names[0]], sizes[names[-1]]
        if len(names) == 2 and first[0] == 2 * down[1]:
            yield names[0], None, names[1]
        if len(names) == 3 and first == sizes[names[1]] == down[::-1]:
            yield names


def may_be_glu(module: torch.nn.Module) -> bool:
    """Returns whether a module has the layers of a gated MLP and uses an activation, or is called a gated MLP.

    The layers of gate and up have the same sizes, or one layer computes both. `find_form` decides. A module that is
    called a gated MLP may return the product. A module with blocks of modules beside its layers is no MLP, but may have
    layers of such sizes, as diffusion transformers do.
    """
    layers = _layers_of(module)
    if NAME.search(type(module).__name__):
        return bool(layers) or not (_others(module)[2] or module._parameters)
    if not layers or any(child._modules for name, child in _inside(module) if name not in layers):
        return False
    names = names_in(own_forward(module))
    return any(_roles_of(module)) and (bool(_others(module)[0]) or any(map(ACTIVATION.search, names)))


def may_be_experts(module: torch.nn.Module) -> bool:
    """Returns whether a module has the weights of several experts: tensors with a dim of experts."""
    own = (parameter for parameter in module._parameters.values() if parameter is not None)
    return bool(EXPERTS.search(type(module).__name__)) and any(parameter.dim() > 1 for parameter in own)


def _others(module: torch.nn.Module) -> tuple[list[str], list[str], list[str]]:
    """Names the modules inside that may be an activation, those that may be a dropout, and all others."""
    layers = _layers_of(module)
    names: tuple[list[str], list[str], list[str]] = [], [], []
    for name, child in _inside(module):
        if name not in layers:
            leaf = not (child._modules or child._parameters or child._buffers)
            names[1 if isinstance(child, DROPOUT) else 0 if leaf else 2].append(name)
    return names


def _parts_of(module: torch.nn.Module) -> Parts | str:
    """Returns the modules inside that are no layers, or why they are not those of a gated MLP."""
    activations, dropouts, others = _others(module)
    if others or len(activations) > 1 or len(dropouts) > 1:
        inside = ", ".join(name for name in module._modules if name in (*others, *activations, *dropouts))
        return f"it has the modules {inside} beside its layers, and a gated MLP has one activation without parameters"
    return Parts(next(iter(activations), None), next(iter(dropouts), None))


def find_form(module: torch.nn.Module) -> GluForm | str:
    """Returns the gated MLP that a module computes, or why it is none. The module is not called."""
    if module._parameters:  # buffers matter only if the forward reads them
        own = ", ".join(module._parameters)
        return f"it has parameters of its own ({own}), and a gated MLP has only those of its layers"
    roles = tuple(_roles_of(module))
    if not roles:
        return "it has no linear layers with the sizes of gate, up and down"
    taken = [*inspect.signature(type(module).forward).parameters.values()][1:]
    defaults = [p.default for p in taken if p.kind is p.POSITIONAL_OR_KEYWORD]
    if defaults[:1] != [inspect.Parameter.empty] or any(default is not None for default in defaults[1:]):
        return f"its forward takes ({', '.join(p.name for p in taken)}), and a gated MLP takes one tensor"
    return _find("gated MLP", module, roles, _call)


def find_form_of_experts(module: Any) -> GluForm | str:
    """Returns the product of both halves that experts compute, or why they compute another one."""
    implementation = getattr(getattr(module, "config", None), "_experts_implementation", None)
    if not hasattr(type(module), _METHOD) or not getattr(module, "has_gate", False):
        return (
            f"tridal computes the product of experts whose class has the method {_METHOD} of transformers, and a gate"
        )
    if implementation == "eager":
        return f"its experts_implementation is 'eager', which does not call {_METHOD}"
    return _find("experts", module, (("gate_up", None, "down"),), _call_experts)


def _find(kind: str, module: torch.nn.Module, roles: tuple[Roles, ...], call: Callable[..., Tensor]) -> GluForm | str:
    parts = _parts_of(module)
    return parts if isinstance(parts, str) else find(kind, compare, module, torch.device("cpu"), roles, parts, call)


def _call(copy: Any, layers: dict[str, Any], x: Tensor) -> Tensor:
    return copy(x.view(4, -1, x.shape[-1])).flatten(0, 1)  # type: ignore[no-any-return]


def _call_experts(copy: Any, layers: dict[str, Any], x: Tensor) -> Tensor:
    return layers["down"](copy._apply_gate(layers["gate_up"](x)))  # type: ignore[no-any-return]
