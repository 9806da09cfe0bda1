"""How large a tile may be: what a vector core's unified buffer takes of each form of kernel.

The compiler allocates every tensor that is alive at once there, and has no memory to spill to: a tile that does not fit
does not compile. Where a tile leaves room, the compiler allocates twice what is loaded and stored, so that moving data
and computing overlap; it drops that by itself where it does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from tridal.devices.types import Algorithm, Layout, Problem
from tridal_npu.architectures import SMALLEST_UNIFIED_BUFFER


@dataclass(frozen=True, slots=True)
class Limit:
    """Elements of a tile: the most that fit, and the most with room for double buffering; both for one buffer size."""

    accepted: int
    double_buffered: int

    def scaled(self, unified_buffer: int) -> Limit:
        """The limit for a unified buffer of that many bytes, given the one for the smallest."""
        return Limit(
            self.accepted * unified_buffer // SMALLEST_UNIFIED_BUFFER,
            self.double_buffered * unified_buffer // SMALLEST_UNIFIED_BUFFER,
        )


# For 192 KiB. One row of contiguous elements: the most that AscendNPU-IR's own allocator accepted, the less of float32
# and bfloat16. It double-buffered softmax at 16,384 elements and its backward at 8,192; the other figures for that stay
# on the safe side of these. It took 19,456 of log_softmax's backward, too, but 16,384 of those, the next power of two,
# would leave no byte for a broadcast that isn't merged into its use.
_ONE_ROW = {
    "softmax": Limit(32_512, 16_384),
    "log_softmax": Limit(19_456, 8_192),
    "softmax_backward": Limit(13_824, 8_192),
    "log_softmax_backward": Limit(13_824, 8_192),
}
_ONE_ROW_LOOPED = {
    "softmax": Limit(32_512, 8_192),
    "log_softmax": Limit(32_512, 8_192),
    "softmax_backward": Limit(10_752, 4_096),
    "log_softmax_backward": Limit(10_752, 4_096),
}

# Elsewhere the allocator's only figure is 30,720 for softmax of eight rows. These are sums of what is alive at once: a
# tensor of float32 takes 4 bytes an element, a sum along contiguous elements 2 more, a sum across them 4 more, and a
# broadcast that is not merged into its use another 4. Double buffering counts twice what is loaded and stored.
_SEVERAL_ROWS = {
    "softmax": Limit(16_384, 8_192),
    "log_softmax": Limit(12_288, 8_192),
    "softmax_backward": Limit(9_830, 4_096),
    "log_softmax_backward": Limit(9_830, 4_096),
}
_INNER = {
    "softmax": Limit(16_384, 8_192),
    "log_softmax": Limit(12_288, 4_096),
    "softmax_backward": Limit(9_830, 4_096),
    "log_softmax_backward": Limit(9_830, 4_096),
}
_INNER_LOOPED = dict.fromkeys(_INNER, Limit(8_192, 4_096))

# Single elements at a stride arrive in a block of 32 bytes each, and what is computed from them may stay spread out.
_STRIDED = {
    "softmax": Limit(1_228, 1_024),
    "log_softmax": Limit(1_228, 512),
    "softmax_backward": Limit(877, 512),
    "log_softmax_backward": Limit(877, 512),
}
_STRIDED_LOOPED = dict.fromkeys(_STRIDED, Limit(877, 512))

_FORMS: dict[tuple[Layout, Algorithm], dict[str, Limit]] = {
    ("row", "tile"): _SEVERAL_ROWS,
    ("row", "looped"): _ONE_ROW_LOOPED,
    ("inner", "tile"): _INNER,
    ("inner", "looped"): _INNER_LOOPED,
    ("strided", "tile"): _STRIDED,
    ("strided", "looped"): _STRIDED_LOOPED,
}


def limit(problem: Problem, algorithm: Algorithm, rows: int, unified_buffer: int) -> Limit:
    """How large a tile of that many rows may be for a problem, with a unified buffer of that many bytes."""
    one_row = problem.layout == "row" and algorithm == "tile" and rows == 1
    forms = _ONE_ROW if one_row else _FORMS[problem.layout, algorithm]
    return forms[problem.op].scaled(unified_buffer)
