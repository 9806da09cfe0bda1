"""The declarations of the ops. A third party declares its own `Op` with the names of this module."""

from tridal.ops.arguments import Result, index_per_row, number, per_column, per_element, per_row
from tridal.ops.op import NoKernel, Op
from tridal.ops.row_op import RowOp
from tridal.ops.row_reduce import RowReduce
from tridal.runtime.row_kernel import RowKernel, Statistic

__all__ = [
    "NoKernel", "Op", "Result", "RowKernel", "RowOp", "RowReduce", "Statistic", "index_per_row", "number", "per_column",
    "per_element", "per_row",
]  # fmt: skip
