"""The functions that compute an op, and the table of the ops that are registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tridal.ops.op import Op
from tridal.ops.signature import Signature
from tridal.pytorch.path.launch_source import Prepared

Results: TypeAlias = tuple[torch.Tensor | None, ...]
OpRun: TypeAlias = Callable[..., Results]
DEFINED: dict[str, Rules] = {}
"""The registered ops by name."""


@dataclass(frozen=True, eq=False)
class Rules:
    """The functions that compute an op. A result is None if the arguments do not ask for it."""

    op: Op
    compute: OpRun
    """compute(*arguments): the results for plain tensors, by kernels, or by torch where no kernel computes them.
    compute(*arguments, results=n) returns at least the first n of them. Only ops with `prepare` have this option."""
    fake: OpRun
    """fake(*arguments) checks the arguments. It returns empty tensors with the shapes and dtypes of the results."""
    save: Callable[[tuple[Any, ...], Results], tuple[Results, tuple[Any, ...]]]
    """save(arguments, results) returns two tuples: the tensors, and the other arguments, that the backward gets between
    the gradients of the results and `output_mask`."""
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
    return getattr(torch.ops.tridal, name).default


def by_kernels(signature: Signature, prepare: Callable[..., Prepared | None], by_torch: OpRun) -> OpRun:
    """Returns f(*arguments), which computes an op, or its gradient, with kernels, and with `by_torch` if there is none.

    Options of `prepare` are passed to it.
    """

    def compute(*arguments: Any, **options: int) -> Results:
        found = prepare(*arguments, **options)
        return by_torch(*arguments) if found is None else found.run(*signature.tensors_of(arguments))

    return compute
