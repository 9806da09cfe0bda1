"""The exchange of statistics between the programs that compute one row together.

Each program publishes the statistics of its part of a row, reads those of the other parts, and combines all of them.
The workspace has SLOTS 64-bit slots per tile. A slot holds a word: zero before and after a launch, else the packed
statistics of a part. Programs wait for each other, so all programs of a launch must be resident at the same time.

A written kernel provides the constants, and the function `rebase_statistic`: it returns what the second statistic of a
part would be if its terms had used the first statistic of the whole row. `*parameters` stands for those of the op.
"""

import triton
import triton.language as tl

INF = tl.constexpr(float("inf"))
BLOCK = tl.constexpr(32)  # number of slots that a program reads at once
WARP = tl.constexpr(64)  # threads of a warp, at most


@triton.jit
def _merge(a, b, HOW: tl.constexpr):
    """Combines the results of two reductions."""
    if HOW == "max":
        return tl.maximum(a, b)
    else:
        return a + b


@triton.jit
def part_count(rank, body, cols, COLS: tl.constexpr):
    """Number of elements in the part of a row that program `rank` computes; rank 0 has the head and tail as well.

    With LOOPS, the part is every PROGRAMS_PER_ROW-th block of COLS columns.
    """
    count = tl.minimum(tl.maximum(body - rank * COLS, 0), COLS)
    if LOOPS:
        stride: tl.constexpr = PROGRAMS_PER_ROW * COLS
        count = body // stride * COLS + tl.minimum(tl.maximum(body % stride - rank * COLS, 0), COLS)
    return tl.cast(tl.where(rank == 0, count + cols - body, count), tl.float32)


@triton.jit
def _pack(first, second):
    """Packs two float32 statistics into one word that is not zero, because zero means "not published".

    The bits are inverted, because both statistics may be zero. The word would then be zero for two NaNs whose bits are
    all ones, so the first one is replaced by another NaN.
    """
    bits = tl.cast(first, tl.int32, bitcast=True)
    bits = tl.where(bits == -1, 0x7FC00000, bits)
    return ~(
        (tl.cast(bits, tl.int64) << 32) | (tl.cast(tl.cast(second, tl.int32, bitcast=True), tl.int64) & 0xFFFFFFFF)
    )


@triton.jit
def _poll(slots, valid):
    """Returns the words in the slots, and 1 if all valid slots are published, else 0."""
    word = tl.load(slots, mask=valid, other=1, volatile=True)
    return word, tl.min(tl.ravel(tl.where(word == 0, 0, 1)), 0)


@triton.jit
def _combine(word, valid, counts, count, *parameters):
    """Returns the statistics of whole rows from words [parts] or [parts, rows], and a scale for each part's terms."""
    word = ~word
    firsts = tl.cast(tl.cast(word >> 32, tl.int32), tl.float32, bitcast=True)
    firsts = tl.where(valid, firsts, -INF if FIRST == "max" else 0.0)
    first = tl.max(firsts, 0) if FIRST == "max" else tl.sum(firsts, 0)
    second, scales = tl.zeros_like(first), tl.full(firsts.shape, 1.0, tl.float32)
    if SECOND is not None:
        seconds = tl.cast(tl.cast(word & 0xFFFFFFFF, tl.int32), tl.float32, bitcast=True)
        scales = rebase_statistic(scales, firsts, first, counts, count, *parameters)
        seconds = rebase_statistic(seconds, firsts, first, counts, count, *parameters)
        seconds = tl.where(valid, seconds, -INF if SECOND == "max" else 0.0)
        second = tl.max(seconds, 0) if SECOND == "max" else tl.sum(seconds, 0)
    return first, second, scales


@triton.jit
def _meet():
    """A barrier before a program publishes: no thread may still read the slots of an earlier tile.

    A tile of more elements than a warp has threads is reduced across warps, which is a barrier. If a tile fits in one
    warp, each warp reduces its own copy.
    """
    if ROWS * COLS <= WARP:
        tl.debug_barrier()


@triton.jit
def after_picked(first, picked, cols):
    """Makes `first` depend on the picked numbers, so that these are loaded before it is published.

    Another program may write these elements in place as soon as all parts are published, and a relaxed exchange does
    not order the loads before it.
    """
    return tl.where(cols < 0, tl.cast(picked, first.dtype), first)


@triton.jit
def publish(workspace, tile, rank, first, second):
    """Publishes the statistics of this part of a tile."""
    slots = workspace + tl.cast(tile, tl.int64) * SLOTS
    _meet()
    if ROWS == 1:
        first, second = tl.max(first, 0), tl.max(second, 0)
        tl.atomic_xchg(slots + rank, _pack(first, second), sem="relaxed")
    else:
        tl.atomic_xchg(slots + rank * ROWS + tl.arange(0, ROWS), _pack(first, second), sem="relaxed")


@triton.jit(noinline=True)
def _collect_row(slots, body, cols, *parameters):
    """`collect` for one row. It is not inlined, because Triton does not pipeline a loop that contains a wait."""
    index = tl.arange(0, BLOCK)
    first, second, count, done = 0.0, 0.0, 0.0, 0
    while done == 0:
        valid = index < PROGRAMS_PER_ROW
        word, done = _poll(slots + index, valid)
        counts = part_count(index, body, cols, COLS) if COUNTS else 0.0
        count = tl.sum(tl.where(valid, counts, 0.0), 0) if COUNTS else 0.0
        first, second, _ = _combine(word, valid, counts, count, *parameters)
        for start in tl.static_range(BLOCK, PROGRAMS_PER_ROW, BLOCK):
            valid = start + index < PROGRAMS_PER_ROW
            word, more_done = _poll(slots + start + index, valid)
            counts = part_count(start + index, body, cols, COLS) if COUNTS else 0.0
            more = tl.sum(tl.where(valid, counts, 0.0), 0) if COUNTS else 0.0
            more_first, more_second, _ = _combine(word, valid, counts, more, *parameters)
            both = _merge(first, more_first, FIRST)
            second = rebase_statistic(second, first, both, count, count + more, *parameters)
            more_second = rebase_statistic(more_second, more_first, both, more, count + more, *parameters)
            if SECOND is not None:
                second = _merge(second, more_second, SECOND)
            first, count = both, count + more
            done = tl.minimum(done, more_done)
    return first, second


@triton.jit
def _collect_rows(slots, rank, body, cols, *parameters):
    """`collect` for several rows."""
    row, part = tl.arange(0, ROWS), tl.arange(0, SPLIT_POW2)
    valid = (part < PROGRAMS_PER_ROW)[:, None] & (row < ROWS)[None, :]
    word = tl.zeros([SPLIT_POW2, ROWS], tl.int64)
    done = 0
    while done == 0:
        word, done = _poll(slots + (part[:, None] * ROWS + row[None, :]), valid)
    # Triton 3.6 cannot compile a loop if `word` is its only used result, so `done` is used as well.
    word = tl.where(done == 0, 0, word)
    counts = part_count(part, body, cols, COLS)[:, None] if COUNTS else 0.0
    row_first, row_second, scales = _combine(word, valid, counts, tl.cast(cols, tl.float32), *parameters)
    # The scale of this part is selected from `scales`. If it were computed from the statistic of this part, Triton
    # would keep the tile in two layouts: its own and that of the slots.
    return row_first, row_second, tl.sum(tl.where((part == rank)[:, None], scales, 0.0), 0)


@triton.jit
def collect(workspace, tile, rank, first, body, cols, *parameters):
    """Waits until all parts of a tile are published, and combines their statistics.

    Returns the statistics of whole rows, and the factor of this part's terms, which `rebase_statistic` gives. `first`
    is the first statistic of this part. `body` is the number of elements of a row between its head and tail.
    """
    slots = workspace + tl.cast(tile, tl.int64) * SLOTS
    if ROWS == 1:
        row_first, row_second = _collect_row(slots, body, cols, *parameters)
        row_first, row_second = tl.full([1], row_first, tl.float32), tl.full([1], row_second, tl.float32)
        part_size = part_count(rank, body, cols, COLS) if COUNTS else 0.0
        scale = tl.full([1], 1.0, tl.float32)
        scale = rebase_statistic(scale, first, row_first, part_size, tl.cast(cols, tl.float32), *parameters)
        return row_first, row_second, scale
    else:
        return _collect_rows(slots, rank, body, cols, *parameters)


@triton.jit
def clear_slots(workspace, tile, rank):
    """Clears the slots that a program published for `tile`. Does nothing if `tile` is negative.

    Call this after the exchange of the group's next tile: all programs of the row must have read the slots, and each
    reads them before it publishes that tile.
    """
    if tile >= 0:
        slots = workspace + tl.cast(tile, tl.int64) * SLOTS
        tl.store(slots + rank * ROWS + tl.arange(0, ROWS), tl.zeros([ROWS], tl.int64))
