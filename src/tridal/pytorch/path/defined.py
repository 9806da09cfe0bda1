"""The table of the ops that are registered in `torch.ops.tridal`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tridal.errors import PluginError
from tridal.ops.op import Op
from tridal.ops.signature import Arguments
from tridal.pytorch.path.call import Results

DEFINED: dict[str, Op] = {}
"""The registered ops by name, in their newest declaration."""
OVERLOADS: dict[str, str] = {}
"""The overloads of registered ops that are not the default one. Each schema of an op that is declared again has one."""


def overload(name: str) -> Any:
    """Returns the registered op with this name, as an `OpOverload`."""
    return getattr(getattr(torch.ops.tridal, name), OVERLOADS.get(name, "default"))


def check_newest(op: Op) -> None:
    """Raises PluginError if an op has been declared again."""
    newest = DEFINED.get(op.name)
    if newest is not None and newest is not op:
        raise PluginError(f"op {op.name!r} was declared again: use the function of its newest declaration")


def as_tuple(results: Any) -> Results:
    """Puts the result of a registered op that has only one into a tuple."""
    return (results,) if isinstance(results, torch.Tensor) else results


def picked(results: Results, wanted: int | tuple[int, ...]) -> Any:
    """Returns the only result if one is wanted, else a tuple of the first ones, or of those with the wanted indices."""
    if isinstance(wanted, tuple):
        return tuple([results[index] for index in wanted])
    return results[0] if wanted == 1 else results[:wanted]


def call_registered(op: Op, arguments: Sequence[Any], results: int | tuple[int, ...]) -> Any:
    """Calls the registered op for some of its results, and returns them as a function does, see `picked`."""
    return picked(as_tuple(overload(op.name)(*arguments)), results)


def has_gradient(op: Op, arguments: Arguments) -> bool:
    """Returns whether the op's gradient covers all tensors that require one. It does not cover a mask, for example."""
    if op.gradient is None:
        return False
    pairs = zip(arguments.values, op.gradient_index, strict=True)
    return all(index >= 0 for a, index in pairs if isinstance(a, torch.Tensor) and a.requires_grad)
