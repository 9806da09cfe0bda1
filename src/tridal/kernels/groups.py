"""Writes the loop of programs over tiles, and what programs that compute a row together do: claims and exchanges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tridal.kernels.pieces import Writer
from tridal.kernels.text_plan import AFTER_STATISTICS, OUTPUTS, TextPlan


def claims_tiles(p: TextPlan) -> bool:
    """Whether groups claim tiles from a counter.

    Sums over rows are the same in every run only if each program always computes the same rows. Claims have 32 bits.
    Triton pipelines a loop over tiles (`num_stages`) only if the tiles are known in advance.
    """
    pipelined = p.num_stages > 1 and not p.loops
    return bool(p.exchange and p.persistent and not (pipelined or p.kernel.column_writes or p.int64_tiles))


def group(p: TextPlan) -> str:
    """The index of the group of a program. If programs do not loop, each group has one tile."""
    return "group" if p.rank or p.persistent else "tile"


def first_tile(p: TextPlan) -> str:
    """The first tile of a program that does not claim tiles."""
    return "first_tile + group % groups" if p.per_block and p.persistent else group(p)


def programs(w: Writer) -> None:
    """The index of a program's group, its rank in the group, the number of groups, and the number of tiles."""
    p = w.plan
    if p.rank:
        w("rank, group = tl.program_id(0) % PROGRAMS_PER_ROW, tl.program_id(0) // PROGRAMS_PER_ROW")
    elif p.persistent:
        w("group = tl.program_id(0)")
    if p.per_block and p.persistent:
        w.block_of_program("group")
    elif p.persistent or p.exchange:
        w("groups = tl.num_programs(0)" + (" // PROGRAMS_PER_ROW" if p.rank else ""))
        w("tiles = TILES")


@contextlib.contextmanager
def tiles(w: Writer) -> Iterator[None]:
    """The loop over the tiles of a program, or its only tile."""
    p = w.plan
    if not p.persistent:
        w("tile = group" if p.rank else "tile = tl.program_id(0)")
        yield
    elif not claims_tiles(p):
        stages = "" if p.loops else ", num_stages=NUM_STAGES"
        with w(f"for tile in tl.range(FIRST_TILE, tiles, groups{stages}):", FIRST_TILE=first_tile(p)):
            yield
            if p.exchange:
                w("clear_slots(workspace, tile - groups, rank)")
    else:  # a group may claim 5/4 of the average number of tiles per group, and one more
        w("""
            claimed, last = group, -1
            end = tl.cdiv(tiles, groups) * 5 // 4 + 1""")
        with w("for iteration in tl.range(0, end):"), w("if claimed < tiles:"):
            w("tile = claimed")
            yield
            w("""
                clear_slots(workspace, last, rank)
                last = tile
                claimed = await_claim(next_claim, workspace, tiles, group, groups, iteration, end, tile)""")


def exchange(w: Writer) -> None:
    """Publishes the statistics of this part of a row, and combines those of all parts."""
    p, k = w.plan, w.kernel
    first, second = [*(s.name for s in k.statistics), "unused"][:2]
    parameters = "".join(f", {name}" for name in p.rebase_numbers)
    if f"part_{first}" in p.used(*OUTPUTS, "row_value"):
        w(f"part_{first} = {first}")
    if second == "unused":
        w(f"unused = tl.zeros_like({first})")
    w("# The programs of a row wait for the statistics of all of its parts.")
    published = f"after_picked({first}, picked, cols)" if p.picks and k.writes else first
    w(f"publish(workspace, tile, rank, {published}, {second})")
    if claims_tiles(p):  # here, because the programs wait for each other anyway
        w("claim(workspace, tiles, group, rank, iteration, end)")
    length = "BODY_LENGTH" if p.counts else "cols"
    w(f"{first}, {second}, part_scale = collect(workspace, tile, rank, {first}, {length}, cols{parameters})")
    if claims_tiles(p):
        w("next_claim = read_claim(workspace, tiles, group, iteration)")
    if "count" in p.used(*AFTER_STATISTICS):
        w("count = tl.cast(cols, ACC)")


def release(w: Writer) -> None:
    """Clears the slots of a group's last tile, and the counter."""
    if claims_tiles(w.plan):
        w("release_group(workspace, last, tiles, group, groups, True)")
    elif w.plan.persistent:
        w("last = tiles - 1 - (tiles - 1 - group) % groups")
        w("release_group(workspace, last, tiles, group, groups, False)")
    else:
        w("release_group(workspace, tile, tiles, group, groups, False)")
