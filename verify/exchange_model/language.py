"""A small `triton.language` for one warp: NumPy arithmetic, and generators for each access that other warps can see.

A kernel function runs once in each warp of a program, with its own values. `Language` yields a request for each step,
and the scheduler sends its result:

    ("load", slots)            reads slots of the workspace; the result is the tuple of their words
    ("store", slots, words)    writes slots
    ("swap", slots, words)     writes slots with an atomic whose result is not used
    ("add", slot, number)      adds to a slot atomically; the result is the old word
    ("meet", location, payload)   waits for all warps of the program; the result is the tuple of their payloads
    ("write", name, cells)     writes results to the output `name`: a tuple of (index, number)
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

Steps = Generator[tuple[Any, ...], Any, Any]


@dataclass(frozen=True)
class Pointer:
    """Addresses in a buffer. An offset counts 64-bit slots; those of `half`s count halves of slots, low half first."""

    buffer: Any
    offset: Any = 0
    half: bool = False

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.buffer, self.offset + more, self.half)

    @property
    def dtype(self) -> Any:
        """Gives `pointer.dtype.element_ty`, as Triton does."""
        return type("PointerType", (), {"element_ty": np.float32})


class Workspace:
    """The buffer through which programs exchange words. The scheduler holds its contents."""


class Language:
    """The functions of `triton.language` that the kernels use.

    `layout` says which warps hold an element of a vector of slots. A tile's elements are spread over the warps, so a
    reduction of a tile is a meeting of the warps (`spread`). All other reductions follow `layout`:
        "replicated"   each warp holds, and loads, all elements, so it reduces them alone
        "distributed"  each element has one warp, and warps meet in a reduction
        "mixed"        like "distributed" for all warps but the last one, which holds a copy of the first one's elements
    The threads of a warp take their steps together. If several warps hold an element, meetings take the first one.
    A scalar is loaded by each warp, and written by the first one.
    """

    int32, int64, float32, uint8 = np.int32, np.int64, np.float32, np.uint8
    where, minimum, maximum = staticmethod(np.where), staticmethod(np.minimum), staticmethod(np.maximum)
    ravel, reshape, expand_dims = staticmethod(np.ravel), staticmethod(np.reshape), staticmethod(np.expand_dims)
    zeros, zeros_like, full = staticmethod(np.zeros), staticmethod(np.zeros_like), staticmethod(np.full)
    arange, static_range = staticmethod(np.arange), staticmethod(range)

    def __init__(self, program: int, programs: int, warp: int, warps: int, layout: str, spread: bool) -> None:
        self.program, self.programs, self.warp, self.warps = program, programs, warp, warps
        self.layout, self.spread = layout, spread

    @staticmethod
    def constexpr(value: Any) -> Any:
        """Returns a constant."""
        return value

    @staticmethod
    def pointer_type(dtype: Any) -> Any:
        """Returns the type of pointers to halves of slots. The kernels use none, but a fault does."""
        assert dtype is np.int32
        return "halves"

    @staticmethod
    def multiple_of(value: Any, number: Any) -> Any:
        """Returns the value: a hint for the compiler."""
        return value

    @staticmethod
    def cdiv(a: int, b: int) -> int:
        """Returns a / b, rounded up."""
        return -(-a // b)

    @staticmethod
    def range(begin: int, end: int, step: int = 1, num_stages: int = 1) -> range:
        """Returns a range. A pipeline moves loads of tiles only."""
        return range(begin, end, step)

    @staticmethod
    def cast(value: Any, dtype: Any, bitcast: bool = False) -> Any:
        """Converts a value; with `bitcast`, its bits."""
        if isinstance(value, Pointer):
            assert dtype == "halves"
            return Pointer(value.buffer, value.offset * 2, True)
        value = np.asarray(value, np.float32) if bitcast and isinstance(value, float) else np.asarray(value)
        return (value.view(dtype) if bitcast else value.astype(dtype))[()]

    def program_id(self, axis: int) -> int:
        """Returns the number of this program."""
        return self.program

    def num_programs(self, axis: int) -> int:
        """Returns the number of programs of the launch."""
        return self.programs

    def holders(self, index: int, length: int) -> tuple[int, ...]:
        """Returns the warps that hold an element of a vector of slots. The first one writes it."""
        if self.layout == "replicated" or length == 1:
            return tuple(range(self.warps))
        spread = self.warps - (self.layout == "mixed")
        first = index * spread // length
        return (first, self.warps - 1) if self.layout == "mixed" and first == 0 else (first,)

    def load(self, pointers: Pointer, mask: Any = True, other: Any = 0, volatile: bool = False, **hints: Any) -> Steps:
        """Loads elements. Those of the workspace are steps; a warp loads only those that it holds."""
        offset, mask = np.broadcast_arrays(pointers.offset, mask)
        if not isinstance(pointers.buffer, Workspace):
            data = pointers.buffer
            return np.where(mask, data[np.where(mask, offset, 0)], np.asarray(other, data.dtype))
        assert volatile, "a load of the workspace is volatile"
        wanted = [i for i in range(offset.size) if mask.flat[i] and self.warp in self.holders(i, offset.size)]
        words = np.full(offset.shape, other, np.int64)
        if wanted:
            found = yield "load", tuple(self._slot(pointers, offset.flat[i]) for i in wanted)
            words.flat[wanted] = found
        return words[()]

    def store(self, pointers: Pointer, value: Any, mask: Any = True, **hints: Any) -> Steps:
        """Stores elements. Those of the workspace are steps, others are results."""
        yield from self._write("store", pointers, value, mask)

    def atomic_xchg(self, pointers: Pointer, value: Any, mask: Any = True, sem: str = "") -> Steps:
        """Writes elements. No kernel uses the old ones."""
        assert sem == "relaxed"
        yield from self._write("swap", pointers, value, mask)

    def atomic_add(self, pointer: Pointer, value: Any, sem: str = "") -> Steps:
        """Adds to one slot. The first warp does it and tells the old word to the others."""
        assert sem == "relaxed"
        old = (yield "add", self._slot(pointer, pointer.offset), int(value)) if self.warp == 0 else 0
        return np.int64((yield "meet", "atomic_add", old)[0])

    def debug_barrier(self) -> Steps:
        """Waits for all warps of the program."""
        yield "meet", "barrier", 0

    def max(self, x: Any, axis: int) -> Steps:
        """Reduces a tensor."""
        return (yield from self._reduce(np.max, x, axis))

    def min(self, x: Any, axis: int) -> Steps:
        """Reduces a tensor."""
        return (yield from self._reduce(np.min, x, axis))

    def sum(self, x: Any, axis: int) -> Steps:
        """Reduces a tensor."""
        return (yield from self._reduce(np.sum, x, axis))

    def _reduce(self, how: Any, x: Any, axis: int) -> Steps:
        x = np.asarray(x)
        if self.spread:  # all warps have the same inputs, so only the meeting matters
            yield "meet", "reduction of a tile", 0
        elif self.layout != "replicated" and x.size > 1:
            parts = yield "meet", "reduction of slots", x.tobytes()
            copies = [np.frombuffer(part, x.dtype) for part in parts]
            x = np.array([copies[self.holders(i, x.size)[0]][i] for i in range(x.size)], x.dtype).reshape(x.shape)
        return how(x, axis=axis, dtype=x.dtype) if how is np.sum else how(x, axis=axis)

    def _write(self, kind: str, pointers: Pointer, value: Any, mask: Any) -> Steps:
        offset, value, mask = np.broadcast_arrays(pointers.offset, value, mask)
        if not isinstance(pointers.buffer, Workspace):
            if mask.any():
                cells = zip(offset[mask].tolist(), value[mask].tolist(), strict=True)
                yield "write", pointers.buffer, tuple(cells)
            return
        chosen = [i for i in range(offset.size) if mask.flat[i] and self.holders(i, offset.size)[0] == self.warp]
        if chosen:
            slots = tuple(self._slot(pointers, offset.flat[i]) for i in chosen)
            yield kind, slots, tuple(int(value.flat[i]) for i in chosen)

    @staticmethod
    def _slot(pointers: Pointer, offset: Any) -> int | tuple[int, int]:
        """Returns the number of a slot, or (slot, half)."""
        return (int(offset) // 2, int(offset) % 2) if pointers.half else int(offset)
