"""The math of rotary embedding: x * cos + rotated(x) * sin. rotated(x) is (-second, first) for pairs of elements."""

import triton
import triton.language as tl

from tridal.kernels.numerics import rounded


@triton.jit
def _product(x, factor, ROUNDS: tl.constexpr, PRODUCT_DTYPE: tl.constexpr):
    """x * factor. With ROUNDS, it is rounded to PRODUCT_DTYPE."""
    product = x * factor
    return rounded(product, PRODUCT_DTYPE) if ROUNDS else product


@triton.jit
def first_rotated(
    first, second, cos_first, sin_first, SIGN: tl.constexpr, ROUNDS: tl.constexpr, PRODUCT_DTYPE: tl.constexpr
):  # fmt: skip
    """The first elements of the pairs, rotated by SIGN * the angle."""
    product = _product(first, cos_first, ROUNDS, PRODUCT_DTYPE)
    return product - SIGN * _product(second, sin_first, ROUNDS, PRODUCT_DTYPE)


@triton.jit
def second_rotated(
    first, second, cos_second, sin_second, SIGN: tl.constexpr, ROUNDS: tl.constexpr, PRODUCT_DTYPE: tl.constexpr
):  # fmt: skip
    """The second elements of the pairs."""
    product = _product(second, cos_second, ROUNDS, PRODUCT_DTYPE)
    return product + SIGN * _product(first, sin_second, ROUNDS, PRODUCT_DTYPE)


@triton.jit
def copied(rest):
    """The elements that are not rotated."""
    return rest
