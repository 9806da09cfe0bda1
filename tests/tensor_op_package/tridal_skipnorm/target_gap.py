"""Target gap: an element of each row minus the mean of the row, per unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import tridal
from tridal import ops

KERNELS = "tridal_skipnorm.target_gap_kernels"
BASE = (("BASE", "mean"),)
GAP = ops.RowKernel(
    name="target_gap", module=KERNELS, reads=("x",), row_index="target",
    statistics=(ops.Statistic("total", "sum", term="x"),), writes=(),
    row_writes=("gap",), constants=BASE, neutral_padding=True, live_tiles=1,
)  # fmt: skip
BACKWARD = ops.RowKernel(
    name="target_gap_backward", module=KERNELS, reads=("x",),
    row_reads=("dy",), row_index="target", statistics=(),
    writes=("gradient",), constants=BASE, live_tiles=1,
)  # fmt: skip


def reference(
    x: Tensor, target: Tensor, unit: Tensor, reduce: ops.RowReduce, base: str
) -> Tensor:
    """(the target's element - the mean or the sum of its row) / unit."""
    picked = torch.where(reduce.columns(x) == target, x, 0.0)
    level = reduce.mean(x) if base == "mean" else reduce(x, "sum")
    gap = reduce(picked, "sum") - level
    return reduce.rounded(gap, reduce.dtypes["input"]) / unit


def gradient(
    dy: Tensor, x: Tensor, target: Tensor, unit: Tensor,
    reduce: ops.RowReduce, base: str,
) -> Tensor:  # fmt: skip
    """dy / unit times 1 at the target, minus 1 / columns or 1."""
    at_target = (reduce.columns(x) == target).to(x.dtype)
    share = 1 / reduce.count if base == "mean" else 1.0
    return dy / unit * (at_target - share)


def steps(call: Any, named: Mapping[str, Any]) -> tuple[Tensor]:
    """The gap of each row in the dtype of the input, then its quotient."""
    x, target, unit = named["input"], named["target"], named["unit"]
    ops.check_shape("target_gap", "unit", unit, (1,))
    (gap,) = call.kernel(
        GAP, x, target, dim=named["dim"], cast=named["dtype"],
        dtypes=(x.dtype,), BASE=named["base"],
    )  # fmt: skip
    wide = ops.accumulator(named["dtype"], unit)
    return (call.torch(quotient, gap, unit, wide),)


def gradient_steps(call: Any, named: Mapping[str, Any]) -> tuple[Tensor]:
    """The gradient of each gap, then that of each element."""
    x, target, unit = named["input"], named["target"], named["unit"]
    dy = call.torch(quotient, named["dy"], unit, named["dy"].dtype)
    return call.kernel(
        BACKWARD, x, dy, target, dim=named["dim"], dtypes=(named["dtype"],),
        BASE=named["base"],
    )  # fmt: skip


def quotient(number: Tensor, unit: Tensor, dtype: torch.dtype) -> Tensor:
    """number / unit."""
    return number.to(dtype) / unit.to(dtype)


TARGET_GAP = ops.Op(
    name="target_gap",
    arguments=(
        ops.per_element("input"), ops.index_per_row("target"),
        ops.whole("unit"), ops.number("base", "mean", range=("mean", "sum")),
    ),
    results=(ops.Result("gap", "row", gradient="dy"),),
    kernels=(GAP, BACKWARD),
    reference=reference,
    gradient=gradient,
    steps=steps,
    gradient_steps=gradient_steps,
    saves=("input", "target", "unit"),
    gradient_numbers=(ops.number("base", type="str"),),
)  # fmt: skip

target_gap = tridal.row_function(TARGET_GAP)
