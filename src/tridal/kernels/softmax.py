"""The one softmax source that every device compiles: forward and backward, softmax and log_softmax. Imports triton only.

A tensor is `outer` blocks of `inner` rows of `cols` elements, each with a stride in elements. A tile is ROWS neighbouring
rows of one block by COLS columns; the reduction runs along AXIS of it: 1 where a row is contiguous ([ROWS, COLS]), 0
where neighbouring rows are ([COLS, ROWS]), so that a tile's last axis is contiguous in memory whenever one of them is.

Programs stride over tiles, so any number of them computes the same thing. Elements are computed in ACC, the dtype of sums.
WIDE makes offsets inside a tile 64-bit; those of a tile's corner always are. The source stays inside Triton 3.2.
"""

import triton
import triton.language as tl

_INF = tl.constexpr(float("inf"))


@triton.jit
def _corner(pointer, block, row, outer_stride, inner_stride):
    """Pointer to the first element of a tile."""
    return pointer + tl.cast(block, tl.int64) * outer_stride + tl.cast(row, tl.int64) * inner_stride


@triton.jit
def _indices(SIZE: tl.constexpr, AXIS: tl.constexpr, WIDE: tl.constexpr):
    """0 .. SIZE-1 as a vector along the axis that is not AXIS."""
    index = tl.arange(0, SIZE)
    return tl.expand_dims(tl.cast(index, tl.int64) if WIDE else index, AXIS)


@triton.jit
def forward_tile(
    out_ptr, in_ptr, outer, inner, cols,
    in_outer, in_inner, in_col, out_outer, out_inner, out_col,
    LOG: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Whole rows in one tile: each element is read once and written once."""
    row = _indices(ROWS, AXIS, WIDE)
    col = _indices(COLS, 1 - AXIS, WIDE)
    in_offsets = row * in_inner + col * in_col
    out_offsets = row * out_inner + col * out_col
    tiles = tl.cdiv(inner, ROWS)
    for tile in tl.range(tl.program_id(0), outer * tiles, tl.num_programs(0), num_stages=STAGES):
        block = tile // tiles
        first = (tile - block * tiles) * ROWS
        mask = (row < inner - first) & (col < cols)
        source = _corner(in_ptr, block, first, in_outer, in_inner)
        x = tl.load(source + in_offsets, mask=mask, other=-_INF).to(ACC)
        x -= tl.expand_dims(tl.max(x, AXIS), AXIS)
        e = tl.exp(x)
        total = tl.expand_dims(tl.sum(e, AXIS), AXIS)
        y = x - tl.log(total) if LOG else e / total
        target = _corner(out_ptr, block, first, out_outer, out_inner)
        tl.store(target + out_offsets, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def forward_looped(
    out_ptr, in_ptr, outer, inner, cols,
    in_outer, in_inner, in_col, out_outer, out_inner, out_col,
    LOG: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Rows wider than a tile: one pass over column tiles for (max, sum) online, a second to normalise."""
    row = _indices(ROWS, AXIS, WIDE)
    col = _indices(COLS, 1 - AXIS, WIDE)
    in_offsets = row * in_inner + col * in_col
    out_offsets = row * out_inner + col * out_col
    tiles = tl.cdiv(inner, ROWS)
    for tile in tl.range(tl.program_id(0), outer * tiles, tl.num_programs(0)):
        block = tile // tiles
        first = (tile - block * tiles) * ROWS
        row_mask = row < inner - first
        source = _corner(in_ptr, block, first, in_outer, in_inner)
        target = _corner(out_ptr, block, first, out_outer, out_inner)
        top = tl.full([ROWS], -_INF, ACC)
        total = tl.zeros([ROWS], ACC)
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            mask = row_mask & (col < cols - start)
            step = tl.cast(start, tl.int64) * in_col
            x = tl.load(source + step + in_offsets, mask=mask, other=-_INF).to(ACC)
            higher = tl.maximum(top, tl.max(x, AXIS))
            # As long as a row has shown nothing but -inf, -inf - -inf must not make its sum NaN.
            shift = tl.where(higher == -_INF, 0.0, higher)
            total = total * tl.exp(top - shift) + tl.sum(tl.exp(x - tl.expand_dims(shift, AXIS)), AXIS)
            top = higher
        top = tl.expand_dims(top, AXIS)
        total = tl.expand_dims(total, AXIS)
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            mask = row_mask & (col < cols - start)
            step = tl.cast(start, tl.int64)
            x = tl.load(source + step * in_col + in_offsets, mask=mask, other=-_INF).to(ACC) - top
            y = x - tl.log(total) if LOG else tl.exp(x) / total
            tl.store(target + step * out_col + out_offsets, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def backward_tile(
    out_ptr, in_ptr, y_ptr, outer, inner, cols,
    in_outer, in_inner, in_col, out_outer, out_inner, out_col,
    LOG: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """dX = Y * (dY - sum(Y * dY)), or dX = dY - exp(Y) * sum(dY) for log_softmax. `in` is dY; Y has the strides of dX."""
    row = _indices(ROWS, AXIS, WIDE)
    col = _indices(COLS, 1 - AXIS, WIDE)
    in_offsets = row * in_inner + col * in_col
    out_offsets = row * out_inner + col * out_col
    tiles = tl.cdiv(inner, ROWS)
    for tile in tl.range(tl.program_id(0), outer * tiles, tl.num_programs(0), num_stages=STAGES):
        block = tile // tiles
        first = (tile - block * tiles) * ROWS
        mask = (row < inner - first) & (col < cols)
        dy = tl.load(_corner(in_ptr, block, first, in_outer, in_inner) + in_offsets, mask=mask, other=0.0).to(ACC)
        y = tl.load(_corner(y_ptr, block, first, out_outer, out_inner) + out_offsets, mask=mask, other=0.0).to(ACC)
        total = tl.expand_dims(tl.sum(dy if LOG else y * dy, AXIS), AXIS)
        dx = dy - tl.exp(y) * total if LOG else y * (dy - total)
        target = _corner(out_ptr, block, first, out_outer, out_inner)
        tl.store(target + out_offsets, dx.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def backward_looped(
    out_ptr, in_ptr, y_ptr, outer, inner, cols,
    in_outer, in_inner, in_col, out_outer, out_inner, out_col,
    LOG: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of rows wider than a tile: one pass over column tiles for the sum, a second for dX."""
    row = _indices(ROWS, AXIS, WIDE)
    col = _indices(COLS, 1 - AXIS, WIDE)
    in_offsets = row * in_inner + col * in_col
    out_offsets = row * out_inner + col * out_col
    tiles = tl.cdiv(inner, ROWS)
    for tile in tl.range(tl.program_id(0), outer * tiles, tl.num_programs(0)):
        block = tile // tiles
        first = (tile - block * tiles) * ROWS
        row_mask = row < inner - first
        dy_ptr = _corner(in_ptr, block, first, in_outer, in_inner) + in_offsets
        saved_ptr = _corner(y_ptr, block, first, out_outer, out_inner) + out_offsets
        target = _corner(out_ptr, block, first, out_outer, out_inner) + out_offsets
        total = tl.zeros([ROWS], ACC)
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            mask = row_mask & (col < cols - start)
            step = tl.cast(start, tl.int64)
            dy = tl.load(dy_ptr + step * in_col, mask=mask, other=0.0).to(ACC)
            if LOG:
                total += tl.sum(dy, AXIS)
            else:
                y = tl.load(saved_ptr + step * out_col, mask=mask, other=0.0).to(ACC)
                total += tl.sum(y * dy, AXIS)
        total = tl.expand_dims(total, AXIS)
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            mask = row_mask & (col < cols - start)
            step = tl.cast(start, tl.int64)
            dy = tl.load(dy_ptr + step * in_col, mask=mask, other=0.0).to(ACC)
            y = tl.load(saved_ptr + step * out_col, mask=mask, other=0.0).to(ACC)
            dx = dy - tl.exp(y) * total if LOG else y * (dy - total)
            tl.store(target + step * out_col, dx.to(out_ptr.dtype.element_ty), mask=mask)
