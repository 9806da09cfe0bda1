"""The one softmax source that every device compiles: softmax and log_softmax, and their gradients. Imports triton only.

A tensor is `outer` blocks of `inner` rows of `cols` elements, each with a stride in elements. A tile is ROWS
neighbouring rows of one block by COLS columns; the reduction runs along AXIS of it: 1 where a row is contiguous
([ROWS, COLS]), 0 where neighbouring rows are ([COLS, ROWS]), so that a tile's last axis is contiguous in memory
whenever one of them is. Programs stride over tiles, so any number of them computes the same. Elements are computed
in ACC, the dtype of sums.

What else a plan decides at compile time:
  SPLIT   programs that share a row, a group. Each takes COLS of its columns, and they exchange (max, sum) through
          `words`, zero before and after: WORDS of each tile. They wait for each other, so all programs of a launch have
          to be resident at once. If they LOOP, a desk behind all words tells them what is next, see `_desk`.
  EDGES   for rows that start or end off a vector's boundary: the whole vectors of a row are the tile, and what is
          before and after them, fewer than VECTOR elements each, is a small tile beside it. `shift` is how far off the
          first row is. ALIGNED says that rows written are off by as much as rows read, so that they are stored in
          vectors too.
  LOOP    programs go on to further tiles; if not, there are as many as tiles, which takes fewer registers. Groups draw
          them, as some parts of a device reach memory faster than others; not if STAGES tiles are fetched ahead.
  STAGES  tiles in flight in the loop over tiles; over column tiles in the looped kernels.
  REREADS
          elements are read for each pass over a tile, of which a forward makes three and a backward two, from the
          core's cache but for the first. They take no registers in between, and so more of them are on their way.
          What is written is not to take the room of what will be read again.
  EXP2_BIAS
          how `_exp` computes, and what error it makes up for where float32 results show it.
  WIDE    offsets inside a tile take 64 bits; those of its corner always do.
And how a forward weighs its scores on the way, which is nothing for a plain softmax: see `_scores`.
The source stays inside Triton 3.2.
"""

import triton
import triton.language as tl

_INF = tl.constexpr(float("inf"))
_BLOCK = tl.constexpr(32)  # parts of a row that show their (max, sum) together


@triton.jit
def _along(SIZE: tl.constexpr, AXIS: tl.constexpr, WIDE: tl.constexpr):
    """0 .. SIZE-1 along an axis of a tile."""
    index = tl.arange(0, SIZE)
    return tl.expand_dims(tl.cast(index, tl.int64) if WIDE else index, 1 - AXIS)


@triton.jit
def _rows(ROWS: tl.constexpr, AXIS: tl.constexpr, WIDE: tl.constexpr):
    """0 .. ROWS-1 along the axis that is not AXIS; of a single row, a scalar, so that its addresses stay scalar."""
    if ROWS == 1:
        return 0
    else:
        return _along(ROWS, 1 - AXIS, WIDE)


@triton.jit
def _place(
    tile, part, inner, cols, shift, outer_stride, inner_stride,
    WIDE: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, EDGES: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Where a part of a tile lies: its block, first row, first column and mask, then column and mask of its edges.

    With EDGES the first column is one for each row, and the edges, [2 * VECTOR, ROWS], hold what is before and after
    the whole vectors of a row; the first part has them.
    """
    tiles = tl.cdiv(inner, ROWS)
    block = tl.cast(tile // tiles, tl.int64)
    first = tl.cast(tile % tiles, tl.int64) * ROWS
    column = part * COLS
    if EDGES:
        start = shift + block * outer_stride + first * inner_stride
        head = _head(start + _rows(ROWS, AXIS, WIDE) * inner_stride, cols, VECTOR)
        vectors = (cols - head) // VECTOR * VECTOR - column
        if ROWS == 1:
            mask = _along(COLS, AXIS, WIDE) < tl.multiple_of(vectors, VECTOR)
        else:
            vectors = tl.where(_rows(ROWS, AXIS, WIDE) < inner - first, vectors, 0)
            mask = _along(COLS, AXIS, WIDE) < tl.multiple_of(vectors, [VECTOR, VECTOR])
        edge = _along(2 * VECTOR, 0, False)
        before = _head(start + _rows(ROWS, 0, WIDE) * inner_stride, cols, VECTOR)
        after = before + (cols - before) // VECTOR * VECTOR + edge - VECTOR
        edge_column = tl.where(edge < VECTOR, edge, after)
        edge_mask = (edge_column < tl.where(edge < VECTOR, before, cols)) & (part == 0)
        if ROWS > 1:
            edge_mask = edge_mask & (_rows(ROWS, 0, WIDE) < inner - first)
        return block, first, head + column, mask, edge_column, edge_mask
    else:
        mask = _along(COLS, AXIS, WIDE) < cols - column
        if ROWS > 1:
            mask = (_rows(ROWS, AXIS, WIDE) < inner - first) & mask
        return block, first, column, mask, column, column < cols


@triton.jit
def _head(start, cols, VECTOR: tl.constexpr):
    """Elements of a row before its first whole vector, if it starts `start` elements after a vector's boundary."""
    return tl.minimum(tl.cast(-start & (VECTOR - 1), tl.int32), cols)


@triton.jit
def _pointers(
    pointer, block, first, column, outer_stride, inner_stride, col_stride,
    WIDE: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """To COLS columns from `column` of ROWS rows from `first`. ALIGNED promises that they start with a vector."""
    start = pointer + block * outer_stride + first * inner_stride
    start += _rows(ROWS, AXIS, WIDE) * inner_stride + column * tl.cast(col_stride, tl.int64)
    if ALIGNED:
        if ROWS == 1:
            start = tl.multiple_of(start, 16)
        else:
            start = tl.multiple_of(start, [16, 16])
    return start + _along(COLS, AXIS, WIDE) * col_stride


@triton.jit
def _for_pass(
    pointer, tile, block, first, column, outer_stride, inner_stride, col_stride,
    WIDE: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr, PASS: tl.constexpr,
):  # fmt: skip
    """`_pointers` for a pass over a tile.

    Where columns are shared, their stride seems to change with tile and pass: or a loop would keep the offsets of all
    elements in registers.
    """
    step = col_stride + tl.where(tile < -PASS, 16, 0) if SPLIT > 1 and AXIS == 0 else col_stride
    return _pointers(pointer, block, first, column, outer_stride, inner_stride, step, WIDE, AXIS, ROWS, COLS, ALIGNED)


@triton.jit
def _exp(x, EXP2_BIAS: tl.constexpr):
    """exp(x). By a device's exp2, if its mean error is given: that is made up for, and so is the rounding of
    x * log2(e), unless it is given as zero.
    """
    if EXP2_BIAS is None:
        e = tl.exp(x)
    else:
        if EXP2_BIAS != 0:
            x = tl.maximum(x, -150.0, propagate_nan=tl.PropagateNan.ALL)  # for float32 as good as -inf, and a number
        power = x * 1.44269504
        e = tl.exp2(power)
        if EXP2_BIAS != 0:
            rest = tl.fma(x, 1.925963033500252e-08, tl.fma(x, 1.44269502162933349609375, -power))
            e = tl.fma(e, tl.fma(rest, 0.6931471805599453, -EXP2_BIAS), e)
    return e


@triton.jit
def _exp_less(x, low, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr, SCALED: tl.constexpr):
    """exp(x - low); or, if SCALED and where results of 16 bits are all that it is for, a multiple of that for each row.

    For a multiple, a subtraction less: low * log2(e) may be rounded, as long as it is the same for the whole row. From
    2^30 on what it is rounded by could be too much for a power of two; numbers that differ differ by far more there.
    """
    if (EXP2_BIAS is not None and EXP2_BIAS == 0) and SCALED:
        steep = tl.where(tl.abs(low) < 1073741824.0, 1.44269504, 1.0)
        e = tl.exp2(tl.fma(x, tl.expand_dims(steep, AXIS), tl.expand_dims(-low * steep, AXIS)))
    else:
        e = _exp(x - tl.expand_dims(low, AXIS), EXP2_BIAS)
    return e


@triton.jit
def _sum(x, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """Sums along AXIS; neighbours first where precision is wanted, as a long chain of sums rounds off as often."""
    if EXP2_BIAS is not None and EXP2_BIAS != 0:
        if (AXIS == 1) and (COLS >= 2048):
            x = tl.sum(tl.reshape(x, [ROWS, COLS // 4, 4]), 2)
    return tl.sum(x, AXIS)


@triton.jit
def _reciprocal(total, COLS: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """1 / total, to the last bit where precision is wanted: a device's own may be off by two, for a whole row."""
    ratio = 1.0 / total
    if EXP2_BIAS is not None and EXP2_BIAS != 0:
        if COLS >= 128:  # a narrower row has too few elements to share the work
            ratio = tl.fma(tl.fma(-total, ratio, 1.0), ratio, ratio)
    return ratio


@triton.jit
def _scores(
    source, inside, block, first, column, inner, mask_ptr, factor, queries, heads,
    mask_batch, mask_head, mask_query, mask_col, CAUSAL: tl.constexpr, MASK_BYTES: tl.constexpr,
    ACC: tl.constexpr, WIDE: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    """factor * x; plus the mask, or -inf where a mask of bytes is zero; -inf outside, and where CAUSAL beyond a query.

    Rows are numbered: queries of heads of batches, in each of which the mask has a stride, zero where it is broadcast.
    COLS columns from `column` are weighed; their part of the mask starts at a multiple of MASK_BYTES. x is what
    `source` points to, and KEEP tells the device what to do with it in its caches.
    """
    x = tl.load(source, mask=inside, other=-_INF, eviction_policy=KEEP).to(ACC)
    if factor is not None:
        x = tl.where(inside, x * factor, -_INF)
    if CAUSAL or mask_ptr is not None:
        row = tl.cast(block * inner + first, tl.int32) + _rows(ROWS, AXIS, False)
        query = row % queries
        along = _along(COLS, AXIS, WIDE)
    if mask_ptr is not None:
        place = tl.cast(row // queries // heads, tl.int64) * mask_batch + tl.cast(query, tl.int64) * mask_query
        place += tl.cast(row // queries % heads, tl.int64) * mask_head
        pointers = mask_ptr + (place + column * tl.cast(mask_col, tl.int64)) + along * mask_col
        if MASK_BYTES > 1:
            pointers = tl.multiple_of(pointers, [1, MASK_BYTES])
        mask = tl.load(pointers, mask=inside, other=0)
        if mask_ptr.dtype.element_ty == tl.uint8:
            x = tl.where(mask != 0, x, -_INF)
        else:
            x += mask.to(x.dtype)
    if CAUSAL:
        x = tl.where(along <= query - column, x, -_INF)
    return x


@triton.jit
def _word(top, total):
    """(max, sum) as one 64-bit word. It is never zero: a max of zero comes with a sum of at least one."""
    word = tl.cast(tl.cast(top, tl.int32, bitcast=True), tl.int64) << 32
    return word | (tl.cast(tl.cast(total, tl.int32, bitcast=True), tl.int64) & 0xFFFFFFFF)


@triton.jit
def _seen(words, real):
    """Words, and whether all of the real ones have been stored."""
    word = tl.load(words, mask=real, other=1, volatile=True)
    return word, tl.min(tl.ravel(tl.where(word == 0, 0, 1)), 0)


@triton.jit
def _combined(word, real, EXP2_BIAS: tl.constexpr):
    """(max, sum) of whole rows from words, [parts] or [parts, rows]; and by what sums of each part are scaled."""
    tops = tl.where(real, tl.cast(tl.cast(word >> 32, tl.int32), tl.float32, bitcast=True), -_INF)
    totals = tl.where(real, tl.cast(tl.cast(word & 0xFFFFFFFF, tl.int32), tl.float32, bitcast=True), 0.0)
    top = tl.max(tops, 0)
    scales = _exp(tops - tl.where(top == -_INF, 0.0, top), EXP2_BIAS)
    return top, tl.sum(totals * scales, 0), scales


@triton.jit
def _gather(words, count, BLOCKS: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """Waits for `count` words of a row, in BLOCKS blocks, and combines them."""
    part = tl.arange(0, _BLOCK)
    top, total, done = 0.0, 0.0, 0
    while done == 0:
        word, done = _seen(words + part, part < count)
        top, total, _ = _combined(word, part < count, EXP2_BIAS)
        for block in tl.static_range(1, BLOCKS):
            first = block * _BLOCK
            word, more = _seen(words + first + part, first + part < count)
            more_top, more_total, _ = _combined(word, first + part < count, EXP2_BIAS)
            higher = tl.maximum(top, more_top)
            low = tl.where(higher == -_INF, 0.0, higher)
            total = total * _exp(top - low, EXP2_BIAS) + more_total * _exp(more_top - low, EXP2_BIAS)
            top = higher
            done = tl.minimum(done, more)
    return top, total


@triton.jit(noinline=True)
def _exchange_row(words, part, top, total, SPLIT: tl.constexpr, WORDS: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """`_exchange` of a single row, of scalars. Not inlined, because a loop around one that waits isn't pipelined.

    Where very many share the row, the first of every block combines those of its block, so that nobody polls them all.
    """
    tl.atomic_xchg(words + part, _word(top, total), sem="relaxed")
    if WORDS > SPLIT:
        if part % _BLOCK == 0:
            block_top, block_total = _gather(words + part, SPLIT - part, 1, EXP2_BIAS)
            tl.atomic_xchg(words + SPLIT + part // _BLOCK, _word(block_top, block_total), sem="relaxed")
        blocks: tl.constexpr = (WORDS - SPLIT + _BLOCK - 1) // _BLOCK
        row_top, row_total = _gather(words + SPLIT, WORDS - SPLIT, blocks, EXP2_BIAS)
    else:
        row_top, row_total = _gather(words, SPLIT, (SPLIT + _BLOCK - 1) // _BLOCK, EXP2_BIAS)
    return row_top, row_total


@triton.jit
def _exchange_once(words, part, top, total, SPLIT: tl.constexpr, PARTS: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """`_exchange` of a single row, of scalars, by programs that take no other: each has a box of words for itself.

    It clears that, as soon as all of its threads have read it, and is done: it needn't know who else has read what.
    """
    other = tl.arange(0, PARTS)
    boxes, box = words + other * SPLIT + part, words + part * SPLIT + other
    tl.atomic_xchg(boxes, tl.full([PARTS], _word(top, total), tl.int64), mask=other < SPLIT, sem="relaxed")
    word = tl.zeros([PARTS], tl.int64)
    done = 0
    while done == 0:
        word, done = _seen(box, other < SPLIT)
    tl.debug_barrier()
    tl.store(box, tl.zeros([PARTS], tl.int64), mask=other < SPLIT)
    row_top, row_total, _ = _combined(tl.where(done == 0, 0, word), other < SPLIT, EXP2_BIAS)
    return row_top, row_total


@triton.jit
def _exchange(
    words, tile, part, top, total, SPLIT: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, LOOP: tl.constexpr,
    WORDS: tl.constexpr, EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """Shows (max, sum) of this part of a tile to those of the others, and waits for theirs.

    Returns those of whole rows, and what exps of this part have to be multiplied by, since they are less its own max.
    """
    words += tl.cast(tile, tl.int64) * WORDS
    if ROWS == 1:
        top_here, total_here = tl.max(top, 0), tl.max(total, 0)
        if LOOP:
            row_top, row_total = _exchange_row(words, part, top_here, total_here, SPLIT, WORDS, EXP2_BIAS)
        else:
            row_top, row_total = _exchange_once(words, part, top_here, total_here, SPLIT, PARTS, EXP2_BIAS)
        highest = tl.full([1], row_top, tl.float32)
        scale = _exp(top - tl.where(highest == -_INF, 0.0, highest), EXP2_BIAS)
        return highest, tl.full([1], row_total, tl.float32), scale
    else:
        row = tl.arange(0, ROWS)
        parts = tl.arange(0, PARTS)
        real = (parts < SPLIT)[:, None] & (row < ROWS)[None, :]
        tl.atomic_xchg(words + part * ROWS + row, _word(top, total), sem="relaxed")
        word = tl.zeros([PARTS, ROWS], tl.int64)
        done = 0
        while done == 0:
            word, done = _seen(words + (parts[:, None] * ROWS + row[None, :]), real)
        # `done` is looked at again because Triton 3.6 can't compile a loop of whose results only the tile is wanted.
        highest, row_total, scales = _combined(tl.where(done == 0, 0, word), real, EXP2_BIAS)
        # Not from `top`, or Triton has that in the layout of words, and to that end x in two.
        return highest, row_total, tl.sum(tl.where((parts == part)[:, None], scales, 0.0), 0)


@triton.jit
def _clear(words, tile, part, SPLIT: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Makes the words that a part has written zero again, for a tile that all parts are done with.

    Which they are with the tile before, once all have shown their words of this one.
    """
    if tile >= 0:
        words += tl.cast(tile, tl.int64) * WORDS
        tl.store(words + part * ROWS + tl.arange(0, ROWS), tl.zeros([ROWS], tl.int64))
        if WORDS > SPLIT * ROWS:
            tl.store(words + SPLIT + part // _BLOCK, tl.cast(0, tl.int64), mask=part % _BLOCK == 0)


@triton.jit
def _turns(count, SPLIT: tl.constexpr, LOOP: tl.constexpr, DRAWS: tl.constexpr):
    """A program's part, its group of all groups, and the range of its loop over the tiles of the group.

    If these are drawn, the range is of turns, the most that a fast group may take.
    """
    part, group, groups = tl.program_id(0) % SPLIT, tl.program_id(0) // SPLIT, tl.num_programs(0) // SPLIT
    if DRAWS:
        return part, group, groups, 0, tl.cdiv(count, groups) * 5 // 4 + 1, 1
    elif LOOP:
        return part, group, groups, group, count, groups
    else:
        return part, group, groups, group, group + 1, 1


@triton.jit
def _desk(words, count, WORDS: tl.constexpr):
    """Behind the words of all tiles: how many were drawn, and how many groups have left."""
    return words + tl.cast(count, tl.int64) * WORDS


@triton.jit
def _desk_of(words, count, group, WORDS: tl.constexpr):
    """Of a group: its next tile, in two places, as its slowest part may still be reading one; and who has left."""
    return _desk(words, count, WORDS) + 2 + 3 * group


@triton.jit
def _told(words, count, group, turn, WORDS: tl.constexpr):
    """One more than the number that was drawn in this turn; what was told two turns ago, as long as that isn't."""
    return tl.load(_desk_of(words, count, group, WORDS) + turn % 2, volatile=True)


@triton.jit
def _draw(words, count, group, part, turn, turns, WORDS: tl.constexpr):
    """The first part of a group draws the tile for the group's next turn, if there is one, and tells the others."""
    if (part == 0) & (turn + 1 < turns):
        drawn = 1 + tl.atomic_add(_desk(words, count, WORDS), 1, sem="relaxed")
        tl.atomic_xchg(_desk_of(words, count, group, WORDS) + turn % 2, drawn, sem="relaxed")


@triton.jit
def _drawn(drawn, words, count, group, groups, turn, turns, tile, WORDS: tl.constexpr):
    """The tile that was drawn in this turn; what was told two turns ago is no higher than `tile`, of this turn."""
    if turn + 1 < turns:
        while drawn <= tl.maximum(tile - groups + 1, 0):
            drawn = _told(words, count, group, turn, WORDS)
        tile = tl.cast(drawn, tl.int32) - 1 + groups
    return tile


@triton.jit
def _leave(
    words, tile, count, group, groups, SPLIT: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Whoever is the last of its group to leave clears the words of its last tile; the last of all clears the desk.

    Relaxed, since whoever counts itself has made use of what it has read: all its threads have, behind a barrier.
    """
    tl.debug_barrier()
    desk, of_group = _desk(words, count, WORDS), _desk_of(words, count, group, WORDS)
    if tl.atomic_add(of_group + 2, 1, sem="relaxed") == SPLIT - 1:
        every = tl.arange(0, 2 * PARTS * ROWS)
        last = words + tl.cast(tile, tl.int64) * WORDS + every
        tl.store(last, tl.zeros([2 * PARTS * ROWS], tl.int64), mask=every < WORDS)
        three = tl.arange(0, 4)
        tl.store(of_group + three, tl.zeros([4], tl.int64), mask=three < 3)
        if tl.atomic_add(desk + 1, 1, sem="relaxed") == groups - 1:
            tl.store(desk + tl.arange(0, 2), tl.zeros([2], tl.int64))


@triton.jit
def forward(
    out_ptr, in_ptr, mask_ptr, words, outer, inner, cols,
    in_outer, in_inner, in_col, out_outer, out_inner, out_col, shift,
    factor, queries, heads, mask_batch, mask_head, mask_query, mask_col,
    LOG: tl.constexpr, ACC: tl.constexpr, EXP2_BIAS: tl.constexpr, WIDE: tl.constexpr, AXIS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, LOOP: tl.constexpr, STAGES: tl.constexpr, SPLIT: tl.constexpr,
    PARTS: tl.constexpr, WORDS: tl.constexpr, EDGES: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    REREADS: tl.constexpr, CAUSAL: tl.constexpr, ZERO: tl.constexpr, MASK_BYTES: tl.constexpr,
):  # fmt: skip
    """Rows that one program holds, or SPLIT programs together: memory sees each element once each way."""
    count = outer * tl.cdiv(inner, ROWS)
    DRAWS: tl.constexpr = (SPLIT > 1 and LOOP) and STAGES == 1
    SCALED: tl.constexpr = (SPLIT == 1 and AXIS == 1) and not LOG  # over columns it would take two registers a row
    part, group, groups, begin, end, step = _turns(count, SPLIT, LOOP, DRAWS)
    drawn, last = group, -1
    for turn in tl.range(begin, end, step, num_stages=STAGES):
        tile = drawn if DRAWS else turn
        if not DRAWS or tile < count:
            block, first, column, mask, edge, edge_mask = _place(
                tile, part, inner, cols, shift, in_outer, in_inner, WIDE, AXIS, ROWS, COLS, EDGES, VECTOR
            )
            source = _for_pass(
                in_ptr, tile, block, first, column, in_outer, in_inner, in_col, WIDE, AXIS, ROWS, COLS, SPLIT, EDGES, 0
            )  # fmt: skip
            x = _scores(
                source, mask, block, first, column, inner, mask_ptr, factor, queries, heads,
                mask_batch, mask_head, mask_query, mask_col, CAUSAL, MASK_BYTES, ACC, WIDE, AXIS, ROWS, COLS,
                "evict_last" if REREADS else "",
            )  # fmt: skip
            if DRAWS:
                _draw(words, count, group, part, turn, end, WORDS)
            top = tl.max(x, AXIS)
            if EDGES:
                ends = _pointers(in_ptr, block, first, edge, in_outer, in_inner, in_col, WIDE, 0, ROWS, 1, False)
                x_edge = _scores(
                    ends, edge_mask, block, first, edge, inner, mask_ptr, factor, queries, heads,
                    mask_batch, mask_head, mask_query, mask_col, CAUSAL, 1, ACC, WIDE, 0, ROWS, 1, "",
                )  # fmt: skip
                top = tl.maximum(top, tl.max(x_edge, 0))
            # A part of nothing but -inf must not turn its row into NaN; a row of nothing but -inf has to, unless ZERO.
            low = tl.where(top == -_INF, 0.0, top) if SPLIT > 1 or ZERO else top
            if REREADS:
                source = _for_pass(
                    in_ptr, tile, block, first, column, in_outer, in_inner, in_col, WIDE, AXIS, ROWS, COLS, SPLIT,
                    EDGES, 1,
                )  # fmt: skip
                x = _scores(
                    source, mask, block, first, column, inner, mask_ptr, factor, queries, heads,
                    mask_batch, mask_head, mask_query, mask_col, CAUSAL, MASK_BYTES, ACC, WIDE, AXIS, ROWS, COLS, "",
                )  # fmt: skip
            e = _exp_less(x, low, AXIS, EXP2_BIAS, SCALED)
            total = _sum(e, AXIS, ROWS, COLS, EXP2_BIAS)
            if EDGES:
                e_edge = _exp_less(x_edge, low, 0, EXP2_BIAS, SCALED)
                total += tl.sum(e_edge, 0)
            scale = 1.0
            if SPLIT > 1:
                top, total, scale = _exchange(words, tile, part, top, total, SPLIT, PARTS, ROWS, LOOP, WORDS, EXP2_BIAS)
            if DRAWS:
                told = _told(words, count, group, turn, WORDS)
            if ZERO:
                total = tl.where(total == 0, 1.0, total)
            scale *= _reciprocal(total, COLS, EXP2_BIAS)
            target = _for_pass(
                out_ptr, tile, block, first, column, out_outer, out_inner, out_col, WIDE, AXIS, ROWS, COLS, SPLIT,
                ALIGNED, 0,
            )  # fmt: skip
            if REREADS:
                source = _for_pass(
                    in_ptr, tile, block, first, column, in_outer, in_inner, in_col, WIDE, AXIS, ROWS, COLS, SPLIT,
                    EDGES, 2,
                )  # fmt: skip
                x = _scores(
                    source, mask, block, first, column, inner, mask_ptr, factor, queries, heads,
                    mask_batch, mask_head, mask_query, mask_col, CAUSAL, MASK_BYTES, ACC, WIDE, AXIS, ROWS, COLS,
                    "evict_first",
                )  # fmt: skip
                e = _exp_less(x, low, AXIS, EXP2_BIAS, SCALED)
            if LOG:
                y = (x - tl.expand_dims(top, AXIS)) - tl.expand_dims(tl.log(total), AXIS)
            else:
                y = e * tl.expand_dims(scale, AXIS)
            tl.store(
                target, y.to(out_ptr.dtype.element_ty), mask=mask, eviction_policy="evict_first" if REREADS else ""
            )
            if EDGES:
                target = _pointers(out_ptr, block, first, edge, out_outer, out_inner, out_col, WIDE, 0, ROWS, 1, False)
                if LOG:
                    y_edge = (x_edge - tl.expand_dims(top, 0)) - tl.expand_dims(tl.log(total), 0)
                else:
                    y_edge = e_edge * tl.expand_dims(scale, 0)
                tl.store(target, y_edge.to(out_ptr.dtype.element_ty), mask=edge_mask)
            if SPLIT > 1 and LOOP:
                _clear(words, last if DRAWS else tile - groups, part, SPLIT, ROWS, WORDS)
            if DRAWS:
                last, drawn = tile, _drawn(told, words, count, group, groups, turn, end, tile, WORDS)
    if SPLIT > 1 and LOOP:
        last = last if DRAWS else end - 1 - (end - 1 - begin) % step
        _leave(words, last, count, group, groups, SPLIT, PARTS, ROWS, WORDS)


@triton.jit
def _gradients(
    in_ptr, y_ptr, inside, tile, block, first, column, in_outer, in_inner, in_col, out_outer, out_inner, out_col,
    ACC: tl.constexpr, WIDE: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    SPLIT: tl.constexpr, EDGES: tl.constexpr, ALIGNED: tl.constexpr, PASS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """dY and Y of a tile, zero outside. KEEP tells the device what to do with them in its caches."""
    source = _for_pass(
        in_ptr, tile, block, first, column, in_outer, in_inner, in_col, WIDE, AXIS, ROWS, COLS, SPLIT, EDGES, PASS
    )  # fmt: skip
    saved = _for_pass(
        y_ptr, tile, block, first, column, out_outer, out_inner, out_col, WIDE, AXIS, ROWS, COLS, SPLIT, ALIGNED, PASS
    )  # fmt: skip
    dy = tl.load(source, mask=inside, other=0.0, eviction_policy=KEEP).to(ACC)
    y = tl.load(saved, mask=inside, other=0.0, eviction_policy=KEEP).to(ACC)
    return dy, y


@triton.jit
def backward(
    out_ptr, in_ptr, y_ptr, words, outer, inner, cols,
    in_outer, in_inner, in_col, out_outer, out_inner, out_col, shift, factor,
    LOG: tl.constexpr, ACC: tl.constexpr, EXP2_BIAS: tl.constexpr, WIDE: tl.constexpr, AXIS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, LOOP: tl.constexpr, STAGES: tl.constexpr, SPLIT: tl.constexpr,
    PARTS: tl.constexpr, WORDS: tl.constexpr, EDGES: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr,
    REREADS: tl.constexpr,
):  # fmt: skip
    """dX = Y * (dY - sum(Y * dY)), for log_softmax dX = dY - exp(Y) * sum(dY), times `factor` if there is one.

    `in` is dY; Y has the strides of dX.
    """
    count = outer * tl.cdiv(inner, ROWS)
    DRAWS: tl.constexpr = (SPLIT > 1 and LOOP) and STAGES == 1
    part, group, groups, begin, end, step = _turns(count, SPLIT, LOOP, DRAWS)
    drawn, last = group, -1
    for turn in tl.range(begin, end, step, num_stages=STAGES):
        tile = drawn if DRAWS else turn
        if not DRAWS or tile < count:
            block, first, column, mask, edge, edge_mask = _place(
                tile, part, inner, cols, shift, in_outer, in_inner, WIDE, AXIS, ROWS, COLS, EDGES, VECTOR
            )
            dy, y = _gradients(
                in_ptr, y_ptr, mask, tile, block, first, column, in_outer, in_inner, in_col, out_outer, out_inner,
                out_col, ACC, WIDE, AXIS, ROWS, COLS, SPLIT, EDGES, ALIGNED, 0, "evict_last" if REREADS else "",
            )  # fmt: skip
            if DRAWS:
                _draw(words, count, group, part, turn, end, WORDS)
            total = tl.sum(dy if LOG else y * dy, AXIS)
            if EDGES:
                source = _pointers(in_ptr, block, first, edge, in_outer, in_inner, in_col, WIDE, 0, ROWS, 1, False)
                saved = _pointers(y_ptr, block, first, edge, out_outer, out_inner, out_col, WIDE, 0, ROWS, 1, False)
                dy_edge = tl.load(source, mask=edge_mask, other=0.0).to(ACC)
                y_edge = tl.load(saved, mask=edge_mask, other=0.0).to(ACC)
                total += tl.sum(dy_edge if LOG else y_edge * dy_edge, 0)
            if SPLIT > 1:
                top = tl.full([ROWS], 1.0, tl.float32)
                _, total, _ = _exchange(words, tile, part, top, total, SPLIT, PARTS, ROWS, LOOP, WORDS, EXP2_BIAS)
            if DRAWS:
                told = _told(words, count, group, turn, WORDS)
            across = tl.expand_dims(total, AXIS)
            target = _for_pass(
                out_ptr, tile, block, first, column, out_outer, out_inner, out_col, WIDE, AXIS, ROWS, COLS, SPLIT,
                ALIGNED, 0,
            )  # fmt: skip
            if REREADS:
                dy, y = _gradients(
                    in_ptr, y_ptr, mask, tile, block, first, column, in_outer, in_inner, in_col, out_outer, out_inner,
                    out_col, ACC, WIDE, AXIS, ROWS, COLS, SPLIT, EDGES, ALIGNED, 1, "evict_first",
                )  # fmt: skip
            dx = dy - _exp(y, EXP2_BIAS) * across if LOG else y * (dy - across)
            if factor is not None:
                dx *= factor
            tl.store(
                target, dx.to(out_ptr.dtype.element_ty), mask=mask, eviction_policy="evict_first" if REREADS else ""
            )
            if EDGES:
                across = tl.expand_dims(total, 0)
                target = _pointers(out_ptr, block, first, edge, out_outer, out_inner, out_col, WIDE, 0, ROWS, 1, False)
                dx_edge = dy_edge - _exp(y_edge, EXP2_BIAS) * across if LOG else y_edge * (dy_edge - across)
                if factor is not None:
                    dx_edge *= factor
                tl.store(target, dx_edge.to(out_ptr.dtype.element_ty), mask=edge_mask)
            if SPLIT > 1 and LOOP:
                _clear(words, last if DRAWS else tile - groups, part, SPLIT, ROWS, WORDS)
            if DRAWS:
                last, drawn = tile, _drawn(told, words, count, group, groups, turn, end, tile, WORDS)
    if SPLIT > 1 and LOOP:
        last = last if DRAWS else end - 1 - (end - 1 - begin) % step
        _leave(words, last, count, group, groups, SPLIT, PARTS, ROWS, WORDS)


@triton.jit
def forward_looped(
    out_ptr, in_ptr, mask_ptr, outer, inner, cols, in_outer, in_inner, in_col, out_outer, out_inner, out_col,
    factor, queries, heads, mask_batch, mask_head, mask_query, mask_col,
    LOG: tl.constexpr, ACC: tl.constexpr, EXP2_BIAS: tl.constexpr, WIDE: tl.constexpr, AXIS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr, ZERO: tl.constexpr,
    MASK_BYTES: tl.constexpr,
):  # fmt: skip
    """Rows wider than a tile: one pass over column tiles for (max, sum) online, a second to normalise."""
    for tile in tl.range(tl.program_id(0), outer * tl.cdiv(inner, ROWS), tl.num_programs(0)):
        top = tl.full([ROWS], -_INF, ACC)
        total = tl.zeros([ROWS], ACC)
        for part in tl.range(0, tl.cdiv(cols, COLS), num_stages=STAGES):
            block, first, column, mask, _, _ = _place(
                tile, part, inner, cols, 0, in_outer, in_inner, WIDE, AXIS, ROWS, COLS, False, 1
            )
            source = _pointers(
                in_ptr, block, first, column, in_outer, in_inner, in_col, WIDE, AXIS, ROWS, COLS, False
            )  # fmt: skip
            x = _scores(
                source, mask, block, first, column, inner, mask_ptr, factor, queries, heads,
                mask_batch, mask_head, mask_query, mask_col, CAUSAL, MASK_BYTES, ACC, WIDE, AXIS, ROWS, COLS, "",
            )  # fmt: skip
            higher = tl.maximum(top, tl.max(x, AXIS))
            # As long as a row has shown nothing but -inf, -inf - -inf must not make its sum NaN.
            low = tl.where(higher == -_INF, 0.0, higher)
            total = total * tl.exp(top - low) + tl.sum(_exp(x - tl.expand_dims(low, AXIS), EXP2_BIAS), AXIS)
            top = higher
        if ZERO:
            top = tl.where(top == -_INF, 0.0, top)
            total = tl.where(total == 0, 1.0, total)
        scale = tl.expand_dims(_reciprocal(total, COLS, EXP2_BIAS), AXIS)
        top = tl.expand_dims(top, AXIS)
        total = tl.expand_dims(total, AXIS)
        for part in tl.range(0, tl.cdiv(cols, COLS), num_stages=STAGES):
            block, first, column, mask, _, _ = _place(
                tile, part, inner, cols, 0, in_outer, in_inner, WIDE, AXIS, ROWS, COLS, False, 1
            )
            source = _pointers(
                in_ptr, block, first, column, in_outer, in_inner, in_col, WIDE, AXIS, ROWS, COLS, False
            )  # fmt: skip
            x = _scores(
                source, mask, block, first, column, inner, mask_ptr, factor, queries, heads,
                mask_batch, mask_head, mask_query, mask_col, CAUSAL, MASK_BYTES, ACC, WIDE, AXIS, ROWS, COLS, "",
            )  # fmt: skip
            x -= top
            y = x - tl.log(total) if LOG else _exp(x, EXP2_BIAS) * scale
            target = _pointers(
                out_ptr, block, first, column, out_outer, out_inner, out_col, WIDE, AXIS, ROWS, COLS, False
            )  # fmt: skip
            tl.store(target, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def backward_looped(
    out_ptr, in_ptr, y_ptr, outer, inner, cols, in_outer, in_inner, in_col, out_outer, out_inner, out_col, factor,
    LOG: tl.constexpr, ACC: tl.constexpr, EXP2_BIAS: tl.constexpr, WIDE: tl.constexpr, AXIS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of rows wider than a tile: one pass over column tiles for the sum, a second for dX."""
    for tile in tl.range(tl.program_id(0), outer * tl.cdiv(inner, ROWS), tl.num_programs(0)):
        total = tl.zeros([ROWS], ACC)
        for part in tl.range(0, tl.cdiv(cols, COLS), num_stages=STAGES):
            block, first, column, mask, _, _ = _place(
                tile, part, inner, cols, 0, in_outer, in_inner, WIDE, AXIS, ROWS, COLS, False, 1
            )
            source = _pointers(
                in_ptr, block, first, column, in_outer, in_inner, in_col, WIDE, AXIS, ROWS, COLS, False
            )  # fmt: skip
            dy = tl.load(source, mask=mask, other=0.0).to(ACC)
            if not LOG:
                saved = _pointers(
                    y_ptr, block, first, column, out_outer, out_inner, out_col, WIDE, AXIS, ROWS, COLS, False
                )  # fmt: skip
                dy *= tl.load(saved, mask=mask, other=0.0).to(ACC)
            total += tl.sum(dy, AXIS)
        across = tl.expand_dims(total, AXIS)
        for part in tl.range(0, tl.cdiv(cols, COLS), num_stages=STAGES):
            block, first, column, mask, _, _ = _place(
                tile, part, inner, cols, 0, in_outer, in_inner, WIDE, AXIS, ROWS, COLS, False, 1
            )
            source = _pointers(
                in_ptr, block, first, column, in_outer, in_inner, in_col, WIDE, AXIS, ROWS, COLS, False
            )  # fmt: skip
            saved = _pointers(
                y_ptr, block, first, column, out_outer, out_inner, out_col, WIDE, AXIS, ROWS, COLS, False
            )  # fmt: skip
            dy = tl.load(source, mask=mask, other=0.0).to(ACC)
            y = tl.load(saved, mask=mask, other=0.0).to(ACC)
            dx = dy - _exp(y, EXP2_BIAS) * across if LOG else y * (dy - across)
            if factor is not None:
                dx *= factor
            target = _pointers(
                out_ptr, block, first, column, out_outer, out_inner, out_col, WIDE, AXIS, ROWS, COLS, False
            )  # fmt: skip
            tl.store(target, dx.to(out_ptr.dtype.element_ty), mask=mask)
