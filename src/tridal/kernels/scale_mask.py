"""Scale, mask and causal masking of elements after they are loaded."""

import triton
import triton.language as tl

from tridal.kernels.tiles import index_along, row_index

INF = float("inf")


@triton.jit
def scale_mask(
    x, in_bounds, block, row, column, inner, scale, score_mask, queries, heads, mask_batch, mask_head, mask_query,
    mask_col, BYTES: tl.constexpr, AXIS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Returns scale * x + mask, and -inf where a boolean mask is 0 or CAUSAL excludes a column.

    Elements out of bounds stay -inf, which is their PADDING, with any scale.

    Rows are numbered: row n is query n % queries of head n // queries % heads of batch n // queries // heads. The mask
    has a stride for each of these, zero where it is broadcast. The mask of a tile starts at a multiple of BYTES.
    """
    if scale is not None:
        x = tl.where(in_bounds, x * scale, -INF)
    if CAUSAL or score_mask is not None:
        number = tl.cast(block * inner + row, tl.int32) + row_index(AXIS, False)
        query = number % queries
        along = index_along(COLS, AXIS, INT64_OFFSETS)
    if score_mask is not None:
        start = tl.cast(number // queries // heads, tl.int64) * mask_batch + tl.cast(query, tl.int64) * mask_query
        start += tl.cast(number // queries % heads, tl.int64) * mask_head
        pointers = score_mask + (start + column * tl.cast(mask_col, tl.int64)) + along * mask_col
        if BYTES > 1:
            pointers = tl.multiple_of(pointers, [1, BYTES])
        mask = tl.load(pointers, mask=in_bounds, other=0)
        if score_mask.dtype.element_ty == tl.uint8:
            x = tl.where(mask != 0, x, -INF)
        else:
            x += mask.to(x.dtype)
    if CAUSAL:
        x = tl.where(along <= query - column, x, -INF)
    return x
