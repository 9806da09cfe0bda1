"""The largest tiles that fit in a vector core's unified buffer, by live tiles, schedule and layout.

The compiler keeps all tensors that are live at the same time in the unified buffer and cannot spill: a tile that does
not fit does not compile. If a tile leaves enough room, the compiler allocates two buffers for loads and stores, so that
transfers and computation overlap. If it does not, the compiler uses one buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tridal.devices.types import Layout, Problem, Schedule
from tridal_npu.architectures import SMALLEST_UNIFIED_BUFFER


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest tiles for one size of the unified buffer, in elements."""

    max_elements: int
    """The largest tile that fits."""
    max_double_buffered: int
    """The largest tile that leaves room for double buffering."""

    def scaled(self, unified_buffer: int) -> Limit:
        """Converts a limit for the smallest unified buffer into one for `unified_buffer` bytes."""
        return Limit(
            self.max_elements * unified_buffer // SMALLEST_UNIFIED_BUFFER,
            self.max_double_buffered * unified_buffer // SMALLEST_UNIFIED_BUFFER,
        )


# All tables are for 192 KiB. Their keys are the live tiles of a problem.

# One contiguous row per tile. `max_elements` is the largest tile that AscendNPU-IR's allocator accepted, for float32 or
# bfloat16, whichever is smaller. The allocator double-buffered 16,384 elements with 1 live tile and 8,192 with 3. The
# other values of `max_double_buffered` are conservative. The allocator also accepted 19,456 elements for one gradient
# with 3 live tiles. But a tile of 16,384 elements would leave no room for a broadcast that the compiler does not fuse.
_ONE_ROW = {
    1: Limit(32_512, 16_384),
    2: Limit(19_456, 8_192),
    3: Limit(13_824, 8_192),
}
_ONE_ROW_COLUMN_LOOP = {
    1: Limit(32_512, 8_192),
    2: Limit(32_512, 8_192),
    3: Limit(10_752, 4_096),
}

# Other tiles. The only figure from the allocator is 30,720 elements for 8 rows with 1 live tile. The limits are sums
# over the tensors that are live at the same time: a float32 tensor takes 4 bytes per element, a sum along the
# contiguous axis takes 2 more, a sum along the other axis 4 more, and a broadcast that is not fused 4 more. Double
# buffering counts the bytes of loads and stores twice.
_SEVERAL_ROWS = {
    1: Limit(16_384, 8_192),
    2: Limit(12_288, 8_192),
    3: Limit(9_830, 4_096),
}
_INNER = {
    1: Limit(16_384, 8_192),
    2: Limit(12_288, 4_096),
    3: Limit(9_830, 4_096),
}
_INNER_COLUMN_LOOP = dict.fromkeys(_INNER, Limit(8_192, 4_096))

# Each strided element is transferred in its own block of 32 bytes, and computed values may keep that spacing.
_STRIDED = {
    1: Limit(1_228, 1_024),
    2: Limit(1_228, 512),
    3: Limit(877, 512),
}
_STRIDED_COLUMN_LOOP = dict.fromkeys(_STRIDED, Limit(877, 512))

_MAX_LIVE_TILES = 3
"""Live tiles of the last entry of each table."""

_TABLES: dict[tuple[Layout, Schedule], dict[int, Limit]] = {
    ("row", "whole_row"): _SEVERAL_ROWS,
    ("row", "column_loop"): _ONE_ROW_COLUMN_LOOP,
    ("inner", "whole_row"): _INNER,
    ("inner", "column_loop"): _INNER_COLUMN_LOOP,
    ("strided", "whole_row"): _STRIDED,
    ("strided", "column_loop"): _STRIDED_COLUMN_LOOP,
}


def limit(problem: Problem, schedule: Schedule, rows: int, unified_buffer: int) -> Limit:
    """Returns the limit for tiles of `rows` rows. `unified_buffer` is in bytes."""
    one_row = problem.layout == "row" and schedule == "whole_row" and rows == 1
    table = _ONE_ROW if one_row else _TABLES[problem.layout, schedule]
    live_tiles = max(1, problem.live_tiles)
    found = table[min(live_tiles, _MAX_LIVE_TILES)]
    if live_tiles > _MAX_LIVE_TILES:  # further live tiles take room in proportion
        found = Limit(
            found.max_elements * _MAX_LIVE_TILES // live_tiles,
            found.max_double_buffered * _MAX_LIVE_TILES // live_tiles,
        )
    return found.scaled(unified_buffer)
