"""The declarations of the ops. A third party declares its own `Op` with the names of this module."""

from tridal.kernels.row_kernel import RowKernel, Statistic
from tridal.ops.argument_checks import (
    INTEGERS,
    check_bool,
    check_choice,
    check_dtype,
    check_floating,
    check_index,
    check_number,
    check_shape,
    check_tensor,
    wrong,
)
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
from tridal.ops.op import NoKernel, Op, RowOp
from tridal.ops.row_math import compute, compute_gradient
from tridal.ops.row_reduce import RowReduce, accumulator, has_tangent
from tridal.ops.scale_mask import check_scale_mask
from tridal.ops.signature import Arguments, is_block_shape

__all__ = [
    "DTYPE", "INTEGERS", "SCALE_MASK", "Argument", "Arguments", "Named", "NoKernel", "Op", "Result", "Role",
    "RowKernel", "RowOp", "RowReduce", "Statistic", "accumulator", "check_bool", "check_choice", "check_dtype",
    "check_floating", "check_index", "check_number", "check_scale_mask", "check_shape", "check_tensor", "compute",
    "compute_gradient", "has_tangent", "index_per_row", "is_block_shape", "number", "per_column", "per_element",
    "per_row", "sum_dtype", "whole", "wrong",
]  # fmt: skip
__dir__ = __all__.copy
