"""Ops with several results, without a gradient's kernel, and with a choice, as a third party declares them."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tridal.ops import (
    Op,
    Result,
    RowKernel,
    RowReduce,
    Statistic,
    index_per_row,
    number,
    per_column,
    per_element,
)

Tensor = torch.Tensor


@triton.jit
def weighted(x, weight):  # type: ignore[no-untyped-def]
    return x * weight


@triton.jit
def square(x):  # type: ignore[no-untyped-def]
    return x * x


@triton.jit
def gradient(dy, weight, dtotal, AXIS: tl.constexpr):  # type: ignore[no-untyped-def]
    return (dy + tl.expand_dims(dtotal, AXIS)) * weight


@triton.jit
def weight_gradient(dy, x, dtotal, AXIS: tl.constexpr):  # type: ignore[no-untyped-def]
    return (dy + tl.expand_dims(dtotal, AXIS)) * x


def weigh(x: Tensor, weight: Tensor, reduce: RowReduce) -> tuple[Tensor, ...]:
    """x * weight, the sum of each row of it, and the sum of the squares of each row of x."""
    return x * weight, reduce(x * weight, "sum"), reduce(x * x, "sum")


def weigh_gradient(dy: Tensor, dtotal: Tensor, x: Tensor, weight: Tensor, reduce: RowReduce) -> tuple[Tensor, ...]:
    return (dy + dtotal) * weight, (dy + dtotal) * x


WEIGH = Op(
    name="weigh",
    arguments=(per_element("input"), per_column("weight")),
    results=(
        Result("output", "element", gradient="dy"),
        Result("total", "row", gradient="dtotal"),
        Result("squares", "row"),
    ),
    kernels=(
        RowKernel(
            name="weigh", module=__name__, reads=("x",), column_reads=("weight",), writes=("weighted",),
            statistics=(Statistic("total", "sum", term="weighted"), Statistic("squares", "sum", term="square")),
            row_writes=("total", "squares"), neutral_padding=True,
        ),
        RowKernel(
            name="weigh_backward", module=__name__, reads=("dy", "x"), row_reads=("dtotal",), column_reads=("weight",),
            statistics=(), writes=("gradient",), column_writes=("weight_gradient",), neutral_padding=True,
        ),
    ),
    reference=weigh,
    gradient=weigh_gradient,
    saves=("input", "weight"),
)  # fmt: skip
"""All results depend on the input, and two of them on the weight. The last one has no gradient."""


@triton.jit
def halved(x, total, count, AXIS: tl.constexpr, DIVIDES: tl.constexpr):  # type: ignore[no-untyped-def]
    y = x * tl.expand_dims(total, AXIS)
    return y / count if DIVIDES else y


def by_sum(x: Tensor, reduce: RowReduce, divides: bool) -> Tensor:
    """x * sum(x), or x * mean(x)."""
    return x * (reduce.mean(x) if divides else reduce(x, "sum"))


def _constants(named: Any) -> dict[str, Any]:
    return {"DIVIDES": named["divides"]}


BY_SUM = Op(
    name="by_sum",
    arguments=(per_element("input"), number("divides", False)),
    kernels=(
        RowKernel(
            name="by_sum", module=__name__, reads=("x",), statistics=(Statistic("total", "sum", term="x"),),
            writes=("halved",), constants=(("DIVIDES", False),),
        ),
    ),
    reference=by_sum,
    constants=_constants,
)  # fmt: skip
"""Autograd differentiates its reference, because it has no kernel for the gradient. It has a choice."""


def row_energy(x: Tensor, reduce: RowReduce) -> Tensor:
    """The sum of squares of each row, which has no gradient."""
    return reduce(x * x, "sum")


ROW_ENERGY = Op(
    name="row_energy",
    arguments=(per_element("input"),),
    results=(Result("energy", "row"),),
    kernels=(
        RowKernel(
            name="row_energy", module=__name__, reads=("x",), statistics=(Statistic("squares", "sum", term="square"),),
            writes=(), row_writes=("squares",), neutral_padding=True,
        ),
    ),
    reference=row_energy,
)  # fmt: skip
"""Its result has no gradient."""


_INF = tl.constexpr(float("inf"))


@triton.jit
def negated_column(x, row_max, column, AXIS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.where(x == tl.expand_dims(row_max, AXIS), -column.to(x.dtype), -_INF)


@triton.jit
def of_the_maximum(first_column, part_row_max, row_max):  # type: ignore[no-untyped-def]
    return tl.where(part_row_max == row_max, first_column, -_INF)


@triton.jit
def index(first_column):  # type: ignore[no-untyped-def]
    return -first_column


def argmax(x: Tensor, reduce: RowReduce) -> Tensor:
    """The first column with the maximum of its row."""
    found = torch.where(x == reduce(x, "max"), -reduce.columns(x), -reduce.count)
    return -reduce(found, "max")


ARGMAX = Op(
    name="row_argmax",
    arguments=(per_element("input"),),
    results=(Result("index", "row", dtype=torch.int64),),
    kernels=(
        RowKernel(
            name="row_argmax", module=__name__, reads=("x",), writes=(), row_writes=("index",), padding=float("-inf"),
            statistics=(
                Statistic("row_max", "max", term="x"),
                Statistic("first_column", "max", term="negated_column", rebase="of_the_maximum"),
            ),
            neutral_padding=True,
        ),
    ),
    reference=argmax,
)  # fmt: skip
"""A term uses the column, and the result has the dtype int64."""


@triton.jit
def picked_number(picked):  # type: ignore[no-untyped-def]
    return picked + 0.0


@triton.jit
def minus_picked(x, picked_number, AXIS: tl.constexpr):  # type: ignore[no-untyped-def]
    return x - tl.expand_dims(picked_number, AXIS)


MINUS_PICKED = Op(
    name="minus_picked",
    arguments=(per_element("input"), index_per_row("index")),
    kernels=(
        RowKernel(
            name="minus_picked", module=__name__, reads=("x",), row_index="index", statistics=(),
            row_value="picked_number", writes=("minus_picked",), live_tiles=1,
        ),
    ),
    reference=lambda x, index, reduce: x - reduce(x.where(reduce.columns(x) == index, 0.0), "sum"),
)  # fmt: skip
"""Each element needs another element of its row."""
