"""A kernel with three inputs per element, three per column and three statistics, for test_row_tensors.py."""

import triton
import triton.language as tl

from tridal.kernels.row_kernel import RowKernel, Statistic


@triton.jit
def mixed(x, y, z, a):
    return x * a + y - z


@triton.jit
def square_deviation(x, y, z, a, total, count, AXIS: tl.constexpr):
    deviation = mixed(x, y, z, a) - tl.expand_dims(total / count, AXIS)
    return deviation * deviation


@triton.jit
def shift_squares(squares, part_total, total, part_count, count):
    shift = part_total / tl.where(part_count == 0, 1.0, part_count) - total / count
    return squares + part_count * shift * shift


@triton.jit
def size(z, c):
    return tl.abs(z * c)


@triton.jit
def inverse_deviation(squares, count, eps):
    return 1.0 / tl.sqrt(squares / count + eps)


@triton.jit
def mean(total, count):
    return total / count


@triton.jit
def normalised(x, y, z, a, b, total, count, inverse_deviation, factor, AXIS: tl.constexpr):
    deviation = mixed(x, y, z, a) - tl.expand_dims(total / count, AXIS)
    return deviation * tl.expand_dims(inverse_deviation, AXIS) * factor + b


@triton.jit
def scaled(y, largest, offset, AXIS: tl.constexpr):
    return y * tl.expand_dims(largest, AXIS) + offset


@triton.jit
def product(x, y):
    return x * y


THREE = RowKernel(
    name="three", module=__name__, reads=("x", "y", "z"), column_reads=("a", "b", "c"),
    parameters=("eps", "factor", "offset"),
    statistics=(
        Statistic("total", "sum", term="mixed"),
        Statistic("squares", "sum", term="square_deviation", rebase="shift_squares"),
        Statistic("largest", "max", term="size"),
    ),
    row_value="inverse_deviation", writes=("normalised", "scaled", "product"),
    row_writes=("largest", "inverse_deviation", "mean"), column_writes=("x", "product", "z"),
    live_tiles=6,
)  # fmt: skip
