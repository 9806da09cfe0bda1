"""The functions that compute an op, and the table of the ops that are registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tridal.errors import PluginError
from tridal.ops.op import Op
from tridal.pytorch.path.run_source import Prepared

Results: TypeAlias = tuple[torch.Tensor | None, ...]
OpRun: TypeAlias = Callable[..., Results]
DEFINED: dict[str, Rules] = {}
"""The registered ops by name, in their newest declaration."""
OVERLOADS: dict[str, str] = {}
"""The overloads of registered ops that are not the default one. Each schema of an op that is declared again has one."""


@dataclass(frozen=True, eq=False)
class Rules:
    """The functions that compute an op. A result is None if the arguments do not ask for it."""

    op: Op
    compute: OpRun
    """compute(*arguments): the results for plain tensors, by kernels, or by torch where no kernel computes them.
    compute(*arguments, results=n) returns at least the first n of them. Only ops with `prepare` have this option."""
    fake: OpRun
    """fake(*arguments) checks the arguments. It returns empty tensors with the shapes and dtypes of the results."""
    backward: OpRun
    """backward(*gradients, *saved, output_mask), by kernels, or by torch where no kernel computes them."""
    fake_backward: OpRun
    by_torch: OpRun
    """The op in torch's ops, with the arguments and results of the registered op. Autograd can differentiate it."""
    backward_by_torch: OpRun
    """The gradient in torch's ops, with the arguments and results of the registered gradient."""
    prepare: Callable[..., Prepared | None] | None = None
    """prepare(*arguments, results=None) returns run(*tensors), which is `compute` for all tensors with the same
    description. It returns None if no kernel computes them. `prepare` is None if calls are not worth a preparation."""
    prepare_backward: Callable[..., Prepared | None] | None = None
    """prepare_backward(*gradients, *saved, output_mask) returns run(*gradients, *saved tensors), as `prepare`."""


def overload(name: str) -> Any:
    """Returns the registered op with this name, as an `OpOverload`."""
    return getattr(getattr(torch.ops.tridal, name), OVERLOADS.get(name, "default"))


def check_newest(op: Op) -> None:
    """Raises PluginError if an op has been declared again."""
    newest = DEFINED.get(op.name)
    if newest is not None and newest.op is not op:
        raise PluginError(f"op {op.name!r} was declared again: use the function of its newest declaration")
