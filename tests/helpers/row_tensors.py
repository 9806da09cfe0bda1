"""Kernels that read and write tensors with a number per element, per row and per column, for test_row_tensors.py."""

from dataclasses import replace

import triton
import triton.language as tl

from tridal.kernels.numerics import finite
from tridal.kernels.row_kernel import RowKernel, Statistic


@triton.jit
def square_deviation(x, total, count, AXIS: tl.constexpr):
    deviation = x - tl.expand_dims(total / count, AXIS)
    return deviation * deviation


@triton.jit
def shift_deviations(deviations, part_total, total, part_count, count):
    shift = part_total / tl.where(part_count == 0, 1.0, part_count) - total / count
    return deviations + part_count * shift * shift


@triton.jit
def mean(total, count):
    return total / count


@triton.jit
def inverse_deviation(deviations, count, eps):
    return 1.0 / tl.sqrt(deviations / count + eps)


@triton.jit
def layer_norm(x, total, inverse_deviation, count, weight, bias, AXIS: tl.constexpr):
    centred = x - tl.expand_dims(total / count, AXIS)
    return centred * tl.expand_dims(inverse_deviation, AXIS) * weight + bias


LAYER_NORM = RowKernel(
    name="layer_norm", module=__name__, reads=("x",), column_reads=("weight", "bias"), parameters=("eps",),
    statistics=(
        Statistic("total", "sum", term="x"),
        Statistic("deviations", "sum", term="square_deviation", rebase="shift_deviations"),
    ),
    row_value="inverse_deviation", writes=("layer_norm",), row_writes=("mean", "inverse_deviation"), live_tiles=2,
)  # fmt: skip


MOMENTS = replace(
    LAYER_NORM, name="moments", column_reads=(), writes=(), row_writes=("mean", "inverse_deviation"), live_tiles=1
)
"""Numbers per row whose terms need the number of elements."""


@triton.jit
def square_of_sum(x, residual):
    return (x + residual) * (x + residual)


@triton.jit
def inverse_root(squares, count, eps):
    return 1.0 / tl.sqrt(squares / count + eps)


@triton.jit
def rms_norm(x, residual, inverse_root, weight, AXIS: tl.constexpr):
    return (x + residual) * tl.expand_dims(inverse_root, AXIS) * weight


@triton.jit
def residual_sum(x, residual):
    return x + residual


RMS_NORM = RowKernel(
    name="rms_norm", module=__name__, reads=("x", "residual"), column_reads=("weight",), parameters=("eps",),
    statistics=(Statistic("squares", "sum", term="square_of_sum"),), row_value="inverse_root",
    writes=("rms_norm", "residual_sum"), row_writes=("inverse_root",), neutral_padding=True,
)  # fmt: skip


@triton.jit
def weighted(dy, weight):
    return dy * weight


@triton.jit
def weighted_deviation(dy, x, weight, mean, AXIS: tl.constexpr):
    return dy * weight * (x - tl.expand_dims(mean, AXIS))


@triton.jit
def layer_norm_gradient(dy, x, weight, mean, inverse, total, dot, count, AXIS: tl.constexpr):
    centred = (x - tl.expand_dims(mean, AXIS)) * tl.expand_dims(inverse * inverse * dot / count, AXIS)
    return (dy * weight - tl.expand_dims(total / count, AXIS) - centred) * tl.expand_dims(inverse, AXIS)


@triton.jit
def weight_gradient(dy, x, mean, inverse, AXIS: tl.constexpr):
    return dy * (x - tl.expand_dims(mean, AXIS)) * tl.expand_dims(inverse, AXIS)


@triton.jit
def bias_gradient(dy):
    return dy


LAYER_NORM_BACKWARD = RowKernel(
    name="layer_norm_backward", module=__name__, reads=("dy", "x"), row_reads=("mean", "inverse"),
    column_reads=("weight",), writes=("layer_norm_gradient",), column_writes=("weight_gradient", "bias_gradient"),
    statistics=(Statistic("total", "sum", term="weighted"), Statistic("dot", "sum", term="weighted_deviation")),
    live_tiles=4,
)  # fmt: skip


@triton.jit
def exp_term(x, row_max, AXIS: tl.constexpr):
    return tl.exp(x - tl.expand_dims(finite(row_max), AXIS))


@triton.jit
def shift_sum(total, part_row_max, row_max):
    return total * tl.exp(part_row_max - finite(row_max))


@triton.jit
def log_sum_exp(row_max, total):
    return row_max + tl.log(total)


@triton.jit
def loss(picked, log_sum_exp):
    return log_sum_exp - picked


@triton.jit
def lse(log_sum_exp):
    return log_sum_exp


CROSS_ENTROPY = RowKernel(
    name="cross_entropy", module=__name__, reads=("x",), row_index="target", row_writes=("loss", "lse"), writes=(),
    statistics=(
        Statistic("row_max", "max", term="x"),
        Statistic("total", "sum", term="exp_term", rebase="shift_sum"),
    ),
    row_value="log_sum_exp", padding=float("-inf"), neutral_padding=True, live_tiles=1,
)  # fmt: skip


@triton.jit
def cross_entropy_gradient(x, lse, dy, target, column, AXIS: tl.constexpr):
    probability = tl.exp(x - tl.expand_dims(lse, AXIS))
    one_hot = tl.where(column == tl.expand_dims(target, AXIS), 1.0, 0.0)
    return (probability - one_hot) * tl.expand_dims(dy, AXIS)


CROSS_ENTROPY_BACKWARD = RowKernel(
    name="cross_entropy_backward", module=__name__, reads=("x",), row_reads=("lse", "dy"), row_index="target",
    statistics=(), writes=("cross_entropy_gradient",), live_tiles=1,
)  # fmt: skip
