"""Indices, bounds and pointers of the elements of a tile, and of the unaligned head and tail of its rows.

A tile is ROWS neighbouring rows by COLS columns. The reduction runs along AXIS. If rows are contiguous, AXIS is 1 and a
tile is [ROWS, COLS]. If neighbouring rows are contiguous, AXIS is 0 and a tile is [COLS, ROWS]. So if an axis of a
tile is contiguous in memory, it is the last one.
"""

import triton
import triton.language as tl


@triton.jit
def index_along(SIZE: tl.constexpr, AXIS: tl.constexpr, INT64: tl.constexpr):
    """Returns the indices 0 .. SIZE-1 along AXIS of a tile."""
    index = tl.arange(0, SIZE)
    return tl.expand_dims(tl.cast(index, tl.int64) if INT64 else index, 1 - AXIS)


@triton.jit
def row_index(ROWS: tl.constexpr, AXIS: tl.constexpr, INT64: tl.constexpr):
    """Returns the indices 0 .. ROWS-1 of a tile's rows. For one row, returns a scalar, to keep row addresses scalar."""
    if ROWS == 1:
        return 0
    else:
        return index_along(ROWS, 1 - AXIS, INT64)


@triton.jit
def head_length(start, cols, VECTOR: tl.constexpr):
    """Returns the length of a row's head. The row starts `start` elements after a vector boundary."""
    return tl.minimum(tl.cast(-start & (VECTOR - 1), tl.int32), cols)


@triton.jit
def interleaved_position(tile, inner, long_blocks, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """Returns the block, the first row and the number of rows of the block for a tile of interleaved blocks.

    Row i of the tensor is row i // BLOCKS of block i % BLOCKS. Neighbouring tiles belong to neighbouring blocks.
    """
    block, row = tl.cast(tile % BLOCKS, tl.int64), tl.cast(tile // BLOCKS, tl.int64) * ROWS
    return block, row, tl.where(block < long_blocks, inner, inner - 1)


@triton.jit
def rows_left(inner, row, ROWS: tl.constexpr):
    """Returns the number of rows from `row` to the end of the block, at most ROWS, in 32 bits."""
    return tl.cast(tl.minimum(inner - row, ROWS), tl.int32)


@triton.jit
def tile_bounds(
    tile, rank, inner, cols, long_blocks, misalignment, outer_stride, inner_stride,
    INT64_OFFSETS: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, PEEL: tl.constexpr,
    VECTOR: tl.constexpr, MASKS_TERMS: tl.constexpr,
):  # fmt: skip
    """Returns the position and the bounds of the part of a tile that program `rank` of a row computes.

    Returns block, first row, first column, bounds; columns and bounds of the head and tail. With PEEL, the first column
    differs between rows, and rank 0 computes the head and tail of all rows as a tile [2 * VECTOR, ROWS]. MASKS_TERMS
    says whether the bounds also mask terms. They are then compared in 32 bits: some devices compare no 64-bit tiles.
    """
    if long_blocks is None:
        tiles = tl.cdiv(inner, ROWS)
        block = tl.cast(tile // tiles, tl.int64)
        row = tl.cast(tile % tiles, tl.int64) * ROWS
    else:
        block, row, inner = interleaved_position(tile, inner, long_blocks, ROWS, VECTOR)
    column = rank * COLS
    if PEEL:
        start = misalignment + block * outer_stride + row * inner_stride
        if long_blocks is None:
            head = head_length(start + row_index(ROWS, AXIS, INT64_OFFSETS) * inner_stride, cols, VECTOR)
            body = (cols - head) // VECTOR * VECTOR - column
        else:
            head = head_length(start, cols, VECTOR)  # all rows of a block have the same head
            body = tl.where(row < inner, (cols - head) // VECTOR * VECTOR - column, 0)
        if ROWS == 1:
            in_bounds = index_along(COLS, AXIS, INT64_OFFSETS) < tl.multiple_of(body, VECTOR)
        else:
            body = tl.where(row_index(ROWS, AXIS, INT64_OFFSETS) < inner - row, body, 0)
            in_bounds = index_along(COLS, AXIS, INT64_OFFSETS) < tl.multiple_of(body, [VECTOR, VECTOR])
        edge = index_along(2 * VECTOR, 0, False)
        head_end = head
        if long_blocks is None:
            head_end = head_length(start + row_index(ROWS, 0, INT64_OFFSETS) * inner_stride, cols, VECTOR)
        tail = head_end + (cols - head_end) // VECTOR * VECTOR + edge - VECTOR
        edge_column = tl.where(edge < VECTOR, edge, tail)
        # The cast makes a number a tensor: Triton 3.3's interpreter cannot combine a tensor with a Python bool.
        edge_in_bounds = (edge_column < tl.where(edge < VECTOR, head_end, cols)) & (tl.cast(rank, tl.int32) == 0)
        if ROWS > 1 or long_blocks is not None:
            edge_in_bounds = edge_in_bounds & (row_index(ROWS, 0, INT64_OFFSETS) < inner - row)
        return block, row, head + column, in_bounds, edge_column, edge_in_bounds
    else:
        in_bounds = index_along(COLS, AXIS, INT64_OFFSETS) < cols - column
        if ROWS > 1:
            rows = rows_left(inner, row, ROWS) if MASKS_TERMS else inner - row
            in_bounds = (row_index(ROWS, AXIS, INT64_OFFSETS) < rows) & in_bounds
        return block, row, column, in_bounds, column, column < cols


@triton.jit
def tile_pointers(
    pointer, block, row, column, outer_stride, inner_stride, col_stride,
    INT64_OFFSETS: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Returns pointers to ROWS rows and COLS columns from `row`, `column`. If ALIGNED, a vector starts at `column`."""
    start = pointer + block * outer_stride + row * inner_stride
    start += row_index(ROWS, AXIS, INT64_OFFSETS) * inner_stride + column * tl.cast(col_stride, tl.int64)
    if ALIGNED:
        if ROWS == 1:
            start = tl.multiple_of(start, 16)
        else:
            start = tl.multiple_of(start, [16, 16])
    return start + index_along(COLS, AXIS, INT64_OFFSETS) * col_stride


@triton.jit
def edge_pointers(
    pointer, block, row, edge_column, outer_stride, inner_stride, col_stride, INT64_OFFSETS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Returns pointers to the heads and tails of ROWS rows, whose columns are `edge_column`."""
    return tile_pointers(
        pointer, block, row, edge_column, outer_stride, inner_stride, col_stride, INT64_OFFSETS, 0, ROWS, 1, False
    )  # fmt: skip


@triton.jit
def anti_hoist_pointers(
    pointer, tile, block, row, column, outer_stride, inner_stride, col_stride,
    INT64_OFFSETS: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    PROGRAMS_PER_ROW: tl.constexpr, ALIGNED: tl.constexpr, PASS: tl.constexpr,
):  # fmt: skip
    """Returns `tile_pointers` for one pass over a tile. Triton computes them again in each pass.

    In a cooperative schedule over inner rows, Triton would hoist the offsets of all elements out of the loop and keep
    them in registers. To prevent that, the stride depends on a condition on tile and pass that is never true.
    """
    step = col_stride + tl.where(tile < -PASS, 16, 0) if PROGRAMS_PER_ROW > 1 and AXIS == 0 else col_stride
    return tile_pointers(
        pointer, block, row, column, outer_stride, inner_stride, step, INT64_OFFSETS, AXIS, ROWS, COLS, ALIGNED
    )  # fmt: skip


@triton.jit
def load_tile(
    pointers, in_bounds, PADDING: tl.constexpr, RELOAD: tl.constexpr, IS_FIRST: tl.constexpr, IS_LAST: tl.constexpr,
):  # fmt: skip
    """Loads the elements of a tile. With RELOAD, the first pass asks the cache to keep them until the last pass."""
    policy: tl.constexpr = (
        "" if not RELOAD or not (IS_FIRST or IS_LAST) else "evict_last" if IS_FIRST else "evict_first"
    )
    return tl.load(pointers, mask=in_bounds, other=PADDING, eviction_policy=policy)


@triton.jit
def load_columns(
    pointer, column, cols, INT64_OFFSETS: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    PEEL: tl.constexpr, ACC_DTYPE: tl.constexpr,
):  # fmt: skip
    """Loads a number for each of COLS columns from `column`, for all rows of a tile. Returns 0 without a tensor.

    A load with two axes has a layout for one row. In a tile of several rows, Triton would compute elements in this
    layout, and again in that of the tile, so the load has one axis. With PEEL, rows may start at different columns.
    """
    if pointer is None:
        return 0.0
    elif ROWS > 1 and not PEEL:
        index = tl.arange(0, COLS)
        index = column + (tl.cast(index, tl.int64) if INT64_OFFSETS else index)
        return tl.expand_dims(tl.load(pointer + index, mask=index < cols, other=0).to(ACC_DTYPE), 1 - AXIS)
    else:
        index = column + index_along(COLS, AXIS, INT64_OFFSETS)
        return tl.load(pointer + index, mask=index < cols, other=0).to(ACC_DTYPE)


@triton.jit
def load_all_columns(
    pointer, pointer2, column, edge_column, cols, INT64_OFFSETS: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, PEEL: tl.constexpr, ACC_DTYPE: tl.constexpr,
):  # fmt: skip
    """Loads the numbers per column of two tensors for a tile and, with PEEL, for the heads and tails of its rows."""
    body = load_columns(pointer, column, cols, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL, ACC_DTYPE)
    body2 = load_columns(pointer2, column, cols, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL, ACC_DTYPE)
    edge, edge2 = 0.0, 0.0
    if PEEL:
        edge = load_columns(pointer, edge_column, cols, False, 0, ROWS, 1, PEEL, ACC_DTYPE)
        edge2 = load_columns(pointer2, edge_column, cols, False, 0, ROWS, 1, PEEL, ACC_DTYPE)
    return body, body2, edge, edge2


@triton.jit
def row_pointers(
    pointer, tile, inner, long_blocks, row_outer, row_inner, ROWS: tl.constexpr, VECTOR: tl.constexpr
):  # fmt: skip
    """Returns pointers into a tensor with a number per row, for the rows of a tile, and whether they are in bounds."""
    if long_blocks is None:
        tiles = tl.cdiv(inner, ROWS)
        block, first = tl.cast(tile // tiles, tl.int64), tl.cast(tile % tiles, tl.int64) * ROWS
    else:
        block, first, inner = interleaved_position(tile, inner, long_blocks, ROWS, VECTOR)
    row = tl.arange(0, ROWS)
    return pointer + block * row_outer + first * row_inner + row * row_inner, row < rows_left(inner, first, ROWS)


@triton.jit
def load_rows(
    pointer, tile, inner, long_blocks, row_outer, row_inner, ROWS: tl.constexpr, VECTOR: tl.constexpr,
    ACC_DTYPE: tl.constexpr,
):  # fmt: skip
    """Loads a number for each row of a tile. Returns 0 without a tensor."""
    if pointer is None:
        return 0.0
    else:
        pointers, in_bounds = row_pointers(pointer, tile, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR)
        return tl.load(pointers, mask=in_bounds, other=0).to(ACC_DTYPE)


@triton.jit
def load_index(
    pointer, in_ptr, per_column_ptr, tile, inner, cols, long_blocks, row_outer, row_inner, in_outer, in_inner, in_col,
    INT64_OFFSETS: tl.constexpr, ROWS: tl.constexpr, VECTOR: tl.constexpr, ACC_DTYPE: tl.constexpr,
    PICKS: tl.constexpr, PICKS_COLUMN: tl.constexpr,
):  # fmt: skip
    """Loads a column index for each row of a tile, and the elements of `in_ptr` and `per_column_ptr` in that column.

    PICKS and PICKS_COLUMN select what is loaded besides the index. The element is NaN, and the number of the column is
    zero, if the index is not one of a column. The index is returned in 32 bits, and is then the lowest number if it
    needs more: some devices compare no int64. Returns 0 without a tensor.
    """
    if pointer is None:
        return 0, 0.0, 0.0
    else:
        pointers, in_bounds = row_pointers(pointer, tile, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR)
        wide = tl.load(pointers, mask=in_bounds, other=0)
        index = tl.cast(wide, tl.int32)
        index = tl.where(tl.cast(wide >> 32, tl.int32) == (index >> 31), index, -2147483648)
        valid = (index >= 0) & (index < cols)
        column = tl.cast(tl.where(valid, index, 0), tl.int64)
        picked = 0.0
        if PICKS:
            stride = tl.cast(in_inner, tl.int64) if INT64_OFFSETS else in_inner
            start, _ = row_pointers(in_ptr, tile, inner, long_blocks, in_outer, stride, ROWS, VECTOR)
            element = tl.load(start + column * in_col, mask=in_bounds & valid, other=0).to(ACC_DTYPE)
            picked = tl.where(valid, element, float("nan"))
        picked_column = 0.0
        if PICKS_COLUMN:
            picked_column = tl.load(per_column_ptr + column, mask=in_bounds & valid, other=0).to(ACC_DTYPE)
        return index, picked, picked_column
