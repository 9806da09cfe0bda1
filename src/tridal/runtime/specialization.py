"""What a call comes to for a kernel: all that it is specialised on, and its run-time numbers. Arithmetic alone.

A variant is everything that a compiled kernel was specialised on, so two launches that share one are interchangeable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tridal.devices.types import ITEMSIZE, LaunchPlan, Op, Problem, Tile
from tridal.runtime.row_layout import Geometry
from tridal.runtime.scale_mask import Weighing

_SIZES = ("outer", "inner", "cols")
_STRIDES = ("in_outer", "in_inner", "in_col", "out_outer", "out_inner", "out_col")
TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "uint8": "u8"}
ALIGNMENT = 16  # bytes of a full vector access, and what Triton specialises a multiple of
_BLOCK = 32  # parts of a row that show their (max, sum) together: the kernel's own
ADDRESS_BITS = 63  # of an address: what tells where its vectors, of up to 16 elements of 4 bytes, begin

PLAIN = Weighing()
"""Of a call whose scores are taken as they are."""

_UNITS = {"row": ("in_col", "out_col"), "inner": ("in_inner", "out_inner"), "strided": ()}
"""Strides that are one, by layout."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Everything that a compiled kernel is specialised on."""

    kernel: str
    types: tuple[tuple[str, str], ...]
    """Triton's type of each run-time argument."""
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[str, ...]
    """Arguments that are multiples of 16."""
    num_warps: int
    num_stages: int
    max_registers: int | None
    cooperative: bool
    """Whether all programs of a launch have to be resident at once."""


@dataclass(frozen=True, slots=True)
class Call:
    """A problem together with where its tensors lie: all that decides on the variant but the tile."""

    problem: Problem
    geometry: Geometry
    addresses: tuple[int, ...]
    """Of each tensor (out, input and saved output in a backward) the address, or as much as `ADDRESS_BITS` of it."""
    weighing: Weighing = PLAIN

    @classmethod
    def of(
        cls,
        op: Op,
        geometry: Geometry,
        dtypes: tuple[str, ...],
        addresses: tuple[int, ...] | None = None,
        weighing: Weighing = PLAIN,
    ) -> Call:
        """The call for tensors of these dtypes, in the order of `addresses`, which default to aligned ones."""
        addresses = addresses or (0,) * len(dtypes)
        g = geometry
        units = _UNITS[g.layout]
        strides = [
            value for name, value in zip(_STRIDES, (*g.in_strides, *g.out_strides), strict=True) if name not in units
        ]
        lengths = [*strides, g.inner if g.layout == "inner" else g.cols]
        problem = Problem(
            op=op,
            cols=g.cols,
            inner=g.inner,
            outer=g.outer,
            dtype=dtypes[1],
            out_dtype=dtypes[0],
            saved_dtype=dtypes[-1] if len(dtypes) > 2 else dtypes[0],
            layout=g.layout,
            aligned=not any(value % ALIGNMENT for value in (*lengths, *addresses)),
            weighed=weighing != PLAIN,
        )
        return cls(problem, geometry, addresses, weighing)

    @property
    def vector(self) -> int:
        """Elements of a vector access of 16 bytes, of the narrowest tensor."""
        p = self.problem
        dtypes = (p.out_dtype, p.dtype, p.saved_dtype)[: len(self.addresses)]
        return ALIGNMENT // min(ITEMSIZE[dtype] for dtype in dtypes)

    def _shifts(self) -> list[int]:
        """Elements that each tensor's first row is off a vector's boundary."""
        p = self.problem
        dtypes = (p.out_dtype, p.dtype, p.saved_dtype)
        return [a // ITEMSIZE[dtype] % self.vector for a, dtype in zip(self.addresses, dtypes, strict=False)]

    def scalars(self, tile: Tile) -> dict[str, Any]:
        """Run-time numbers of the kernel by name."""
        g = self.geometry
        numbers = (g.outer, g.inner, g.cols, *g.in_strides, *g.out_strides)
        values: dict[str, Any] = dict(zip(_SIZES + _STRIDES, numbers, strict=True))
        if tile.algorithm != "looped":
            values["shift"] = self._shifts()[1] if tile.edges else 0
        return values | ({"factor": self.weighing.factor} if self.problem.backward else self.weighing.numbers)

    def variant(self, tile: Tile) -> Variant:
        """What the compiler has to specialise on for this call with this tile.

        A stride of one is a constant, since contiguity decides how memory is read. The number of rows never is: a new
        batch size compiles nothing, unless it passes 32 bits. Where a mask does not need a number, it is one, too.
        """
        p, g, w = self.problem, self.geometry, self.weighing
        pointers = {"out_ptr": p.out_dtype, "in_ptr": p.dtype}
        if p.backward:
            pointers["y_ptr"] = p.saved_dtype
        if w.mask is not None:
            pointers["mask_ptr"] = w.mask
        units = _UNITS[p.layout]
        constants: dict[str, Any] = dict.fromkeys(units, 1)
        constants |= {
            "LOG": p.op.startswith("log_"),
            "ACC": "fp64" if p.accumulator == 8 else "fp32",
            "EXP2_BIAS": tile.exp2_bias,
            "WIDE": max(g.extent(tile.rows, tile.cols), (tile.cols - 1) * w.strides[-1]) >= 2**31,
            "AXIS": 0 if p.layout == "inner" else 1,
            "ROWS": tile.rows,
            "COLS": tile.cols,
            "STAGES": tile.num_stages,
        }
        if tile.algorithm != "looped":
            constants |= self._sharing(tile)
        if p.backward:
            constants |= {} if w.factor is not None else {"factor": None}
        else:
            constants |= self._weighing(tile)
        run_time = {name: value for name, value in self.scalars(tile).items() if name not in constants}
        unspecialised = {"outer", "shift", *w.numbers} | ({"inner"} if p.layout != "inner" else set())
        divisible = [n for n, a in zip(pointers, self.addresses, strict=False) if a % ALIGNMENT == 0]
        divisible += [n for n, value in run_time.items() if n not in unspecialised and value % ALIGNMENT == 0]
        types = {name: f"*{TYPES[dtype]}" for name, dtype in pointers.items()}
        if tile.split > 1:
            types["words"] = "*i64"
            divisible.append("words")
        types |= {name: "i32" if value < 2**31 else "i64" for name, value in run_time.items()}
        if "factor" in run_time:
            types["factor"] = constants["ACC"]
        direction = "backward" if p.backward else "forward"
        return Variant(
            kernel=direction + "_looped" * (tile.algorithm == "looped"),
            types=tuple(types.items()),
            constants=tuple(constants.items()),
            divisible=tuple(divisible),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            max_registers=tile.max_registers,
            cooperative=tile.split > 1,
        )

    def _sharing(self, tile: Tile) -> dict[str, Any]:
        """Constants of the kernels that hold rows whole: how a row is shared, and what its ends are like."""
        g, vector, shifts = self.geometry, self.vector, self._shifts()
        strides = zip(g.in_strides[:2], g.out_strides[:2], strict=True)
        alike = len(set(shifts)) == 1 and all((read - written) % vector == 0 for read, written in strides)
        some: dict[str, Any] = {} if tile.split > 1 else {"words": None}
        if not tile.edges:
            some["shift"] = 0
        return some | {
            "LOOP": tile.persistent,
            "SPLIT": tile.split,
            "PARTS": _parts(tile),
            "WORDS": _words(tile),
            "EDGES": tile.edges,
            "VECTOR": vector,
            "ALIGNED": tile.edges and alike,
            "REREADS": tile.rereads,
        }

    def _weighing(self, tile: Tile) -> dict[str, Any]:
        """Constants of a forward that tell how scores are weighed: all of its numbers, where nothing is done."""
        w = self.weighing
        constants: dict[str, Any] = {} if w.mask is not None else {"mask_ptr": None}
        constants |= {n: v for n, v in w.numbers.items() if v is None or (n != "factor" and v in (0, 1))}
        return constants | {"CAUSAL": w.causal, "ZERO": w.zero, "MASK_BYTES": self._mask_bytes(tile)}

    def _mask_bytes(self, tile: Tile) -> int:
        if self.problem.layout == "inner":  # then a tile's vectors lie across rows
            return 1
        return self.weighing.boundary(self.vector, tile.cols, self._shifts()[1] if tile.edges else None)

    def words(self, launch_plan: LaunchPlan) -> int:
        """64-bit words, zero before and after, that the programs of a launch exchange through."""
        tile = launch_plan.tile
        if tile.split == 1:
            return 0
        desk = 2 + 3 * (launch_plan.programs // tile.split) if tile.persistent else 0
        return self.problem.tiles(tile.rows) * _words(tile) + desk


def _parts(tile: Tile) -> int:
    """Parts of a row, rounded up to a power of two."""
    return 1 << (tile.split - 1).bit_length()


def _words(tile: Tile) -> int:
    """Words of a tile: one for each part of each row, then one for each block of many parts of a single row.

    Where programs take no other tile, each has a box of its own, for a word of each part of its row.
    """
    if not tile.persistent:
        return tile.split**2
    blocks = -(-tile.split // _BLOCK) if tile.split > 2 * _BLOCK else 0
    return tile.split * tile.rows + (blocks if tile.rows == 1 else 0)
