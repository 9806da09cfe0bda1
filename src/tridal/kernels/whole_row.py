"""The schedules "whole_row" and "cooperative": a tile holds whole rows, or the part of a row that one program computes.

Each element of an input is read from memory once, and each element of an output is written once. A tensor is `outer`
blocks of `inner` rows of `cols` elements. Strides are in elements. A plan chooses:
  programs_per_row  if above 1, this many programs form a group and compute a row together ("cooperative"). Each has one
                    part of the row; its index in the group is its rank. They exchange their statistics, if it has any.
  persistent        programs loop over tiles, so any number of them computes the same result. If not, a program computes
                    one tile, or its part of one, with fewer registers.
  peel              the unaligned head and tail of a row, fewer than `vector` elements each, are a small extra tile.
                    `misalignment`: elements from a vector boundary to the first row. `same_misalignment`: whether all
                    tensors have this misalignment.
  rest_cols         a row has a second tile of this many columns. The first tile is full, so it has no mask.
  reload            each pass over a tile loads its elements again, from the core's cache, to save registers. The small
                    extra tile stays in registers. The passes are: statistics without `rebase`; statistics with
                    `rebase`, whose terms use the first one; outputs.
  num_stages        number of tiles in flight in the loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

from tridal.kernels.groups import exchange, group, programs, release, tiles
from tridal.kernels.parts import merge_parts
from tridal.kernels.pieces import Writer
from tridal.kernels.small_tiles import edges
from tridal.kernels.text_plan import AFTER_STATISTICS, OUTPUTS, TextPlan, times
from tridal.kernels.top_tensors import load_top, store_top

CHUNKS = 4


def whole_row(w: Writer) -> None:
    """Writes the text of the kernel, before Triton compiles it."""
    p, k = w.plan, w.kernel
    may_be_empty = p.exchange or k.parts == 1 or p.zero_masked_rows  # all elements of a part of a row may be -inf
    p.flags = {"GUARD": may_be_empty, "REFINE": p.cols >= 128}
    alone = p.programs_per_row == 1 and not k.parts
    p.flags["UNNORMALIZED"] = alone and p.axis == 1  # axis 0 would take two registers per row
    offset = times("rank", str(p.cols)) if p.rank else ""
    programs(w)
    if loads_columns_once(p):  # all tiles of a program have the same columns
        if not p.loads_flat:
            w.indices(p.body)
        w.begin(offset, p.all_used, p.body)
        w.load_columns(p.all_used)
    zero_sums(w)
    with tiles(w):
        w.position()
        used = p.used(statistics=k.statistics) if in_chunks(p) else p.all_used
        w.bounds(offset, used & {"column"} if loads_columns_once(p) else used)
        edges(w)
        w.load_rows(p.all_used)
        w.pick()
        load_top(w)
        count(w)
        passes = [[s for s in k.computed if not s.rebase], [s for s in k.computed if s.rebase]]
        passes = [statistics for statistics in passes if statistics]
        for number, statistics in enumerate(passes):
            load(w, number, p.used(statistics=statistics))
            w.statistics(statistics)
        if not passes:  # before the numbers per row are computed, which the load need not wait for
            load(w, 0, p.all_used)
        if p.exchange:
            exchange(w)
        if k.parts > 1:
            merge_parts(w)
        w.row_value()
        w.store_rows()
        store_top(w)
        if in_chunks(p):
            outputs_in_chunks(w)
        elif k.writes or k.column_writes:
            if passes:
                load(w, len(passes), p.used(*OUTPUTS), is_last=True)
            if k.writes:
                hide_stride(w, 0)
            for area in p.areas:
                w.store(area, stream=p.reload)
            add_to_sums(w)
    if p.exchange:
        release(w)
    store_sums(w)


def loads_columns_once(p: TextPlan) -> bool:
    """Whether numbers per column are loaded before the loop."""
    return bool(p.persistent and not p.peel and not p.reload and not p.all_used.isdisjoint(p.kernel.column_reads))


def in_chunks(p: TextPlan) -> bool:
    """Whether outputs are computed in chunks of a row: numbers per column need as many registers as its elements."""
    k = p.kernel
    wide = p.reload and p.rows == 1 and p.axis == 1 and p.cols >= CHUNKS
    return bool(wide and k.statistics and k.column_reads and k.writes and not k.column_writes)


def hide_stride(w: Writer, number: int) -> None:
    """Hides the stride between columns from Triton in pass `number` over a tile.

    In a cooperative schedule over inner rows, Triton would move the offsets of all elements out of the loop and keep
    them in registers. To prevent this, `TextPlan.at` adds `zero` to the stride. It is 0, because no tile is negative,
    but Triton does not know that.
    """
    if w.plan.hides_stride:
        w("# With a known stride, Triton would keep the offsets of all elements in registers.")
        w(f"zero = tl.where(tile < -{number}, 16, 0)")


def load(w: Writer, number: int, used: Collection[str], is_last: bool = False) -> None:
    """Loads what pass `number` uses: numbers per column; elements in the first pass, or with `reload` in each pass.

    With `reload`, the first pass asks the cache to keep the elements until the last pass.
    """
    p = w.plan
    if not loads_columns_once(p):
        w.load_columns(used)
    if number == 0 or p.reload:
        hide_stride(w, number)
    if number == 0 and p.reload:
        w.load(p.body, used, "evict_last")
        for area in p.areas[1:]:
            w.load(area, p.all_used)
    elif number == 0:
        for area in p.areas:
            w.load(area, p.all_used)
    elif p.reload:
        w.load(p.body, used, "evict_first" if is_last else "")


def count(w: Writer) -> None:
    """The number of elements that the statistics of a program cover."""
    p = w.plan
    if p.exchange and "count" in p.used(statistics=w.kernel.statistics):
        w("count = part_count(rank, BODY_LENGTH, cols, COLS)")
        if p.peel and not p.masks_terms:
            w("count = tl.maximum(count, 1.0)  # a part may have no elements")
    elif not p.exchange and "count" in p.used("term", *AFTER_STATISTICS):
        w("count = tl.cast(cols, ACC)")


def outputs_in_chunks(w: Writer) -> None:
    """Computes the outputs of a row in chunks."""
    p, used, area = w.plan, w.plan.used(*OUTPUTS), w.plan.chunk
    cols = p.cols // CHUNKS
    with w(f"for chunk in tl.static_range(0, {CHUNKS}):"):
        number = f"(rank * {CHUNKS} + chunk)" if p.rank else "chunk"
        w.bounds(times(number, str(cols)), used, area, cols, head=False)
        w.load(area, used, "evict_first")
        w.load_columns(used, [area])
        w.store(area, stream=True)
    for area in p.areas[1:]:
        w.load_columns(used, [area])
        w.store(area)


# Sums over rows are outputs with a number per column, for example the gradient of a weight. A program sums the terms of
# its own rows in registers. When it ends, it stores one row of partial sums, which the caller adds. The order of the
# additions is fixed, so the result is the same in every run.


def zero_sums(w: Writer) -> None:
    """The sums over rows before the first tile."""
    for name in w.kernel.column_writes:
        for area in w.plan.fixed_areas:
            w(f"{area(f'sum_of_{name}')} = tl.zeros({w.plan.shape_of(area)}, ACC)")


def add_to_sums(w: Writer) -> None:
    """Adds the terms of a tile."""
    for name in w.kernel.column_writes:
        for area in w.plan.fixed_areas:
            w("SUM += TERM", SUM=area(f"sum_of_{name}"), TERM=w.write_sum_term(name, area))


def store_sums(w: Writer) -> None:
    """Stores a row of partial sums for each group of programs."""
    p, names = w.plan, w.kernel.column_writes
    for area in p.fixed_areas if names else ():
        w("COLUMN = " + "rank * COLS + " * bool(p.rank) + p.arange(area), COLUMN=area("sum_column"))
    for name, area in itertools.product(names, p.fixed_areas):
        at, column = area(f"{name}_at"), area("sum_column")
        w(f"""
            {at} = {name}_sums + tl.cast({group(p)}, tl.int64) * cols + {column}
            tl.store({at}, tl.sum({area(f"sum_of_{name}")}, {1 - p.axis}), mask={column} < cols)""")
