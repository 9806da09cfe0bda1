"""The exchange of statistics between the programs that compute one row together.

Each program publishes the statistics of its part of a row, reads those of the other parts, and combines all of them.
The workspace holds SLOTS 64-bit slots per tile, which are zero before a launch and after it. All programs of a launch
are resident at the same time, because they wait for each other.
"""

import triton
import triton.language as tl

from tridal.kernels.reductions import merge

_INF = tl.constexpr(float("inf"))
_BLOCK = tl.constexpr(32)  # programs of a row whose slots are read together


@triton.jit
def part_count(rank, body, cols, COLS: tl.constexpr):
    """Number of elements in the part of a row that program `rank` computes; rank 0 has the head and tail as well."""
    count = tl.minimum(tl.maximum(body - rank * COLS, 0), COLS)
    return tl.cast(tl.where(rank == 0, count + cols - body, count), tl.float32)


@triton.jit
def _pack(first, second):
    """Two float32 statistics as one word that is never zero.

    Zero means "not published", and both statistics may be zero. So the bits are inverted: the word would be zero for
    two NaNs whose bits are all ones, and the first statistic gets another NaN then.
    """
    bits = tl.cast(first, tl.int32, bitcast=True)
    bits = tl.where(bits == -1, 0x7FC00000, bits)
    return ~(
        (tl.cast(bits, tl.int64) << 32) | (tl.cast(tl.cast(second, tl.int32, bitcast=True), tl.int64) & 0xFFFFFFFF)
    )


@triton.jit
def _poll(slots, real):
    """Words, and whether all real ones are published."""
    word = tl.load(slots, mask=real, other=1, volatile=True)
    return word, tl.min(tl.ravel(tl.where(word == 0, 0, 1)), 0)


@triton.jit
def _combine(
    word, real, counts, count, param0, param1, rebase: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """Statistics of whole rows from slots, [parts] or [parts, rows]; and the scale of each part's terms."""
    word = ~word
    firsts = tl.cast(tl.cast(word >> 32, tl.int32), tl.float32, bitcast=True)
    firsts = tl.where(real, firsts, -_INF if FIRST == "max" else 0.0)
    first = tl.max(firsts, 0) if FIRST == "max" else tl.sum(firsts, 0)
    second, scales = tl.zeros_like(first), tl.full(firsts.shape, 1.0, tl.float32)
    if SECOND is not None:
        seconds = tl.cast(tl.cast(word & 0xFFFFFFFF, tl.int32), tl.float32, bitcast=True)
        if rebase is not None:
            scales = rebase(scales, firsts, first, counts, count, param0, param1, EXP2_BIAS)
            seconds = rebase(seconds, firsts, first, counts, count, param0, param1, EXP2_BIAS)
        seconds = tl.where(real, seconds, -_INF if SECOND == "max" else 0.0)
        second = tl.max(seconds, 0) if SECOND == "max" else tl.sum(seconds, 0)
    return first, second, scales


@triton.jit
def _gather(
    slots, begin, number, body, cols, param0, param1, BLOCKS: tl.constexpr, rebase: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr, COLS: tl.constexpr, COUNTS: tl.constexpr, EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """Waits for `number` slots of a row, in BLOCKS blocks, and combines them.

    Word i holds the statistics of the COLS columns of part `begin` + i.
    """
    index = tl.arange(0, _BLOCK)
    first, second, count, done = 0.0, 0.0, 0.0, 0
    while done == 0:
        word, done = _poll(slots + index, index < number)
        counts = part_count(begin + index, body, cols, COLS) if COUNTS else 0.0
        if COUNTS:
            count = tl.sum(tl.where(index < number, counts, 0.0), 0)
        first, second, _ = _combine(
            word, index < number, counts, count, param0, param1, rebase, FIRST, SECOND, EXP2_BIAS
        )  # fmt: skip
        for block in tl.static_range(1, BLOCKS):
            start = block * _BLOCK
            word, more_done = _poll(slots + start + index, start + index < number)
            counts = part_count(begin + start + index, body, cols, COLS) if COUNTS else 0.0
            more = tl.sum(tl.where(start + index < number, counts, 0.0), 0) if COUNTS else 0.0
            more_first, more_second, _ = _combine(
                word, start + index < number, counts, more, param0, param1, rebase, FIRST, SECOND, EXP2_BIAS
            )  # fmt: skip
            both = merge(first, more_first, FIRST)
            if rebase is not None:
                second = rebase(second, first, both, count, count + more, param0, param1, EXP2_BIAS)
                more_second = rebase(more_second, more_first, both, more, count + more, param0, param1, EXP2_BIAS)
            if SECOND is not None:
                second = merge(second, more_second, SECOND)
            first, count = both, count + more
            done = tl.minimum(done, more_done)
    return first, second


@triton.jit(noinline=True)
def _exchange_row(
    slots, rank, first, second, body, cols, param0, param1, rebase: tl.constexpr, FIRST: tl.constexpr,
    SECOND: tl.constexpr, PROGRAMS_PER_ROW: tl.constexpr, COLS: tl.constexpr, SLOTS: tl.constexpr,
    COUNTS: tl.constexpr, EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """`exchange` for one row, with scalars. It is not inlined, because Triton does not pipeline a loop around a wait.

    If very many programs compute the row, the first of each block combines the slots of its block, and every program
    then reads one word per block.
    """
    tl.atomic_xchg(slots + rank, _pack(first, second), sem="relaxed")
    if SLOTS > PROGRAMS_PER_ROW:
        if rank % _BLOCK == 0:
            block_first, block_second = _gather(
                slots + rank, rank, PROGRAMS_PER_ROW - rank, body, cols, param0, param1, 1, rebase, FIRST, SECOND, COLS,
                COUNTS, EXP2_BIAS,
            )  # fmt: skip
            block_word = _pack(block_first, block_second)
            tl.atomic_xchg(slots + PROGRAMS_PER_ROW + rank // _BLOCK, block_word, sem="relaxed")
        row_first, row_second = _gather(
            slots + PROGRAMS_PER_ROW, 0, SLOTS - PROGRAMS_PER_ROW, body, cols, param0, param1,
            (SLOTS - PROGRAMS_PER_ROW + _BLOCK - 1) // _BLOCK, rebase, FIRST, SECOND, COLS * _BLOCK, COUNTS, EXP2_BIAS,
        )  # fmt: skip
    else:
        row_first, row_second = _gather(
            slots, 0, PROGRAMS_PER_ROW, body, cols, param0, param1, (PROGRAMS_PER_ROW + _BLOCK - 1) // _BLOCK, rebase,
            FIRST, SECOND, COLS, COUNTS, EXP2_BIAS,
        )  # fmt: skip
    return row_first, row_second


@triton.jit
def _exchange_once(
    slots, rank, first, second, body, cols, param0, param1, rebase: tl.constexpr, FIRST: tl.constexpr,
    SECOND: tl.constexpr, PROGRAMS_PER_ROW: tl.constexpr, SPLIT_POW2: tl.constexpr, COLS: tl.constexpr,
    COUNTS: tl.constexpr, EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """`exchange` for one row, with scalars, if no program computes another tile: each has a mailbox of its own.

    A program clears its mailbox as soon as all its threads have read it. This avoids a counter of the programs that
    have finished, and its round trip to memory.
    """
    other = tl.arange(0, SPLIT_POW2)
    mailboxes, mailbox = slots + other * PROGRAMS_PER_ROW + rank, slots + rank * PROGRAMS_PER_ROW + other
    real = other < PROGRAMS_PER_ROW
    tl.atomic_xchg(mailboxes, tl.full([SPLIT_POW2], _pack(first, second), tl.int64), mask=real, sem="relaxed")
    word = tl.zeros([SPLIT_POW2], tl.int64)
    done = 0
    while done == 0:
        word, done = _poll(mailbox, real)
    tl.debug_barrier()
    tl.store(mailbox, tl.zeros([SPLIT_POW2], tl.int64), mask=real)
    counts = part_count(other, body, cols, COLS) if COUNTS else 0.0
    word = tl.where(done == 0, 0, word)
    row_first, row_second, _ = _combine(
        word, real, counts, tl.cast(cols, tl.float32), param0, param1, rebase, FIRST, SECOND, EXP2_BIAS
    )  # fmt: skip
    return row_first, row_second


@triton.jit
def exchange(
    workspace, tile, rank, first, second, body, cols, param0, param1, rebase: tl.constexpr, FIRST: tl.constexpr,
    SECOND: tl.constexpr, PROGRAMS_PER_ROW: tl.constexpr, SPLIT_POW2: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, PERSISTENT: tl.constexpr, SLOTS: tl.constexpr, COUNTS: tl.constexpr, EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """Publishes the statistics of this part of a tile, waits for those of the other parts, and combines them.

    Returns the statistics of whole rows, and the scale that `rebase` gives the terms of this part. `body` is the number
    of elements of a row between its head and tail.
    """
    slots = workspace + tl.cast(tile, tl.int64) * SLOTS
    if ROWS == 1:
        part_first, part_second = tl.max(first, 0), tl.max(second, 0)
        if PERSISTENT:
            row_first, row_second = _exchange_row(
                slots, rank, part_first, part_second, body, cols, param0, param1, rebase, FIRST, SECOND,
                PROGRAMS_PER_ROW, COLS, SLOTS, COUNTS, EXP2_BIAS,
            )  # fmt: skip
        else:
            row_first, row_second = _exchange_once(
                slots, rank, part_first, part_second, body, cols, param0, param1, rebase, FIRST, SECOND,
                PROGRAMS_PER_ROW, SPLIT_POW2, COLS, COUNTS, EXP2_BIAS,
            )  # fmt: skip
        row_first, row_second = tl.full([1], row_first, tl.float32), tl.full([1], row_second, tl.float32)
        scale = tl.full([1], 1.0, tl.float32)
        if rebase is not None:
            count = tl.cast(cols, tl.float32)
            own_count = part_count(rank, body, cols, COLS) if COUNTS else 0.0
            scale = rebase(scale, first, row_first, own_count, count, param0, param1, EXP2_BIAS)
        return row_first, row_second, scale
    else:
        row, part = tl.arange(0, ROWS), tl.arange(0, SPLIT_POW2)
        real = (part < PROGRAMS_PER_ROW)[:, None] & (row < ROWS)[None, :]
        tl.atomic_xchg(slots + rank * ROWS + row, _pack(first, second), sem="relaxed")
        word = tl.zeros([SPLIT_POW2, ROWS], tl.int64)
        done = 0
        while done == 0:
            word, done = _poll(slots + (part[:, None] * ROWS + row[None, :]), real)
        # Triton 3.6 cannot compile a loop whose only used result is the tile, so `done` is used as well.
        word = tl.where(done == 0, 0, word)
        counts = part_count(part, body, cols, COLS)[:, None] if COUNTS else 0.0
        row_first, row_second, scales = _combine(
            word, real, counts, tl.cast(cols, tl.float32), param0, param1, rebase, FIRST, SECOND, EXP2_BIAS
        )  # fmt: skip
        # The scale is read from `scales`. Computed from `first`, it would give that the layout of the slots, and Triton
        # would keep the tile in both layouts.
        return row_first, row_second, tl.sum(tl.where((part == rank)[:, None], scales, 0.0), 0)


@triton.jit
def clear_slots(
    workspace, tile, rank, PROGRAMS_PER_ROW: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    """Clears the slots that a program published for `tile`, once all programs of the row have read them.

    They have read the slots of a tile when they have published those of the next one.
    """
    if tile >= 0:
        slots = workspace + tl.cast(tile, tl.int64) * SLOTS
        tl.store(slots + rank * ROWS + tl.arange(0, ROWS), tl.zeros([ROWS], tl.int64))
        if SLOTS > PROGRAMS_PER_ROW * ROWS:
            tl.store(slots + PROGRAMS_PER_ROW + rank // _BLOCK, tl.cast(0, tl.int64), mask=rank % _BLOCK == 0)
