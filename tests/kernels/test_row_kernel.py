"""Declarations of row kernels: the derived numbers, and the message for each fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tridal.kernels.row_kernel import RowKernel, Statistic
from tridal.library.softmax.softmax import LOG_SOFTMAX, SOFTMAX

MEAN = Statistic("mean", "sum", term="element")
SPREAD = Statistic("spread", "accurate_sum", term="square", rebase="shift_mean")
TOP = Statistic("largest", "top", term="element")
KERNEL = RowKernel(
    name="norm", module="norm", reads=("x",), statistics=(MEAN, SPREAD), writes=("normalize",), parameters=("eps",)
)

NO_REBASE = "kernel 'norm': the first statistic has no rebase, because its term uses no other statistic"


def test_a_correct_declaration_has_no_fault() -> None:
    for kernel in (KERNEL, SOFTMAX.forward, SOFTMAX.backward, LOG_SOFTMAX.forward, LOG_SOFTMAX.backward):
        assert kernel.fault() is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"live_tiles": 0}, "kernel 'norm': live_tiles: expected an integer from 1 to 16, found 0"),
        ({"reads": ()}, "kernel 'norm' needs a tensor to read, and one to write with a number per element or per row"),
        ({"statistics": (SPREAD,)}, NO_REBASE),
        ({"writes": (), "row_writes": ("mean",), "added": "other"},
         "kernel 'norm' adds 'other' to nothing: it writes no tensor with a number per element"),
        ({"added": "x"}, "kernel 'norm' uses one name for two things: x, eps, mean, spread, x"),
        ({"statistics": (MEAN, MEAN)}, "kernel 'norm' uses one name for two things: x, eps, mean, mean"),
        ({"statistics": (TOP, replace(TOP, name="best"))},
         "kernel 'norm': expected one statistic that is a 'top', found largest and best"),
        ({"top_writes": ("best",)},
         "kernel 'norm': top_writes are numbers of chosen elements: declare a statistic that is a 'top'"),
        ({"top_reads": ("grad",)},
         "kernel 'norm': top_reads are numbers of some columns: declare top_index, the indices of the columns"),
        ({"statistics": (TOP,)}, "kernel 'norm': expected the constant TOP, the number of elements that are chosen"),
        ({"top_index": "columns", "constants": (("TOP", 2),), "scale_mask": True},
         "kernel 'norm': a kernel that chooses elements has no scale_mask"),
        ({"statistics": (replace(MEAN, reduce="mean"),)},
         "kernel 'norm': unknown reduction 'mean' (known: max, sum, accurate_sum, top)"),
    ],
)  # fmt: skip
def test_problem_names_the_kernel_and_its_fault(changes: dict[str, Any], message: str) -> None:
    assert replace(KERNEL, **changes).fault() == message


def test_passes_count_a_rebased_statistic_and_the_output() -> None:
    assert KERNEL.passes == 3
    assert replace(KERNEL, statistics=(MEAN,)).passes == 2
    assert replace(KERNEL, statistics=(MEAN, replace(SPREAD, rebase=None))).passes == 2


def test_an_added_tensor_belongs_to_the_first_output() -> None:
    kernel = replace(KERNEL, added="other", row_writes=("mean",))
    assert kernel.fault() is None
    assert kernel.pointers == ("normalize_result", "mean_per_row", "x_ptr", "other_ptr")
    assert kernel.writing("mean").pointers == kernel.writing("mean").bind(other=None).pointers
    assert kernel.writing("mean").added is None
    assert kernel.bind(other=None).pointers == ("normalize_result", "mean_per_row", "x_ptr")


def test_numbers_for_all_rows_are_another_kernel() -> None:
    kernel = replace(KERNEL, row_reads=("root", "share"))
    assert kernel.with_numbers() is kernel
    assert kernel.with_numbers("share").for_all_rows == ("share",)
    assert kernel.with_numbers("share") is kernel.with_numbers("share")
    assert kernel.with_numbers("share").pointers == kernel.pointers


def test_bind_replaces_tensors_and_parameters_by_constants() -> None:
    kernel = replace(KERNEL, column_reads=("weight", "bias"), row_reads=("root",), row_index="target")
    bound = kernel.bind(weight=None, target=None, eps=1e-5, OUT_DTYPE="bfloat16")
    assert (bound.column_reads, bound.row_reads, bound.row_index, bound.parameters) == (("bias",), ("root",), None, ())
    assert bound.constants == (("weight", None), ("target", None), ("eps", 1e-5), ("OUT_DTYPE", "bfloat16"))
    assert bound.pointers == ("normalize_result", "x_ptr", "root_ptr", "bias_ptr")
    assert bound.fault() is None
    assert bound is kernel.bind(weight=None, target=None, eps=1e-5, OUT_DTYPE="bfloat16")
    assert bound.bind(weight=1).fault() is not None, "a name cannot be bound twice"
