"""The schedule "column_loop" for rows that are wider than a tile: a program loops twice over blocks of columns.

The first loop computes the statistics of the rows, the second loop the output. With `lanes` above 1, a row is divided
into so many lanes, which have their own statistics until the first loop ends. With `peel`, the statistics of the head
and the tail are computed before the loop, and there is no second loop. If several programs compute a row, each has
every `programs_per_row`-th block of columns, and they exchange their statistics between the loops. With `reload`, the
first loop asks the cache to keep the elements for the second one.
"""

from __future__ import annotations

from collections.abc import Mapping

from tridal.kernels import groups, small_tiles
from tridal.kernels.parts import merge_parts
from tridal.kernels.pieces import Writer, merged
from tridal.kernels.row_kernel import Statistic
from tridal.kernels.text import Text
from tridal.kernels.text_plan import AFTER_STATISTICS, OUTPUTS, TextPlan


def column_loop(w: Writer) -> None:
    """Writes the kernel."""
    p, k = w.plan, w.kernel
    # The maximum changes from block to block, so terms have no common factor.
    p.flags = {"UNNORMALIZED": False, "GUARD": p.exchange or p.zero_masked_rows, "REFINE": p.cols >= 128}
    p.flags_of["term"] = {"GUARD": True}  # all elements of a block of columns may be -inf
    p.flags_of["rebase"] = {"EXP2_BIAS": None}  # the device's exp is fast enough for one number per row
    groups.programs(w)
    with groups.tiles(w):
        w.position()
        w.load_rows(p.all_used)
        w.pick()
        if k.computed:
            statistics(w)
        elif k.parts:
            merge_parts(w)
        if not p.exchange and "count" in p.used(*AFTER_STATISTICS, *["rebase"] * (p.lanes > 1)):
            w("count = tl.cast(cols, ACC)")
        if k.computed and p.lanes > 1:
            merge_lanes(w)
        if p.exchange:
            groups.exchange(w)
        w.row_value()
        w.store_rows()
        if k.writes or k.column_writes:
            used = p.used(*OUTPUTS)
            with blocks(w):
                w.bounds(f"column_block * {p.cols}", used)
                w.load(p.body, used, "evict_first" if p.reload else "", aligned=False)
                w.load_columns(used, [p.body])
                w.store(p.body, stream=p.reload, aligned=False)
                add_to_stored_sums(w)
    if p.exchange:
        groups.release(w)


def blocks(w: Writer) -> Text:
    """The loop over the blocks of columns of a program."""
    first, step = ("rank", ", PROGRAMS_PER_ROW") if w.plan.rank else ("0", "")
    return w(f"for column_block in tl.range({first}, tl.cdiv(cols, COLS){step}, num_stages=NUM_STAGES):")


def counts_elements(p: TextPlan) -> bool:
    """Whether each row or lane counts its elements, because blocks do not have the same columns of all of them."""
    return bool(p.counts and len(p.kernel.statistics) > 1 and (p.peel or p.rank or p.lanes > 1))


def needs_count(p: TextPlan) -> bool:
    """Whether the later statistics use the number of elements so far."""
    return "count" in p.used("rebase", statistics=p.kernel.statistics[1:])


def statistics(w: Writer) -> None:
    """Computes the statistics of each row or lane, block by block."""
    p, k, area = w.plan, w.kernel, w.plan.body
    (first, *laters), used = k.statistics, w.plan.used(statistics=k.statistics)
    for s in k.statistics:
        start = '-float("inf")' if s.reduce == "max" else "0.0"
        w(f"{s.name} = tl.full([{p.rows * p.lanes}], {start}, ACC)")
    if counts_elements(p):
        w(f"counted = tl.zeros([{p.rows * p.lanes}], ACC)")
    if p.peel:
        edges(w)
    with blocks(w):
        w.bounds(f"column_block * {p.cols}", used, head=not (p.peel and p.rows == 1))
        w.load(area, used, "evict_last" if p.reload else "", aligned=p.peel)
        w.load_columns(used, [area])
        if p.lanes > 1:
            column = p.column(area)
            bounds = {"in_bounds"} if p.masks_terms or counts_elements(p) else set()
            w("# Each lane has its own statistics until the loop ends.")
            for name in [n for n in ("in_bounds", column, *k.reads, *k.column_reads) if n in used | bounds]:
                w(f"{name} = split_lanes({name})")
        if f"part_{first.name}" in p.used("rebase"):
            w(f"part_{first.name} = {first.name}")
        w(merged(first.reduce, first.name, reduced(w, w.write_term(first, area), first.reduce)))
        if "part_count" in p.used("rebase"):
            w(
                "part_count = PART_COUNT",
                PART_COUNT="counted" if counts_elements(p) else f"tl.cast(column_block * {p.cols}, {p.acc})",
            )
        if counts_elements(p):
            w(f"counted += {reduced(w, 'in_bounds.to(ACC)', 'sum')}")
        if counts_elements(p) and needs_count(p):
            w("count = tl.maximum(counted, 1.0)  # a lane may have no elements")
        elif needs_count(p):
            w("count = tl.cast(tl.minimum((column_block + 1) * COLS, cols), ACC)")
        rebase(w)
        for s in laters:
            w(merged(s.reduce, s.name, reduced(w, w.write_term(s, area), s.reduce)))


def reduced(w: Writer, term: str, how: str) -> str:
    """Writes the reduction of a block: of its rows, or of its lanes."""
    return w.reduced(term, how, w.plan.body) if w.plan.lanes == 1 else f'reduce_lanes({term}, "{how}")'


def rebase(w: Writer, other: Mapping[str, str] | None = None) -> None:
    """Adapts the later statistics of the blocks before to the new first statistic."""
    for number, s in enumerate(w.kernel.statistics):
        if s.rebase:
            w(f"{s.name} = CALL", CALL=w.plan.call("rebase", s.rebase, statistic=number, other=other))


def edges(w: Writer) -> None:
    """Computes the statistics of heads and tails, as those of the first lane."""
    p, k, edge = w.plan, w.kernel, w.plan.edge
    used, first = p.used(statistics=k.statistics), k.statistics[0].name
    if p.rows == 1:
        w.head()
    else:
        w("rows_edge = INDEX", INDEX=edge.across(f"tl.arange(0, {p.rows}){p.int64}"))
    small_tiles.edges(w)
    w.load(edge, used)
    w.load_columns(used, [edge])
    of_rank = " - rank * ROWS" * bool(p.rank)
    w(f"has_edge = tl.arange(0, {p.rows * p.lanes}) < ROWS{of_rank}  # the first lane")
    if counts_elements(p):
        w("edge_count = tl.sum(in_bounds_edge.to(ACC), 0)")
    if counts_elements(p) and needs_count(p):
        w("count = tl.maximum(edge_count, 1.0)")
    for s in k.statistics:
        term = w.write_term(s, edge, {first: f"{first}_edge"})
        w(f"{s.name}_edge = VALUE", VALUE=w.reduced(term, s.reduce, edge))
    for s in k.statistics:
        w(f"{s.name} = tl.where(has_edge, {s.name}_edge, {s.name})")
    if counts_elements(p):
        w("counted = tl.where(has_edge, edge_count, counted)")
    if counts_elements(p) and needs_count(p):
        w("count = tl.maximum(counted, 1.0)  # a variable keeps its type in a loop")


def merge_lanes(w: Writer) -> None:
    """Combines the statistics of the lanes to those of a row."""
    first, *laters = w.kernel.statistics

    def merge(s: Statistic, lanes: str) -> None:
        w(f'{s.name} = merge_lanes({lanes}, "{s.reduce}")')

    if f"part_{first.name}" in w.plan.used("rebase"):
        w(f"part_{first.name} = {first.name}")
    if "part_count" in w.plan.used("rebase"):
        w("part_count = counted")
    if w.plan.exchange and counts_elements(w.plan) and needs_count(w.plan):
        w('count = repeat_lanes(tl.maximum(merge_lanes(counted, "sum"), 1.0))')
    merge(first, first.name)
    rebase(w, {first.name: f"repeat_lanes({first.name})"} if w.plan.rows > 1 else None)
    for s in laters:
        merge(s, s.name)


def add_to_stored_sums(w: Writer) -> None:
    """Adds the terms of a block of columns to the partial sums of the program, which are in memory."""
    p, names, group = w.plan, w.kernel.column_writes, groups.group(w.plan)
    if names:
        w("sum_column = column_block * COLS + tl.arange(0, COLS)")
    for name in names:
        named = {"TERM": f"tl.sum({w.write_sum_term(name, p.body)}, {1 - p.axis})", "FIRST_TILE": groups.first_tile(p)}
        w(f"""
            {name}_at = {name}_sums + tl.cast({group}, tl.int64) * cols + sum_column
            is_later_tile = tile != FIRST_TILE
            sum_of_{name} = tl.load({name}_at, mask=(sum_column < cols) & is_later_tile, other=0.0)
            tl.store({name}_at, sum_of_{name} + TERM, mask=sum_column < cols)""", **named)  # fmt: skip
