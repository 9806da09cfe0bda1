"""The declarations of the ops. A third party declares its own `Op` with the names of this module."""

from tridal.ops.arguments import (
    DTYPE,
    SCALE_MASK,
    Argument,
    Named,
    Result,
    Role,
    index_per_row,
    number,
    per_column,
    per_element,
    per_row,
    sum_dtype,
    whole,
)
from tridal.ops.op import NoKernel, Op
from tridal.ops.row_maths import compute, compute_gradient
from tridal.ops.row_op import RowOp
from tridal.ops.row_reduce import RowReduce, accumulator
from tridal.ops.scale_mask import check_scale_mask
from tridal.runtime.row_kernel import RowKernel, Statistic

__all__ = [
    "DTYPE", "SCALE_MASK", "Argument", "Named", "NoKernel", "Op", "Result", "Role", "RowKernel", "RowOp", "RowReduce",
    "Statistic", "accumulator", "check_scale_mask", "compute", "compute_gradient", "index_per_row", "number",
    "per_column", "per_element", "per_row", "sum_dtype", "whole",
]  # fmt: skip
