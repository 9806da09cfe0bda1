"""Faults of the exchange, each an edit of the kernels' source or of the launch, and the launch in which it is found."""

from __future__ import annotations

from dataclasses import dataclass

from exchange_model.launches import Launch
from exchange_model.source import Edit


@dataclass(frozen=True)
class SeededFault:
    """A fault and what it leads to."""

    name: str
    launch: Launch
    edits: tuple[Edit, ...]
    found: str
    """A part of the message with which the fault is found."""


_ONE_SHOT = Launch(2, 1, persistent=False, warps=(2, 1))
_STATIC = Launch(2, 2, dynamic=False, warps=(2, 1))
_DYNAMIC = Launch(2, 3, warps=(1,))
_TWO_GROUPS = Launch(2, 3, groups=2, warps=(1,), ordered=True)

_LOAD = "word = tl.load(slots, mask=valid, other=1, volatile=True)"
_LOAD_HALVES = """halves = tl.cast(slots, tl.pointer_type(tl.int32))
    low = tl.load(halves, mask=valid, other=1, volatile=True)
    high = tl.load(halves + 1, mask=valid, other=0, volatile=True)
    word = (tl.cast(high, tl.int64) << 32) | (tl.cast(low, tl.int64) & 0xFFFFFFFF)"""
_PUBLISH = 'tl.atomic_xchg(slots + rank, _pack(first, second), sem="relaxed")'
_PUBLISH_HALVES = """halves = tl.cast(slots + rank, tl.pointer_type(tl.int32))
        tl.store(halves, tl.cast(_pack(first, second), tl.int32))
        tl.store(halves + 1, tl.cast(_pack(first, second) >> 32, tl.int32))"""
_NO_LAST_BARRIER = (Edit("tile_counter", "    tl.debug_barrier()\n", ""),)
_CLEAR, _CLEAR_CLAIMED = "workspace, tile - groups, rank", "workspace, last, rank"
_FIRST_RELEASES = (Edit("tile_counter", "== PROGRAMS_PER_ROW - 1", "== 0"),)
_CLAIM, _READ = "+ iteration % 2, claimed", "+ iteration % 2, volatile"
_PACK = """return ~(
        (tl.cast(bits, tl.int64) << 32) | (tl.cast(tl.cast(second, tl.int32, bitcast=True), tl.int64) & 0xFFFFFFFF)
    )"""

FAULTS = (
    SeededFault("early clear", _STATIC, (Edit("whole_row", _CLEAR, "workspace, tile, rank"),), "deadlock"),
    SeededFault(
        "early clear by groups that claim", _DYNAMIC,
        (Edit("whole_row", _CLEAR_CLAIMED, "workspace, tile, rank"),), "deadlock",
    ),
    SeededFault("missing barrier at the end", _STATIC, _NO_LAST_BARRIER, "deadlock"),
    SeededFault("missing barrier at the end, one-shot", _ONE_SHOT, _NO_LAST_BARRIER, "deadlock"),
    SeededFault(
        "missing barrier between small tiles", Launch(2, 2, tile_in_one_warp=True),
        (Edit("exchange", "if ROWS * COLS <= WARP:", "if False:"),), "deadlock",
    ),
    SeededFault(
        "one program too few, one-shot", Launch(2, 1, persistent=False, warps=(1,), resident=1), (), "deadlock",
    ),
    SeededFault("one program too few", Launch(3, 2, warps=(1,), ordered=True, resident=2), (), "deadlock"),
    SeededFault("torn read", _STATIC, (Edit("exchange", _LOAD, _LOAD_HALVES),), "stale or torn word"),
    SeededFault("torn write", _STATIC, (Edit("exchange", _PUBLISH, _PUBLISH_HALVES),), "stale or torn word"),
    SeededFault(
        "clear of the wrong tile", _STATIC,
        (Edit("whole_row", _CLEAR, "workspace, tile - 2 * groups, rank"),), "not zero",
    ),
    SeededFault(
        "one slot for claims", _DYNAMIC,
        (Edit("tile_counter", _CLAIM, ", claimed"), Edit("tile_counter", _READ, ", volatile")), "deadlock",
    ),
    SeededFault(
        "stale claims accepted", Launch(2, 4, warps=(1,), ordered=True, delayed=True),
        (Edit("tile_counter", "claimed <= tl.maximum(tile - groups + 1, 0)", "claimed == 0"),), "deadlock",
    ),
    SeededFault("every program claims", _DYNAMIC, (Edit("tile_counter", "(rank == 0) & ", ""),), "deadlock"),
    SeededFault(
        "too few iterations", _TWO_GROUPS,
        (Edit("whole_row", "tl.cdiv(tiles, groups) * 5 // 4 + 1", "tiles // groups"),), "not computed",
    ),
    SeededFault(
        "tile counter not cleared", _DYNAMIC,
        (Edit("tile_counter", "tl.store(counter + tl.arange(0, 2), tl.zeros([2], tl.int64))", "pass"),), "not zero",
    ),
    SeededFault("group released by its first program", _STATIC, _FIRST_RELEASES, "deadlock"),
    SeededFault("group released by its first program, one-shot", _ONE_SHOT, _FIRST_RELEASES, "deadlock"),
    SeededFault(
        "group not released, one-shot", _ONE_SHOT,
        (Edit("whole_row", "release_group(workspace, tile, tiles, group, groups, False)", "pass"),), "not zero",
    ),
    SeededFault(
        "counter cleared by the first group", _TWO_GROUPS,
        (Edit("tile_counter", "== groups - 1", "== 0"),), "computed twice",
    ),
    SeededFault(
        "clear by a group without tiles", Launch(2, 1, groups=2, warps=(1,)),
        (Edit("tile_counter", "(index < SLOTS) & computed", "index < SLOTS"),), "outside of the workspace",
    ),
    SeededFault(
        "words that can be zero", _STATIC,
        (Edit("exchange", _PACK, _PACK.replace("~", "")), Edit("exchange", "word = ~word", "word = word")), "deadlock",
    ),
    SeededFault(
        "one published slot suffices", _STATIC,
        (Edit("exchange", "tl.min(tl.ravel(", "tl.max(tl.ravel("),), "stale or torn word",
    ),
)  # fmt: skip
"""All faults. Each is found by exploring its launch."""
