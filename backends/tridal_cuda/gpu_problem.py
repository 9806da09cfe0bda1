"""A problem on a GPU, with the sizes in elements, bytes and columns that its configurations depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tridal.devices.types import ITEMSIZE, DeviceProperties, KernelConfig, Probe, Problem
from tridal_cuda import tuning


def next_power_of_2(value: int) -> int:
    """The smallest power of two that is not less than `value`."""
    return 1 << (value - 1).bit_length()


def cdiv(value: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-value // divisor)


def warps_for(elements: int, elements_per_thread: int) -> int:
    """Warps for a tile: 1 to 32."""
    return max(1, min(32, elements // (32 * elements_per_thread)))


def limit_rows(rows: int, cols: int, max_elements: int) -> int:
    """Halves the rows of an inner-dim tile until it has at most `max_elements`, but not below half of `INNER_ROWS`."""
    while 2 * rows > tuning.INNER_ROWS and rows * cols > max_elements:
        rows //= 2
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProblem(Problem):
    """A problem, the GPU that it is planned for, and the probe that compiles its configurations."""

    device: DeviceProperties
    probe: Probe

    @property
    def reads_several(self) -> bool:
        """Whether more than one tensor is read."""
        return len(self.reads) > 1

    @property
    def bytes_per_tensor(self) -> int:
        """Bytes of the tensor with the widest elements."""
        return self.rows * self.cols * self.itemsize

    @property
    def peel(self) -> bool:
        """Whether the unaligned head and tail of each row are peeled. Rows of less than four vectors are not."""
        vector = tuning.VECTOR // ITEMSIZE[self.dtype]
        return self.layout == "row" and not self.aligned and self.cols >= 4 * vector

    @property
    def tile_cols(self) -> int:
        """Columns of a tile that holds a whole row, or the whole vectors of a peeled row."""
        vector = tuning.VECTOR // ITEMSIZE[self.dtype]
        return next_power_of_2(self.cols // vector * vector if self.peel else self.cols)

    @property
    def exp2_bias(self) -> float | None:
        """The `exp2_bias` of configurations. It is not zero for float32 outputs only, because others cannot show it."""
        if self.accumulator == 8:  # float64: the device's exp is used
            return None
        return tuning.EXP2_BIAS if self.writes[0] == "float32" else 0.0

    @property
    def half_of_registers(self) -> int:
        """Half of the 32-bit registers of a multiprocessor."""
        return (self.device.registers or 65_536) // 2

    @property
    def max_elements(self) -> int:
        """Elements that one program can hold: those of all tensors that it reads fill half of the registers."""
        registers_per_element = self.accumulator * (2 if self.reads_several else 1) // 4
        return self.half_of_registers // registers_per_element

    @property
    def max_programs_per_row(self) -> int:
        """The most programs that compute one row in the schedule `cooperative`."""
        return tuning.ROW_PROGRAMS_PER_CORE * self.device.cores

    @property
    def has_large_l1(self) -> bool:
        """Whether the GPU's L1 cache is large enough for `reload`. Kernels with `reload` use no shared memory."""
        return (self.device.shared_memory or 0) > tuning.LARGE_L1

    @property
    def max_stages(self) -> int:
        """Stages of a software pipeline for which there is enough shared memory."""
        return 4 if self.has_large_l1 else 2

    @property
    def reloads_inner_rows(self) -> bool:
        """Whether inner-dim rows are computed with `reload`.

        They are if elements have 16 bits, because such an element needs twice as many bytes of registers as of cache,
        and if there is enough data for all multiprocessors, because the tiles are larger.
        """
        enough = self.bytes_per_tensor >= self.device.cores * tuning.RELOAD_BYTES_IN_FLIGHT
        return self.has_large_l1 and self.aligned and self.itemsize == 2 and enough

    def bytes_per_tile(self, config: KernelConfig) -> int:
        """Bytes that a program reads for one tile. Padding columns are not read."""
        return config.rows * min(config.cols, self.cols) * self.bytes_read

    def with_reload(self, config: KernelConfig) -> KernelConfig:
        """The configuration with `reload`, and with warps for it."""
        narrow = self.layout == "row" and config.cols <= tuning.RELOAD_TILE_ELEMENTS
        elements_per_thread = tuning.RELOAD_ELEMENTS_PER_THREAD // (2 if narrow or self.reads_several else 1)
        return replace(config, num_warps=warps_for(config.rows * config.cols, elements_per_thread), reload=True)
