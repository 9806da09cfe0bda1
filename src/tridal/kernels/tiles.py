"""Indices, bounds and pointers of the elements of a tile, and of the unaligned head and tail of its rows.

A tile is ROWS neighbouring rows by COLS columns. The reduction runs along AXIS. If rows are contiguous, AXIS is 1 and a
tile is [ROWS, COLS]. If neighbouring rows are contiguous, AXIS is 0 and a tile is [COLS, ROWS]. So if an axis of a
tile is contiguous in memory, it is the last one. Functions with the parameter AXIS also serve heads and tails, a tile
[2 * VECTOR, ROWS] with AXIS = 0.
"""

import triton
import triton.language as tl


@triton.jit
def index_along(SIZE: tl.constexpr, AXIS: tl.constexpr, INT64: tl.constexpr):
    """Returns the indices 0 .. SIZE-1 along AXIS of a tile."""
    index = tl.arange(0, SIZE)
    return tl.expand_dims(tl.cast(index, tl.int64) if INT64 else index, 1 - AXIS)


@triton.jit
def row_index(AXIS: tl.constexpr, INT64: tl.constexpr):
    """Returns the indices 0 .. ROWS-1 of a tile's rows. For one row, returns a scalar, to keep row addresses scalar."""
    if ROWS == 1:
        return 0
    else:
        return index_along(ROWS, 1 - AXIS, INT64)


@triton.jit
def head_length(start, cols):
    """Returns the length of a row's head. The row starts `start` elements after a vector boundary."""
    return tl.minimum(tl.cast(-start & (VECTOR - 1), tl.int32), cols)


@triton.jit
def tile_position(tile, inner):
    """Returns the block of a tile, and its first row in the block."""
    tiles = tl.cdiv(inner, ROWS)
    return tl.cast(tile // tiles, tl.int64), tl.cast(tile % tiles, tl.int64) * ROWS


@triton.jit
def rows_left(inner, row):
    """Returns the number of rows from `row` to the end of the block, at most ROWS, in 32 bits."""
    return tl.cast(tl.minimum(inner - row, ROWS), tl.int32)


@triton.jit
def tile_bounds(tile, rank, inner, cols, misalignment, outer_stride, inner_stride, COLS: tl.constexpr):
    """Returns the position and the bounds of the part of a tile that program `rank` of a row computes.

    Returns block, first row, first column, bounds; columns and bounds of the head and tail. With PEEL, the first column
    differs between rows, and rank 0 computes the head and tail of all rows as a tile [2 * VECTOR, ROWS]. MASKS_TERMS
    says whether the bounds also mask terms. They are then compared in 32 bits: some devices compare no 64-bit tiles.
    """
    block, row = tile_position(tile, inner)
    column = rank * COLS
    if PEEL:
        start = misalignment + block * outer_stride + row * inner_stride
        head = head_length(start + row_index(AXIS, INT64_OFFSETS) * inner_stride, cols)
        body = (cols - head) // VECTOR * VECTOR - column
        if ROWS == 1:
            in_bounds = index_along(COLS, AXIS, INT64_OFFSETS) < tl.multiple_of(body, VECTOR)
        else:
            body = tl.where(row_index(AXIS, INT64_OFFSETS) < inner - row, body, 0)
            in_bounds = index_along(COLS, AXIS, INT64_OFFSETS) < tl.multiple_of(body, [VECTOR, VECTOR])
        edge = index_along(2 * VECTOR, 0, False)
        head_end = head_length(start + row_index(0, INT64_OFFSETS) * inner_stride, cols)
        tail = head_end + (cols - head_end) // VECTOR * VECTOR + edge - VECTOR
        edge_column = tl.where(edge < VECTOR, edge, tail)
        # The cast makes a number a tensor: Triton 3.3's interpreter cannot combine a tensor with a Python bool.
        edge_in_bounds = (edge_column < tl.where(edge < VECTOR, head_end, cols)) & (tl.cast(rank, tl.int32) == 0)
        if ROWS > 1:
            edge_in_bounds = edge_in_bounds & (row_index(0, INT64_OFFSETS) < inner - row)
        return block, row, head + column, in_bounds, edge_column, edge_in_bounds
    else:
        in_bounds = index_along(COLS, AXIS, INT64_OFFSETS) < cols - column
        if ROWS > 1:
            rows = rows_left(inner, row) if MASKS_TERMS else inner - row
            in_bounds = (row_index(AXIS, INT64_OFFSETS) < rows) & in_bounds
        return block, row, column, in_bounds, column, column < cols


@triton.jit
def tile_pointers(
    pointer, block, row, column, outer_stride, inner_stride, col_stride, AXIS: tl.constexpr, COLS: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """Returns pointers to ROWS rows and COLS columns from `row`, `column`. If ALIGNED, a vector starts at `column`."""
    start = pointer + block * outer_stride + row * inner_stride
    start += row_index(AXIS, INT64_OFFSETS) * inner_stride + column * tl.cast(col_stride, tl.int64)
    if ALIGNED:
        if ROWS == 1:
            start = tl.multiple_of(start, 16)
        else:
            start = tl.multiple_of(start, [16, 16])
    return start + index_along(COLS, AXIS, INT64_OFFSETS) * col_stride


@triton.jit
def edge_pointers(pointer, block, row, edge_column, outer_stride, inner_stride, col_stride):
    """Returns pointers to the heads and tails of ROWS rows, whose columns are `edge_column`."""
    return tile_pointers(pointer, block, row, edge_column, outer_stride, inner_stride, col_stride, 0, 1, False)


@triton.jit
def anti_hoist_pointers(
    pointer, tile, block, row, column, outer_stride, inner_stride, col_stride, AXIS: tl.constexpr, COLS: tl.constexpr,
    ALIGNED: tl.constexpr, PASS: tl.constexpr,
):  # fmt: skip
    """Returns `tile_pointers` for one pass over a tile. Triton computes them again in each pass.

    In a cooperative schedule over inner rows, Triton would hoist the offsets of all elements out of the loop and keep
    them in registers. To prevent that, the stride depends on a condition on tile and pass that is never true.
    """
    step = col_stride + tl.where(tile < -PASS, 16, 0) if PROGRAMS_PER_ROW > 1 and AXIS == 0 else col_stride
    return tile_pointers(pointer, block, row, column, outer_stride, inner_stride, step, AXIS, COLS, ALIGNED)


@triton.jit
def load_tile(pointers, in_bounds, IS_FIRST: tl.constexpr, IS_LAST: tl.constexpr):
    """Loads the elements of a tile. With RELOAD, the first pass asks the cache to keep them until the last pass."""
    policy: tl.constexpr = (
        "" if not RELOAD or not (IS_FIRST or IS_LAST) else "evict_last" if IS_FIRST else "evict_first"
    )
    return tl.load(pointers, mask=in_bounds, other=PADDING, eviction_policy=policy)


@triton.jit
def store_tile(
    y, pointers, addend, tile, block, row, column, outer_stride, inner_stride, col_stride, in_bounds,
    AXIS: tl.constexpr, COLS: tl.constexpr, ALIGNED: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Stores the elements of a tile, plus those of the tensor `addend` if it is not None.

    With STREAM, they must not evict elements that will be loaded again.
    """
    if addend is not None:
        addends = anti_hoist_pointers(
            addend, tile, block, row, column, outer_stride, inner_stride, col_stride, AXIS, COLS, ALIGNED, 0
        )  # fmt: skip
        y += tl.load(addends, mask=in_bounds, other=0).to(ACC_DTYPE)
    tl.store(pointers, y.to(pointers.dtype.element_ty), mask=in_bounds, eviction_policy="evict_first" if STREAM else "")


@triton.jit
def load_columns(pointer, column, cols, AXIS: tl.constexpr, COLS: tl.constexpr):
    """Loads a number for each of COLS columns from `column`, for all rows of a tile.

    A load with two axes has a layout for one row. In a tile of several rows, Triton would compute elements in this
    layout, and again in that of the tile, so the load has one axis. With PEEL, rows may start at different columns.
    """
    if ROWS > 1 and not PEEL:
        index = tl.arange(0, COLS)
        index = column + (tl.cast(index, tl.int64) if INT64_OFFSETS else index)
        return tl.expand_dims(tl.load(pointer + index, mask=index < cols, other=0).to(ACC_DTYPE), 1 - AXIS)
    else:
        index = column + index_along(COLS, AXIS, INT64_OFFSETS and COLS > 1)
        return tl.load(pointer + index, mask=index < cols, other=0).to(ACC_DTYPE)


@triton.jit
def row_pointers(pointer, tile, inner, row_outer, row_inner):
    """Returns pointers into a tensor with a number per row, for the rows of a tile, and whether they are in bounds."""
    block, first = tile_position(tile, inner)
    row = tl.arange(0, ROWS)
    return pointer + block * row_outer + first * row_inner + row * row_inner, row < rows_left(inner, first)


@triton.jit
def load_rows(pointer, tile, inner, row_outer, row_inner):
    """Loads a number for each row of a tile."""
    pointers, in_bounds = row_pointers(pointer, tile, inner, row_outer, row_inner)
    return tl.load(pointers, mask=in_bounds, other=0).to(ACC_DTYPE)


@triton.jit
def store_rows(pointer, number, tile, rank, inner, row_outer, row_inner):
    """Stores a number for each row of a tile. Rank 0 of the programs of a row stores it."""
    pointers, in_bounds = row_pointers(pointer, tile, inner, row_outer, row_inner)
    tl.store(pointers, number.to(pointer.dtype.element_ty), mask=in_bounds & (rank == 0))


@triton.jit
def load_index(
    pointer, element_ptr, column_ptr, tile, inner, cols, row_outer, row_inner, in_outer, in_inner, in_col
):  # fmt: skip
    """Loads a column index for each row of a tile, and the numbers of `element_ptr` and `column_ptr` in that column.

    PICKS and PICKS_COLUMN select what is loaded besides the index. The element is NaN, and the number of the column is
    zero, if the index is not one of a column. The index is returned in 32 bits, and is then the lowest number if it
    needs more: some devices compare no int64.
    """
    pointers, in_bounds = row_pointers(pointer, tile, inner, row_outer, row_inner)
    wide = tl.load(pointers, mask=in_bounds, other=0)
    index = tl.cast(wide, tl.int32)
    index = tl.where(tl.cast(wide >> 32, tl.int32) == (index >> 31), index, -2147483648)
    valid = (index >= 0) & (index < cols)
    column = tl.cast(tl.where(valid, index, 0), tl.int64)
    picked = 0.0
    if PICKS:
        stride = tl.cast(in_inner, tl.int64) if INT64_OFFSETS else in_inner
        start, _ = row_pointers(element_ptr, tile, inner, in_outer, stride)
        element = tl.load(start + column * in_col, mask=in_bounds & valid, other=0).to(ACC_DTYPE)
        picked = tl.where(valid, element, float("nan"))
    picked_column = 0.0
    if PICKS_COLUMN:
        picked_column = tl.load(column_ptr + column, mask=in_bounds & valid, other=0).to(ACC_DTYPE)
    return index, picked, picked_column
