"""Scale and mask in the kernel's one pass over the scores: what it serves, and its calls, prepared and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tridal import execute, invariance, launch, registry
from tridal.places import Place
from tridal.types import LaunchPlan, Problem, Tile

_CAPACITY = 1024


@dataclass(frozen=True, slots=True)
class Extras:
    """What is done to scores before their softmax."""

    scale: float
    mask: torch.Tensor | None
    """Added if it is floating; if it is boolean, what is False is left out."""
    causal: bool
    """Whether query i, along the last but one dimension, has columns 0 to i alone."""
    masked_rows: str
    """What a row is of which nothing is left: "nan", as torch's, or "zero"."""

    @property
    def zero(self) -> bool:
        """Whether such a row is zero."""
        return self.masked_rows == "zero"


def fused(
    place: Place, input: torch.Tensor, dim: int, dtype: torch.dtype, extras: Extras
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The call for a plain tensor at `place`; None if no kernel does it."""
    mask = extras.mask
    key = (
        place, dim, dtype, input.shape, input.stride(), input.dtype, input.data_ptr() % launch.ALIGNMENT,
        extras.scale, extras.causal, extras.zero, None if mask is None else _described(mask),
    )  # fmt: skip
    if key not in _runs:
        if len(_runs) >= _CAPACITY:
            _runs.clear()
        _runs[key] = _prepared(place, input, dim, dtype, extras)
    run = _runs[key]
    if run is None:
        return None

    def call(input: torch.Tensor) -> torch.Tensor:
        out = torch.empty(input.shape, dtype=dtype, device=input.device)
        if mask is None:
            run(out, input.contiguous())
        else:
            run(out, input.contiguous(), mask.view(torch.uint8) if mask.dtype is torch.bool else mask)
        return out

    return call


def _described(mask: torch.Tensor) -> tuple[Any, ...]:
    aligned = mask.data_ptr() % launch.ALIGNMENT == 0
    return mask.shape, mask.stride(), mask.dtype, mask.device, mask.requires_grad, aligned


def _prepared(
    place: Place, input: torch.Tensor, dim: int, dtype: torch.dtype, extras: Extras
) -> Callable[..., None] | None:
    """run(out, input[, mask]) for contiguous tensors like these; None if no kernel does it."""
    mask, backend, index = extras.mask, place.backend, place.index
    last = dim % max(input.dim(), 1) == input.dim() - 1
    if backend is None or "masked" not in backend.algorithms:
        return None
    if not last or not input.numel() or input.numel() // input.shape[-1] >= 2**31:
        return None
    if not input.is_floating_point() or torch.promote_types(input.dtype, dtype) != dtype or input.is_neg():
        return None
    if mask is not None and (mask.device != input.device or mask.requires_grad or not mask.numel() or mask.is_neg()):
        return None
    lies = _mask_strides(input, mask)
    if lies is None or not execute.serves(place, {input.dtype, dtype} | _floating(mask)):
        return None
    call = _call(input, dtype, extras, *lies)
    if place.settings.batch_invariant:
        backend = invariance.invariant(backend)
    options = registry.options(backend, place.settings)
    with backend.guard(index):
        bound = launch.prepare(call, backend, backend.properties(index), options).launch  # type: ignore[arg-type]

    def run(*tensors: torch.Tensor) -> None:
        with backend.guard(index):
            bound(backend.stream(index), *tensors)

    return run


def _floating(mask: torch.Tensor | None) -> set[torch.dtype]:
    return set() if mask is None or mask.dtype is torch.bool else {mask.dtype}


def _mask_strides(input: torch.Tensor, mask: torch.Tensor | None) -> tuple[int, int, tuple[int, int, int], int] | None:
    """(queries, heads, strides of batch, head and query, stride of a column), or None if it takes more than these."""
    queries = input.shape[-2] if input.dim() > 1 else 1
    if mask is None:
        return queries, 1, (0, 0, 0), 0
    strides = mask.expand(input.shape).stride()
    if strides[-1] not in (0, 1):
        return None
    levels: list[tuple[int, int]] = []  # (size, stride) of what comes before the queries, outermost first
    for size, step in zip(input.shape[:-2], strides[:-2], strict=True):
        if size == 1:
            continue
        if levels and levels[-1][1] == step * size:
            levels[-1] = (levels[-1][0] * size, step)
        else:
            levels.append((size, step))
    if len(levels) > 2:
        return None
    (_, batch), (heads, head) = [(1, 0)] * (2 - len(levels)) + levels
    return queries, heads, (batch, head, strides[-2] if input.dim() > 1 else 0), strides[-1]


@dataclass(frozen=True, slots=True)
class _Call:
    """What `tridal.launch` has to know of a masked call, as of any other."""

    problem: Problem
    values: tuple[tuple[str, Any], ...]
    """Run-time numbers of the kernel, in its order."""
    constants: tuple[tuple[str, Any], ...]
    mask: str | None
    """The mask's dtype."""
    aligned: tuple[str, ...]
    """Pointers that are multiples of 16 bytes."""

    def variant(self, tile: Tile) -> launch.Variant:
        """Rows in one tile, or column tiles where the plan shares a row among programs."""
        p = self.problem
        types = {"out_ptr": f"*{launch.TYPES[p.out_dtype]}", "in_ptr": f"*{launch.TYPES[p.dtype]}"}
        constants: dict[str, Any] = dict(self.constants)
        if self.mask is None:
            constants["mask_ptr"] = None
        else:
            types["mask_ptr"] = f"*{launch.TYPES[self.mask]}"
        types |= {
            name: ("fp64" if p.accumulator == 8 else "fp32") if name == "scale" else "i32" if value < 2**31 else "i64"
            for name, value in self.values
        }
        constants |= {"ACC": "fp64" if p.accumulator == 8 else "fp32", "ROWS": tile.rows, "COLS": tile.cols}
        constants["STAGES"] = tile.num_stages
        looped = tile.algorithm != "tile"
        strides = ("cols", "mask_batch", "mask_head", "mask_query")
        divisible = [
            *self.aligned,
            *(name for name, value in self.values if name in strides and value % launch.ALIGNMENT == 0),
        ]
        return launch.Variant(
            kernel="forward_masked" + "_looped" * looped,
            types=tuple(types.items()),
            constants=tuple(constants.items()),
            divisible=tuple(divisible),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            max_registers=tile.max_registers,
            cooperative=False,
        )

    def scalars(self, tile: Tile) -> dict[str, Any]:
        """Run-time numbers by name."""
        return dict(self.values)

    def words(self, launch_plan: LaunchPlan) -> int:
        """Programs exchange nothing."""
        return 0


def _call(
    input: torch.Tensor, dtype: torch.dtype, extras: Extras,
    queries: int, heads: int, strides: tuple[int, int, int], column: int,
) -> _Call:  # fmt: skip
    mask, cols = extras.mask, input.shape[-1]
    rows = input.numel() // cols
    values = {
        "rows": rows, "cols": cols, "scale": float(extras.scale), "queries": queries, "heads": heads,
        "mask_batch": strides[0], "mask_head": strides[1], "mask_query": strides[2],
    }  # fmt: skip
    kind = 0 if mask is None else 2 if mask.dtype is torch.bool else 1
    constants = {"mask_col": column, "MASK": kind, "CAUSAL": extras.causal, "ZERO": extras.zero}
    aligned = ["out_ptr"]
    if not input.is_contiguous() or input.data_ptr() % launch.ALIGNMENT == 0:
        aligned.append("in_ptr")
    if mask is not None and mask.data_ptr() % launch.ALIGNMENT == 0:
        aligned.append("mask_ptr")
    read, written = execute.dtype_name(input.dtype), execute.dtype_name(dtype)
    return _Call(
        Problem("softmax", cols=cols, inner=rows, dtype=read, out_dtype=written, saved_dtype=written),
        tuple(values.items()),
        tuple(constants.items()),
        None if mask is None else "uint8" if kind == 2 else execute.dtype_name(mask.dtype),
        tuple(aligned),
    )


_runs: dict[tuple[Any, ...], Callable[..., None] | None] = {}
registry.when_changed(_runs.clear)
