"""Scale, mask and causal masking of elements after they are loaded, and loads with all of it."""

import triton
import triton.language as tl

from tridal.kernels.tiles import index_along, load_tile, row_index, tile_pointers

_INF = tl.constexpr(float("inf"))


@triton.jit
def scale_mask(
    x, in_bounds, block, row, column, inner, scale, mask_ptr, queries, heads,
    mask_batch, mask_head, mask_query, mask_col, CAUSAL: tl.constexpr, MASK_BYTES: tl.constexpr,
    INT64_OFFSETS: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Returns scale * x + mask, and -inf where a boolean mask is 0, where CAUSAL excludes a column, or out of bounds.

    Rows are numbered: row n is query n % queries of head n // queries % heads of batch n // queries // heads. The mask
    has a stride for each of these, zero where it is broadcast. The mask of a tile starts at a multiple of MASK_BYTES.
    """
    if scale is not None:
        x = tl.where(in_bounds, x * scale, -_INF)
    if CAUSAL or mask_ptr is not None:
        number = tl.cast(block * inner + row, tl.int32) + row_index(ROWS, AXIS, False)
        query = number % queries
        along = index_along(COLS, AXIS, INT64_OFFSETS)
    if mask_ptr is not None:
        start = tl.cast(number // queries // heads, tl.int64) * mask_batch + tl.cast(query, tl.int64) * mask_query
        start += tl.cast(number // queries % heads, tl.int64) * mask_head
        pointers = mask_ptr + (start + column * tl.cast(mask_col, tl.int64)) + along * mask_col
        if MASK_BYTES > 1:
            pointers = tl.multiple_of(pointers, [1, MASK_BYTES])
        mask = tl.load(pointers, mask=in_bounds, other=0)
        if mask_ptr.dtype.element_ty == tl.uint8:
            x = tl.where(mask != 0, x, -_INF)
        else:
            x += mask.to(x.dtype)
    if CAUSAL:
        x = tl.where(along <= query - column, x, -_INF)
    return x


@triton.jit
def load_elements(
    in_ptr, in2_ptr, block, row, column, in_bounds, inner, in_outer, in_inner, in_col, out_outer, out_inner, out_col,
    scale, mask_ptr, queries, heads, mask_batch, mask_head, mask_query, mask_col, CAUSAL: tl.constexpr,
    MASK_BYTES: tl.constexpr, PADDING: tl.constexpr, INT64_OFFSETS: tl.constexpr, AXIS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, PEEL: tl.constexpr, SAME_MISALIGNMENT: tl.constexpr, IS_FIRST: tl.constexpr,
    ACC_DTYPE: tl.constexpr,
):  # fmt: skip
    """Loads, scales and masks the elements of a tile, and loads those of a second tensor. Returns 0 without it.

    IS_FIRST: they will be loaded again, from the core's cache.
    """
    pointers = tile_pointers(
        in_ptr, block, row, column, in_outer, in_inner, in_col, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL
    )  # fmt: skip
    x = load_tile(pointers, in_bounds, PADDING, True, IS_FIRST, not IS_FIRST).to(ACC_DTYPE)
    x = scale_mask(
        x, in_bounds, block, row, column, inner, scale, mask_ptr, queries, heads, mask_batch, mask_head, mask_query,
        mask_col, CAUSAL, MASK_BYTES, INT64_OFFSETS, AXIS, ROWS, COLS,
    )  # fmt: skip
    if in2_ptr is None:
        return x, 0.0
    else:
        pointers2 = tile_pointers(
            in2_ptr, block, row, column, out_outer, out_inner, out_col, INT64_OFFSETS, AXIS, ROWS, COLS,
            SAME_MISALIGNMENT,
        )  # fmt: skip
        return x, load_tile(pointers2, in_bounds, PADDING, True, IS_FIRST, not IS_FIRST).to(ACC_DTYPE)
