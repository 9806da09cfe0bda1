"""Math functions for ops: exp, reciprocal, sigmoid, normal distribution, rounding, and a sum with a residual.

EXP2_BIAS is the mean relative error of the device's exp2, see `KernelConfig.exp2_bias`. If it is not zero, results are
float32 and functions correct their rounding errors. REFINE, set for wide tiles, also corrects numbers per row.
"""

import triton
import triton.language as tl

_INF = tl.constexpr(float("inf"))


@triton.jit
def exp(x, EXP2_BIAS: tl.constexpr):
    """Returns exp(x). Uses the device's exp2 if EXP2_BIAS is given, and corrects its errors if EXP2_BIAS is not 0."""
    if EXP2_BIAS is None:
        e = tl.exp(x)
    else:
        if EXP2_BIAS != 0:
            # exp(-150) is zero in float32. Smaller values, -inf included, would make the correction NaN.
            x = tl.maximum(x, -150.0, propagate_nan=tl.PropagateNan.ALL)
        power = x * 1.44269504
        e = tl.exp2(power)
        if EXP2_BIAS != 0:
            rounding = tl.fma(x, 1.925963033500252e-08, tl.fma(x, 1.44269502162933349609375, -power))
            e = tl.fma(e, tl.fma(rounding, 0.6931471805599453, -EXP2_BIAS), e)
    return e


@triton.jit
def exp_sub(x, shift, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr, UNNORMALIZED: tl.constexpr):
    """Returns exp(x - shift) for one shift per row. With UNNORMALIZED, each row may be multiplied by a constant.

    UNNORMALIZED saves the subtraction. The rounding of shift * log2(e) then multiplies the whole row by one constant,
    which could overflow for shifts beyond 2^30. There, log2(e) is omitted: all smaller x give nearly 0 anyway.
    """
    if (EXP2_BIAS is not None and EXP2_BIAS == 0) and UNNORMALIZED:
        log2e_scale = tl.where(tl.abs(shift) < 1073741824.0, 1.44269504, 1.0)
        e = tl.exp2(tl.fma(x, tl.expand_dims(log2e_scale, AXIS), tl.expand_dims(-shift * log2e_scale, AXIS)))
    else:
        e = exp(x - tl.expand_dims(shift, AXIS), EXP2_BIAS)
    return e


@triton.jit
def reciprocal(x, EXP2_BIAS: tl.constexpr, REFINE: tl.constexpr):
    """Returns 1 / x. The device's division can be wrong by two units in the last place; REFINE corrects that."""
    inverse = 1.0 / x
    if EXP2_BIAS is not None and EXP2_BIAS != 0:
        if REFINE:
            inverse = tl.fma(tl.fma(-x, inverse, 1.0), inverse, inverse)
    return inverse


@triton.jit
def sigmoids(x, EXP2_BIAS: tl.constexpr):
    """Returns sigmoid(x) and sigmoid(-x). The exponential is at most 1, so it does not overflow."""
    small = exp(-tl.abs(x), EXP2_BIAS)
    large = 1.0 / (1.0 + small)
    return tl.where(x < 0, small * large, large), tl.where(x < 0, large, small * large)


@triton.jit
def normal_cdf(x, EXP2_BIAS: tl.constexpr):
    """Returns the distribution function of the standard normal distribution, which is gelu(x) / x.

    With EXP2_BIAS 0, the smaller one of the function of x and -x is exp2 of a polynomial, with a relative error of at
    most 8e-6 up to |x| = 6.5. Beyond, it is below 5e-11, and falls to 0. The minimax polynomial of log2 has degree 7;
    with degree 6, the error is 7e-5. GeGLU of 16-bit elements has 22 instructions per element instead of 42 with
    `tl.erf`, and its gradient 33 instead of 53 (sm_90, Triton 3.7).
    """
    if EXP2_BIAS is not None and EXP2_BIAS == 0:
        size = tl.abs(x)
        power = tl.fma(size, -1.7577765447640559e-06, 5.993657759972848e-05)
        power = tl.fma(size, power, -0.0009163628565147519)
        power = tl.fma(size, power, 0.008447385393083096)
        power = tl.fma(size, power, -0.05382449924945831)
        power = tl.fma(size, power, -0.4586157202720642)
        power = tl.fma(size, power, -1.1511801481246948)
        smaller = tl.exp2(tl.fma(size, power, -1.0000038146972656))
        return tl.where(x < 0, smaller, 1.0 - smaller)
    else:
        return 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)


@triton.jit
def finite(row_max):
    """Returns row_max, or 0 where it is -inf, because -inf - -inf is NaN."""
    return tl.where(row_max == -_INF, 0.0, row_max)


@triton.jit
def rounded(x, DTYPE: tl.constexpr):
    """Returns x rounded to DTYPE, as numbers of its own dtype. A NaN stays NaN.

    Intel's compilers remove a conversion to 16 bits and back. They keep it if an operation on the bits is between: the
    minimum changes no number, because 0x7FFF is a NaN.
    """
    y = x.to(DTYPE)
    BITS: tl.constexpr = y.dtype.primitive_bitwidth
    if BITS == 16:
        y = tl.minimum(y.to(tl.int16, bitcast=True), tl.cast(0x7FFE, tl.int16)).to(DTYPE, bitcast=True)
    return y.to(x.dtype)


@triton.jit
def residual_sum(x, residual, SUM_DTYPE: tl.constexpr):
    """Returns x + residual, rounded to the dtype in which the sum is stored. Returns x without a residual."""
    if residual is None:
        return x
    else:
        return rounded(x + residual, SUM_DTYPE)
