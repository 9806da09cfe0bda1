"""The ops: the table of ops, and one file per op with its kernels, its reference and its gradient."""

from tridal.ops.row_op import RowOp
from tridal.ops.row_reduce import RowReduce
from tridal.runtime.row_kernel import RowKernel, Statistic

__all__ = ["RowKernel", "RowOp", "RowReduce", "Statistic"]
