"""The dynamic tile scheduler of cooperative programs: groups claim tiles from a counter.

The programs of one row are a group. Some cores reach memory faster than others, so tiles are not assigned in advance:
while a group computes a tile, rank 0 claims the group's next tile and publishes the claim to the other programs.

The workspace has more slots after those of the tiles. Two slots hold the number of claimed tiles and the number of
groups that have finished. Three slots for each group hold its claims and the number of its finished programs. There
are two slots for claims, because the slowest program of the group may still read the older one.
"""

import triton
import triton.language as tl


@triton.jit
def _counter(workspace, tiles):
    """Returns a pointer to the number of claimed tiles. The number of finished groups follows it."""
    return workspace + tl.cast(tiles, tl.int64) * SLOTS


@triton.jit
def _group_slots(workspace, tiles, group):
    """Returns a pointer to the two claims of a group. The number of its finished programs follows them."""
    return _counter(workspace, tiles) + 2 + 3 * group


@triton.jit
def claim(workspace, tiles, group, rank, iteration, end):
    """Rank 0 claims the tile of the group's next iteration, if there is one, and publishes it."""
    if (rank == 0) & (iteration + 1 < end):
        claimed = 1 + tl.atomic_add(_counter(workspace, tiles), 1, sem="relaxed")
        tl.atomic_xchg(_group_slots(workspace, tiles, group) + iteration % 2, claimed, sem="relaxed")


@triton.jit
def read_claim(workspace, tiles, group, iteration):
    """Returns a claim: tile - groups + 1. Until it is published, returns the stale claim of two iterations ago."""
    return tl.load(_group_slots(workspace, tiles, group) + iteration % 2, volatile=True)


@triton.jit
def await_claim(claimed, workspace, tiles, group, groups, iteration, end, tile):
    """Waits for the claim of this iteration and returns its tile. A stale claim is not above that of `tile`."""
    if iteration + 1 < end:
        while claimed <= tl.maximum(tile - groups + 1, 0):
            claimed = read_claim(workspace, tiles, group, iteration)
        tile = tl.cast(claimed, tl.int32) - 1 + groups
    return tile


@triton.jit
def release_group(workspace, tile, tiles, group, groups, DYNAMIC: tl.constexpr):
    """The last program of a group clears the slots of its last tile. With DYNAMIC, the last of all clears the counter.

    Relaxed atomics suffice, because all threads of a program have read their slots before the barrier.
    """
    tl.debug_barrier()
    counter, slots = _counter(workspace, tiles), _group_slots(workspace, tiles, group)
    if tl.atomic_add(slots + 2, 1, sem="relaxed") == PROGRAMS_PER_ROW - 1:
        index = tl.arange(0, SPLIT_POW2 * ROWS)
        last = workspace + tl.cast(tile, tl.int64) * SLOTS + index
        computed = group < tiles  # if there are more groups than tiles, some groups have no last tile
        tl.store(last, tl.zeros([SPLIT_POW2 * ROWS], tl.int64), mask=(index < SLOTS) & computed)
        slot = tl.arange(0, 4)
        tl.store(slots + slot, tl.zeros([4], tl.int64), mask=slot < 3)
        if DYNAMIC and tl.atomic_add(counter + 1, 1, sem="relaxed") == groups - 1:
            tl.store(counter + tl.arange(0, 2), tl.zeros([2], tl.int64))
