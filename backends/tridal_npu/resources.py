"""The largest tiles that fit in a vector core's unified buffer. They depend on live tiles, schedule and layout.

The compiler keeps all live tensors in the unified buffer and cannot spill. A tile that is too large does not compile.
If there is enough room, the compiler uses two buffers for loads and stores, so that transfers and computation overlap.
"""

from __future__ import annotations

from typing import NamedTuple

from tridal.devices.types import Layout, Problem, Schedule
from tridal_npu.architectures import SMALLEST_UNIFIED_BUFFER


class Limit(NamedTuple):
    """The sizes of the largest tiles, in elements."""

    max_elements: int
    """The largest tile that fits."""
    max_double_buffered: int
    """The largest tile that leaves room for double buffering."""


# Each tuple has the limits for 1, 2 and 3 live tiles and a unified buffer of 192 KiB.

# Limits for tiles of one contiguous row, and for `column_loop` in the "row" layout. `max_elements` is the largest tile
# that AscendNPU-IR's allocator accepted, for both float32 and bfloat16. The allocator double-buffered 16,384 elements
# with 1 live tile and 8,192 with 3. The other values of `max_double_buffered` are conservative. With 3 live tiles, the
# allocator accepted 19,456 elements for one gradient, but the limit is lower: a tile of 16,384 elements would leave no
# room for a broadcast that the compiler does not fuse.
_ONE_ROW = Limit(32_512, 16_384), Limit(19_456, 8_192), Limit(13_824, 8_192)
_ROW_COLUMN_LOOP = Limit(32_512, 8_192), Limit(32_512, 8_192), Limit(10_752, 4_096)

# Limits for other tiles. They are calculated from the bytes per element of all live tensors: 4 for a float32 tensor,
# 2 more for a sum along the contiguous axis, 4 more for a sum along the other axis, and 4 more for a broadcast that is
# not fused. Double buffering counts loads and stores twice. In the "strided" layout, each element is transferred in its
# own block of 32 bytes, and computed values may keep that spacing. The allocator confirmed only one limit for such
# tiles: it accepted 30,720 elements for 8 rows with 1 live tile.
_TABLES: dict[tuple[Layout, Schedule], tuple[Limit, ...]] = {
    ("row", "whole_row"): (Limit(16_384, 8_192), Limit(12_288, 8_192), Limit(9_830, 4_096)),
    ("row", "column_loop"): _ROW_COLUMN_LOOP,
    ("inner", "whole_row"): (Limit(16_384, 8_192), Limit(12_288, 4_096), Limit(9_830, 4_096)),
    ("inner", "column_loop"): (Limit(8_192, 4_096),) * 3,
    ("strided", "whole_row"): (Limit(1_228, 1_024), Limit(1_228, 512), Limit(877, 512)),
    ("strided", "column_loop"): (Limit(877, 512),) * 3,
}


def limit(problem: Problem, schedule: Schedule, rows: int, unified_buffer: int) -> Limit:
    """Looks up the limits for tiles of `rows` rows. `unified_buffer` is the size in bytes."""
    one_row = problem.layout == "row" and schedule == "whole_row" and rows == 1
    table = _ONE_ROW if one_row else _TABLES[problem.layout, schedule]
    known = len(table)
    found = table[min(max(1, problem.live_tiles), known) - 1]
    live_tiles = max(known, problem.live_tiles)  # beyond the table, the limits shrink in proportion
    return Limit(*(size * known // live_tiles * unified_buffer // SMALLEST_UNIFIED_BUFFER for size in found))
