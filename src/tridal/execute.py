"""From tensors to a launch: finds or makes the prepared launch of a call, and runs it on the tensors' own device."""

from __future__ import annotations

import logging
from typing import Any

import torch

from tridal import launch, registry, settings
from tridal.geometry import geometry
from tridal.types import Backend, LaunchPlan, Op, Problem

log = logging.getLogger("tridal")

_ALIGNMENT_MASK = 15  # addresses that have none of these bits are multiples of 16 bytes
_CAPACITY = 4096
_prepared: dict[tuple[Any, ...], tuple[LaunchPlan, launch.Launch] | None] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for torch.float32, and so on."""
    return str(dtype).removeprefix("torch.")


def call_for(
    op: Op, dim: int, out: torch.Tensor, source: torch.Tensor, saved: torch.Tensor | None = None
) -> launch.Call | None:
    """The kernels' view of a call, or None if `source` has strides that no kernel reads.

    `out` and `saved` are contiguous and have the shape of `source`, without a dimension of size zero, and
    0 <= dim < rank.
    """
    where = geometry(source.shape, source.stride(), dim)
    if where is None:
        return None
    tensors = [out, source] if saved is None else [out, source, saved]
    problem = Problem(
        op=op,
        cols=where.cols,
        inner=where.inner,
        outer=where.outer,
        dtype=dtype_name(source.dtype),
        out_dtype=dtype_name(out.dtype),
        saved_dtype=dtype_name((out if saved is None else saved).dtype),
        layout=where.layout,
    )
    return launch.Call(problem, where, aligned=not any(t.data_ptr() & _ALIGNMENT_MASK for t in tensors))


def run(
    backend: Backend, op: Op, dim: int, out: torch.Tensor, source: torch.Tensor, saved: torch.Tensor | None = None
) -> bool:
    """Runs a kernel on the current stream of the tensors' device; False if `source` lies as no kernel reads it.

    The conditions on the tensors are those of `call_for`. `source` may be `out` itself.
    """
    index = out.device.index or 0
    pointers = out.data_ptr() | source.data_ptr() | (0 if saved is None else saved.data_ptr())
    key = (
        backend.name, index, op, dim, source.shape, source.stride(), source.dtype, out.dtype,
        None if saved is None else saved.dtype, pointers & _ALIGNMENT_MASK == 0, settings.current(),
    )  # fmt: skip
    with backend.guard(index):
        try:
            prepared = _prepared[key]
        except KeyError:
            prepared = _prepare(backend, index, call_for(op, dim, out, source, saved))
            if len(_prepared) >= _CAPACITY:
                _prepared.clear()
            _prepared[key] = prepared
        if prepared is None:
            return False
        stream = backend.stream(index)
        if saved is None:
            prepared[1](stream, out, source)
        else:
            prepared[1](stream, out, source, saved)
    return True


def _prepare(backend: Backend, index: int, call: launch.Call | None) -> tuple[LaunchPlan, launch.Launch] | None:
    if call is None:
        return None
    options = registry.options(backend, settings.current())
    prepared = launch.prepare(call, backend, backend.properties(index), options)
    log.debug("%s on %s:%d: %s", call.problem, backend.name, index, prepared[0])
    return prepared
