"""The launches that are checked: how many programs, tiles, groups and warps, and the data that they compute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from exchange_model import source


@dataclass(frozen=True)
class Launch:
    """A cooperative launch of the kernel `whole_row`. Each program computes one column of each row."""

    programs_per_row: int
    tiles: int
    groups: int = 1
    rows: int = 1
    """Rows of a tile."""
    persistent: bool = True
    dynamic: bool = True
    """Whether groups claim tiles. If not, tiles are assigned in advance, as in a pipelined loop."""
    warps: tuple[int, ...] = (2,)
    """Warps of each program. The last number is that of all further programs."""
    layout: str = "replicated"
    """Which warps hold an element of a vector of slots, see `language.Language`."""
    tile_in_one_warp: bool = False
    """Whether a tile is so small that each warp holds all of it. Its reduction is then no meeting of the warps."""
    block: int = 32
    """Number of slots that a program reads at once."""
    delayed: bool = False
    """Whether writes are delayed, see `machine`."""
    ordered: bool = False
    """Whether the elements of a vector are accessed in order. If not, in any order."""
    resident: int = 0
    """Number of programs that run at the same time. 0: all of them."""

    @property
    def programs(self) -> int:
        """The number of programs."""
        return self.programs_per_row * (self.groups if self.persistent else self.tiles)

    def warps_of(self, program: int) -> int:
        """Returns the number of warps of a program."""
        return self.warps[min(program, len(self.warps) - 1)]

    def __str__(self) -> str:
        """Describes the launch."""
        schedule = "one-shot" if not self.persistent else "dynamic" if self.dynamic else "static"
        parts = [f"{schedule}, {self.tiles} tiles of {self.rows} rows"]
        parts += [
            f"{self.programs} programs, {self.programs_per_row} a row",
            f"warps {'+'.join(map(str, self.warps))} {self.layout}",
        ]
        parts += ["tile in one warp"] * self.tile_in_one_warp
        parts += [f"{self.block} slots at once"] * (self.block < self.programs_per_row)
        parts += ["delayed writes"] * self.delayed + ["elements in order"] * self.ordered
        return ", ".join(parts + [f"{self.resident} programs resident"] * (self.resident > 0))

    def workspace(self) -> tuple[int, int]:
        """Returns the number of slots of a tile and of the workspace."""
        config = SimpleNamespace(programs_per_row=self.programs_per_row, rows=self.rows)
        return self.programs_per_row * self.rows, source.workspace_slots(config, self.tiles, self.programs)

    def input(self) -> Any:
        """Returns the input [tile, row of the tile, rank]. One part of a row is zero, as are its statistics."""
        shape = self.tiles, self.rows, self.programs_per_row
        numbers = np.arange(1, np.prod(shape) + 1).reshape(shape) * 37 % 251  # sums of squares are exact in float32
        numbers[0, 0, -1] = 0
        x = numbers.astype(np.float32)
        return x if self.rows == 1 else np.ascontiguousarray(x.swapaxes(1, 2))

    def expected(self) -> dict[str, list[float]]:
        """Returns the sum and the sum of squares of each element's row."""
        x = self.input().astype(np.float64)
        axis = 2 if self.rows == 1 else 1
        sums = {"first": x.sum(axis, keepdims=True), "second": (x * x).sum(axis, keepdims=True)}
        return {name: np.broadcast_to(total, x.shape).ravel().tolist() for name, total in sums.items()}

    def cells(self, program: int) -> Iterable[int]:
        """Returns the elements that a program may compute. All of them are computed, by one program each."""
        cells = np.arange(self.input().size).reshape(self.input().shape)
        cells = cells if self.rows == 1 else cells.swapaxes(1, 2)
        return cells[..., program % self.programs_per_row].ravel().tolist()  # type: ignore[no-any-return]

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `whole_row` except the pointers."""
        p, rows = self.programs_per_row, self.rows
        strides = dict.fromkeys(("in_outer", "out_outer"), p * rows) | dict.fromkeys(("in_inner", "out_inner"), 1)
        strides |= dict.fromkeys(("in_col", "out_col"), rows)
        return strides | {"outer": self.tiles, "inner": rows, "cols": p}

    def constants(self, slots: int) -> dict[str, Any]:
        """Returns the constants of a kernel with two sums of float32 numbers. `slots`: number of slots of a tile."""
        p, rows = self.programs_per_row, self.rows
        absent = "INT64_OFFSETS", "INT64_TILES", "PEEL", "SAME_MISALIGNMENT", "RELOAD", "CAUSAL", "ZERO_MASKED_ROWS"
        return dict.fromkeys(absent, False) | {
            "ACC_DTYPE": "fp32", "EXP2_BIAS": None, "AXIS": 1 if rows == 1 else 0, "ROWS": rows, "COLS": 1, "VECTOR": 1,
            "REST_COLS": 0, "WARP": rows if self.tile_in_one_warp else rows - 1,
            "PROGRAMS_PER_ROW": p, "SPLIT_POW2": 1 << (p - 1).bit_length(), "SLOTS": slots,
            "PERSISTENT": self.persistent, "NUM_STAGES": 1 if self.dynamic else 2,
        }  # fmt: skip


SHORT = (
    Launch(2, 1, persistent=False),
    Launch(2, 1, persistent=False, delayed=True),
    Launch(2, 1, persistent=False, layout="distributed", delayed=True),
    Launch(2, 1, persistent=False, warps=(3, 1), layout="mixed"),
    Launch(3, 1, persistent=False, warps=(1,), ordered=True),
    Launch(3, 1, persistent=False, warps=(1,), block=2),
    Launch(2, 2, persistent=False, warps=(1,), ordered=True),
    Launch(2, 2, dynamic=False),
    Launch(2, 2, dynamic=False, warps=(2, 1), delayed=True),
    Launch(2, 3, groups=2, dynamic=False, warps=(1,), ordered=True),
    Launch(2, 2),
    Launch(2, 2, warps=(2, 1), delayed=True, ordered=True),
    Launch(2, 4, warps=(1, 2)),
    Launch(2, 2, groups=2, warps=(1,), ordered=True),
    Launch(2, 1, groups=2, warps=(1,)),
    Launch(2, 1, groups=2, dynamic=False, warps=(1,)),
    Launch(2, 3, warps=(2, 1), tile_in_one_warp=True),
    Launch(2, 3, dynamic=False, warps=(2, 1), tile_in_one_warp=True),
    Launch(2, 2, rows=2, warps=(1,)),
    Launch(2, 2, rows=2, layout="distributed"),
    Launch(3, 2, block=2, warps=(1,)),
)
"""Launches that are explored completely, each in a second or two."""

LONG = (
    Launch(2, 2, persistent=False, warps=(1,)),
    Launch(3, 1, persistent=False, warps=(1,)),
    Launch(3, 1, persistent=False, warps=(2, 1)),
    Launch(2, 3, dynamic=False, warps=(2, 1), delayed=True),
    Launch(3, 2, warps=(2, 1), ordered=True),
    Launch(2, 3, warps=(1,), delayed=True),
    Launch(2, 2, warps=(2, 1), delayed=True),
    Launch(2, 3, tile_in_one_warp=True),
    Launch(2, 2, rows=2, warps=(2, 1)),
    Launch(2, 3, groups=2, warps=(1,)),
    Launch(2, 4, groups=2, warps=(1,), ordered=True),
)
"""Launches that are explored completely, each in up to a minute."""

MANY = (
    Launch(97, 2, warps=(1,), delayed=True),
    Launch(12, 9, groups=2, rows=4, delayed=True, layout="distributed"),
    Launch(5, 12, groups=3, rows=4),
    Launch(37, 3, persistent=False, delayed=True),
    Launch(16, 20, groups=5),
    Launch(16, 20, groups=5, dynamic=False, layout="distributed"),
    Launch(9, 30, groups=4, tile_in_one_warp=True, delayed=True),
    Launch(70, 5, groups=2),
)
"""Launches that run in random orders."""
