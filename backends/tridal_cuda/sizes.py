"""Sizes that the configurations of all schedules depend on: elements, bytes, warps and columns. Arithmetic only.

docs/performance-notes.md gives the measurements behind the numbers in this folder.
"""

from __future__ import annotations

from dataclasses import replace

from tridal.devices.types import ITEMSIZE, DeviceProperties, KernelConfig, Problem

CACHE_LINE = 128
"""Bytes. A line occupies its full size in the cache, however few of its bytes are used."""
VECTOR = 16
"""Bytes of the widest memory access of a thread."""
_LARGE_L1 = 200_000
"""Bytes of shared memory above which the L1 cache, which uses the same memory, is large enough for `reload`."""

FEW_ELEMENTS_PER_THREAD = 32
"""For narrow rows, and where two tensors are read."""
MANY_ELEMENTS_PER_THREAD = 64
"""For wide rows of one tensor."""
_RELOAD_ELEMENTS_PER_THREAD = 128
"""With `reload`. A thread does not hold these elements between two passes."""
RELOAD_TILE_ELEMENTS = 16_384
"""Elements of a tile of a cooperative plan with `reload`. Wider tiles of whole rows have more elements per thread."""

MIN_WAVES = 4
"""Waves of programs, below which an incomplete last wave leaves too much of the device idle."""
NEIGHBOUR_ROWS = 32
"""Rows per tile in the "inner" layout. Half as many are enough for long rows."""
MAX_INNER_ELEMENTS = 16_384
"""Elements per tile in the "inner" layout, unless half of `NEIGHBOUR_ROWS` need more."""
RELOAD_BYTES_IN_FLIGHT = 112 << 10
"""Bytes of the resident tiles of a multiprocessor with `reload`: half of the L1 cache."""

_EXP2_BIAS = -5.5e-8
"""Mean relative error of the instruction ex2.approx on sm_90."""


def next_power_of_2(value: int) -> int:
    """The smallest power of two that is not less than `value`."""
    return 1 << (value - 1).bit_length()


def reads_several(problem: Problem) -> bool:
    """Whether more than one tensor is read."""
    return len(problem.reads) > 1


def bytes_per_tensor(problem: Problem) -> int:
    """Bytes of the tensor with the widest elements."""
    return problem.rows * problem.cols * problem.itemsize


def bytes_per_tile(config: KernelConfig, problem: Problem) -> int:
    """Bytes that a program reads for one tile. Padding columns are not read."""
    return config.rows * min(config.cols, problem.cols) * problem.bytes_read


def has_large_l1(device: DeviceProperties) -> bool:
    """Whether a multiprocessor's L1 cache is large enough for `reload`. Kernels with `reload` use no shared memory."""
    return (device.shared_memory or 0) > _LARGE_L1


def half_of_registers(device: DeviceProperties) -> int:
    """Half of the 32-bit registers of a multiprocessor."""
    return (device.registers or 65_536) // 2


def max_elements(problem: Problem, device: DeviceProperties) -> int:
    """Elements that one program can hold: those of all tensors that it reads fill half of the registers."""
    registers_per_element = problem.accumulator * (2 if reads_several(problem) else 1) // 4
    return half_of_registers(device) // registers_per_element


def max_stages(device: DeviceProperties) -> int:
    """Stages of a software pipeline for which there is enough shared memory."""
    return 4 if has_large_l1(device) else 2


def warps_for(elements: int, elements_per_thread: int) -> int:
    """Warps for a tile of `elements`: 1 to 32."""
    return max(1, min(32, elements // (32 * elements_per_thread)))


def tile_cols(problem: Problem) -> tuple[int, bool]:
    """Columns of a tile that holds a whole row, and whether the row's unaligned head and tail are peeled."""
    vector = VECTOR // ITEMSIZE[problem.dtype]
    if problem.layout == "row" and not problem.aligned and problem.cols >= 4 * vector:
        return next_power_of_2(problem.cols // vector * vector), True
    return next_power_of_2(problem.cols), False


def limit_rows(rows: int, cols: int, max_tile: int) -> int:
    """Halves `rows` until a tile has at most `max_tile` elements, but not below half of `NEIGHBOUR_ROWS`."""
    while 2 * rows > NEIGHBOUR_ROWS and rows * cols > max_tile:
        rows //= 2
    return rows


def exp2_bias(problem: Problem) -> float | None:
    """The `exp2_bias` of a configuration. The error is corrected for float32 outputs only; others cannot show it."""
    if problem.accumulator == 8:  # float64: the device's exp is used
        return None
    return _EXP2_BIAS if problem.writes[0] == "float32" else 0.0


def with_reload(config: KernelConfig, problem: Problem) -> KernelConfig:
    """The configuration with `reload`, and with warps for it."""
    narrow = problem.layout == "row" and config.cols <= RELOAD_TILE_ELEMENTS
    elements_per_thread = _RELOAD_ELEMENTS_PER_THREAD // (2 if narrow or reads_several(problem) else 1)
    return replace(config, num_warps=warps_for(config.rows * config.cols, elements_per_thread), reload=True)


def enough_for_inner_reload(problem: Problem, device: DeviceProperties) -> bool:
    """Whether inner-dim rows are computed with `reload`.

    They are if elements have 16 bits, because such an element needs twice as many bytes of registers as of cache, and
    if there is enough data for all multiprocessors, because the tiles are larger.
    """
    enough = bytes_per_tensor(problem) >= device.cores * RELOAD_BYTES_IN_FLIGHT
    return has_large_l1(device) and problem.aligned and problem.itemsize == 2 and enough
