"""The functions of an op: schedules pass what a function names, and wrong functions are errors that name them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from call_helpers import kernel_call, written
from tridal.devices.types import KernelConfig
from tridal.errors import PluginError
from tridal.kernels.op_functions import constants_of
from tridal.kernels.row_kernel import RowKernel, Statistic

triton = pytest.importorskip("triton")
tl = triton.language


@triton.jit
def element(a):
    return a * 2


@triton.jit
def square(eps, b, total, AXIS: tl.constexpr):
    return eps, b, total, AXIS


@triton.jit
def counted(a, count):
    return a / count


@triton.jit
def bounded(a, total, in_bounds):
    return a, total, in_bounds


@triton.jit
def scaled(a, total):
    return a * total


@triton.jit
def shift_total(deviation, part_total, total, part_count):
    return deviation, part_total, total, part_count


@triton.jit
def shift_third(third, part_total, total):
    return third + part_total - total


@triton.jit
def only_deviation(deviation):
    return deviation


@triton.jit
def normalize(deviation, a, part_scale, part_total, total, GUARD: tl.constexpr):
    return deviation, a, part_scale, part_total, total, GUARD


@triton.jit
def counted_total(total, count):
    return total, count


@triton.jit
def wrong(a, rank, tile):
    return a


@triton.jit
def rank(a, column):
    return a, column


def plain(a):
    return a


TOTAL = Statistic("total", "sum", term="element")
DEVIATION = Statistic("deviation", "sum", term="square", rebase="shift_total")
NORM = RowKernel("norm", __name__, ("a", "b"), (TOTAL, DEVIATION), ("normalize",), parameters=("eps",), padding=1.0)
THIRD = Statistic("third", "max", term="scaled", rebase="shift_third")
PEELED = KernelConfig("cooperative", 1, 128, programs_per_row=3, peel=True)
WHOLE_ROW, LOOP = KernelConfig("whole_row", 1, 512), KernelConfig("column_loop", 1, 128)
UNBASED = "uses total, which differs .*: declare rebase"

WRITTEN: list[tuple[dict[str, Any], KernelConfig, tuple[str, ...]]] = [
    (
        {}, PEELED, (
            "op_math.square(eps_number, b, total, AXIS=1)", "op_math.square(eps_number, b_edge, total, AXIS=0)",
            "return op_math.shift_total(second, part_first, first, part_count)",
            "op_math.normalize(deviation, a, part_scale, part_total, total, GUARD=True)",
        ),
    ),
    ({}, WHOLE_ROW, ("op_math.normalize(deviation, a, 1.0, total, total, GUARD=False)",)),  # no other part
    (
        {"statistics": (TOTAL, replace(DEVIATION, term="bounded"))}, PEELED,
        ("op_math.bounded(a, total, in_bounds)", "op_math.bounded(a_edge, total, in_bounds_edge)"),
    ),
    ({"column_writes": ("scaled",)}, WHOLE_ROW, ("op_math.scaled(a, total)",)),
    ({"writes": ("rank",)}, PEELED, ("rank_value = op_math.rank(a, column)",)),  # also the name of a variable
    (
        {"statistics": (TOTAL, DEVIATION, THIRD)}, LOOP,
        ("deviation = op_math.shift_total(", "third = op_math.shift_third(third, part_total, total)"),
    ),
    (  # the name of a tensor or a statistic stands for a function
        {
            "statistics": (replace(TOTAL, term="b"), Statistic("deviation", "sum", term="element")),
            "row_value": "counted_total", "row_writes": ("deviation", "counted_total"), "writes": ("a",),
        }, WHOLE_ROW, (
            "total = tl.sum(tl.where(in_bounds, b, 0.0), 1)", "tl.store(a_at, a, mask=in_bounds)",
            "tl.store(deviation_per_row + row_at + row_index, deviation)",
            "counted_total = op_math.counted_total(total, count)",
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "config", "expected"), WRITTEN)
def test_a_function_gets_the_arguments_that_it_names(
    changes: dict[str, Any], config: KernelConfig, expected: tuple[str, ...]
) -> None:
    kernel = replace(NORM, **changes)
    dtypes = ("float32",) * len(kernel.pointers)
    text = " ".join(
        written(kernel_call((64, 257), kernel=kernel, dtypes=dtypes, parameters=(1e-3,)), config).text.split()
    )
    assert [part for part in expected if part not in text] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"statistics": (replace(TOTAL, term="wrong"),)},
         r"\.wrong names rank, tile; as term of kernel 'norm' it can name AXIS, EXP2_BIAS, a, b, column, eps$"),
        ({"statistics": (TOTAL, DEVIATION, replace(THIRD, term="only_deviation"))},
         "only_deviation names deviation; as term of kernel 'norm' it can name"),
        ({"column_writes": ("scaled",), "neutral_padding": True},
         "scaled is the term of a sum .* uses total.*neutral_padding=False"),
        # without rebase, results are wrong where a row is divided
        ({"statistics": (TOTAL, replace(DEVIATION, rebase=None))}, f"square, the term of 'deviation', {UNBASED}"),
        ({"statistics": (TOTAL, Statistic("deviation", "sum", "counted"))},
         f"counted, the term of 'deviation', {UNBASED.replace('total', 'count')}"),
        # a number per row would be broadcast along the wrong axis of a tile
        ({"writes": ("total",)}, "needs a Triton function 'total' in .*: 'total' is not a number per element"),
        ({"row_writes": ("a",)}, "needs a Triton function 'a' in .*: 'a' is not a number per row"),
        ({"writes": ("missing",)}, "kernel 'norm' needs a Triton function 'missing' in test_op_functions"),
        ({"writes": ("plain",)}, "kernel 'norm' needs a Triton function 'plain' in test_op_functions"),
    ],
)  # fmt: skip
def test_a_wrong_function_is_an_error_that_names_it(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        constants_of(replace(NORM, **changes))
