"""What identifies modules that may be gated MLPs or experts: layers, activation, dropout and forward."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tridal.models.reads import names_in, own_forward

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
Roles = tuple[str, str | None, str]
"""The names of the layers gate, up and down. up is None if one layer computes both halves."""


class Parts(NamedTuple):
    """The names of the modules inside a gated MLP, without its layers."""

    activation: str | None
    """None if the forward calls a function."""
    dropout: str | None
    """The dropout of the product, or None."""


def _layers_of(module: torch.nn.Module) -> dict[str, tuple[Any, Any]]:
    """Returns the sizes of the linear layers inside, also of adapters and quantized layers."""
    named = ((name, (getattr(m, "out_features", None), getattr(m, "in_features", None))) for name, m in _inside(module))
    return {name: sizes for name, sizes in named if all(isinstance(size, int) for size in sizes)}


def _inside(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    return [(name, child) for name, child in module._modules.items() if child is not None]


def roles_of(module: torch.nn.Module) -> Iterator[Roles]:
    """Yields the roles that the layers of a module may have."""
    sizes = _layers_of(module)
    for names in itertools.permutations(sizes) if len(sizes) in (2, 3) else ():
        first, down = sizes[names[0]], sizes[names[-1]]
        if len(names) == 2 and first[0] == 2 * down[1]:
            yield names[0], None, names[1]
        if len(names) == 3 and first == sizes[names[1]] == down[::-1]:
            yield names


def may_be_glu(module: torch.nn.Module) -> bool:
    """Returns whether a module has the layers of a gated MLP and uses an activation, or is called a gated MLP.

    The layers of gate and up have the same sizes, or one layer computes both. `find_parts` and the comparison decide.
    """
    if isinstance(module, torch.jit.ScriptModule) or not module._modules:
        return False
    if NAME.search(type(module).__name__):
        return bool(_layers_of(module))
    names = names_in(own_forward(module))
    return any(roles_of(module)) and (bool(_others(module)[0]) or any(map(ACTIVATION.search, names)))


def may_be_experts(module: torch.nn.Module) -> bool:
    """Returns whether a module has the weights of several experts: tensors with a dim of experts."""
    own = (parameter for parameter in module._parameters.values() if parameter is not None)
    return bool(EXPERTS.search(type(module).__name__)) and any(parameter.dim() > 1 for parameter in own)


def _others(module: torch.nn.Module) -> tuple[list[str], list[str], list[str]]:
    """Returns the names of the modules that may be an activation, of those that may be a dropout, and of all others."""
    layers = _layers_of(module)
    names: tuple[list[str], list[str], list[str]] = [], [], []
    for name, child in _inside(module):
        if name not in layers:
            leaf = not (child._modules or child._parameters or child._buffers)
            names[1 if isinstance(child, DROPOUT) else 0 if leaf else 2].append(name)
    return names


def parts_of(module: torch.nn.Module) -> Parts | str:
    """Returns the modules inside that are no layers, or why they are not those of a gated MLP."""
    activations, dropouts, others = _others(module)
    if others or len(activations) > 1 or len(dropouts) > 1:
        inside = ", ".join(name for name in module._modules if name in (*others, *activations, *dropouts))
        return f"it has the modules {inside} beside its layers, and a gated MLP has one activation without parameters"
    return Parts(next(iter(activations), None), next(iter(dropouts), None))


def find_parts(module: torch.nn.Module) -> Parts | str:
    """Returns the parts of a module that `may_be_glu`, or why it is no gated MLP that tridal computes."""
    if module._parameters:  # buffers matter only if the forward reads them
        own = ", ".join(module._parameters)
        return f"it has parameters of its own ({own}), and a gated MLP has only those of its layers"
    if not any(roles_of(module)):
        return "it has no linear layers with the sizes of gate, up and down"
    taken = [*inspect.signature(type(module).forward).parameters.values()][1:]
    if [p.default for p in taken if p.kind is p.POSITIONAL_OR_KEYWORD] != [inspect.Parameter.empty]:
        return f"its forward takes ({', '.join(p.name for p in taken)}), and a gated MLP takes one tensor"
    return parts_of(module)
