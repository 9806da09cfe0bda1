"""The largest tiles that fit in a vector core's unified buffer, by live tiles, schedule and layout.

The compiler keeps all tensors that are live at the same time in the unified buffer and cannot spill: a tile that does
not fit does not compile. If a tile leaves enough room, the compiler allocates two buffers for loads and stores, so that
transfers and computation overlap. If it does not, the compiler uses one buffer.
"""

from __future__ import annotations

from typing import NamedTuple

from tridal.devices.types import Layout, Problem, Schedule
from tridal_npu.architectures import SMALLEST_UNIFIED_BUFFER


class Limit(NamedTuple):
    """The largest tiles for one size of the unified buffer, in elements."""

    max_elements: int
    """The largest tile that fits."""
    max_double_buffered: int
    """The largest tile that leaves room for double buffering."""


# The limits of 1, 2 and 3 live tiles, for 192 KiB.

# One contiguous row per tile, and the column loop over rows. `max_elements` is the largest tile that AscendNPU-IR's
# allocator accepted, for float32 or bfloat16, whichever is smaller. The allocator double-buffered 16,384 elements with
# 1 live tile and 8,192 with 3. The other values of `max_double_buffered` are conservative. The allocator also accepted
# 19,456 elements for one gradient with 3 live tiles. But a tile of 16,384 elements would leave no room for a broadcast
# that the compiler does not fuse.
_ONE_ROW = Limit(32_512, 16_384), Limit(19_456, 8_192), Limit(13_824, 8_192)
_ROW_COLUMN_LOOP = Limit(32_512, 8_192), Limit(32_512, 8_192), Limit(10_752, 4_096)

# Other tiles. The only figure from the allocator is 30,720 elements for 8 rows with 1 live tile. The limits are sums
# over the tensors that are live at the same time: a float32 tensor takes 4 bytes per element, a sum along the
# contiguous axis takes 2 more, a sum along the other axis 4 more, and a broadcast that is not fused 4 more. Double
# buffering counts the bytes of loads and stores twice. In the "strided" layout, each element is transferred in its own
# block of 32 bytes, and computed values may keep that spacing.
_TABLES: dict[tuple[Layout, Schedule], tuple[Limit, ...]] = {
    ("row", "whole_row"): (Limit(16_384, 8_192), Limit(12_288, 8_192), Limit(9_830, 4_096)),
    ("row", "column_loop"): _ROW_COLUMN_LOOP,
    ("inner", "whole_row"): (Limit(16_384, 8_192), Limit(12_288, 4_096), Limit(9_830, 4_096)),
    ("inner", "column_loop"): (Limit(8_192, 4_096),) * 3,
    ("strided", "whole_row"): (Limit(1_228, 1_024), Limit(1_228, 512), Limit(877, 512)),
    ("strided", "column_loop"): (Limit(877, 512),) * 3,
}


def limit(problem: Problem, schedule: Schedule, rows: int, unified_buffer: int) -> Limit:
    """Returns the limit for tiles of `rows` rows. `unified_buffer` is in bytes."""
    one_row = problem.layout == "row" and schedule == "whole_row" and rows == 1
    table = _ONE_ROW if one_row else _TABLES[problem.layout, schedule]
    known = len(table)
    found = table[min(max(1, problem.live_tiles), known) - 1]
    live_tiles = max(known, problem.live_tiles)  # more live tiles than in the table take room in proportion
    return Limit(*(size * known // live_tiles * unified_buffer // SMALLEST_UNIFIED_BUFFER for size in found))
