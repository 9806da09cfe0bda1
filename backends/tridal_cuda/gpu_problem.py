"""A problem on a GPU: the sizes that its configurations depend on, and how a compiled configuration fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tridal.devices.types import ITEMSIZE, DeviceProperties, KernelConfig, Probe, Problem, Resources
from tridal.errors import PlanError
from tridal_cuda import tuning
from tridal_cuda.resources import REGISTER_UNIT, max_registers_for, occupancy


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
    def half_of_registers(self) -> int:
        """Half of the 32-bit registers of a multiprocessor."""
        return (self.device.registers or 65_536) // 2

    @property
    def max_elements(self) -> int:
        """Elements that one program can hold: those of all tensors that it reads fill half of the registers."""
        return self.half_of_registers * 4 // (self.accumulator * len(self.reads))

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

    def fit(self, config: KernelConfig) -> Fit:
        """Sets the fields of a configuration that only the problem decides, compiles it, and computes its occupancy.

        Raises:
            PlanError: a multiprocessor cannot hold one program. The occupancy of a pipelined configuration is then 0.
        """
        # The error of exp2 is visible in float32 outputs only. Float64 statistics need the device's exp.
        bias = tuning.EXP2_BIAS if self.writes[0] == "float32" else 0.0
        peel = self.peel and config.schedule != "column_loop"
        config = replace(config, peel=peel, exp2_bias=bias if self.accumulator == 4 else None)
        resources = self.probe(config)
        programs, formula = occupancy(config, resources, self.device)
        if programs == 0 and config.num_stages == 1:
            raise PlanError(f"{config} does not fit on {self.device.name}: {formula}")
        return Fit(self, config, resources, programs, formula)


@dataclass(frozen=True, slots=True)
class Fit:
    """A configuration, its resources, and its occupancy."""

    problem: GpuProblem
    config: KernelConfig
    resources: Resources
    occupancy: int
    """Programs that one multiprocessor can hold."""
    formula: str
    """The calculation of `occupancy` in words."""

    @property
    def resident(self) -> int:
        """Programs that the whole GPU can hold."""
        return self.occupancy * self.problem.device.cores

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the tiles that are resident on one multiprocessor."""
        return self.occupancy * self.problem.bytes_per_tile(self.config)

    def with_register_limit(self, wanted_bytes: int, max_spill: int = 0) -> Fit:
        """Limits registers for one more resident program, again and again, until `wanted_bytes` are in flight.

        It stops if no limit admits one more program, or if the limit adds more than `max_spill` spilled bytes per
        thread. Without a limit, the compiler uses more registers than it needs, because it does not know how many
        programs are wanted.
        """
        fitted, problem = self, self.problem
        while fitted.bytes_in_flight < wanted_bytes:
            limit = max_registers_for(fitted.occupancy + 1, fitted.config, problem.device)
            limited = replace(fitted.config, max_registers=limit)
            possible, _ = occupancy(limited, replace(fitted.resources, registers=limit), problem.device)
            if limit < 1 or possible <= fitted.occupancy:
                break
            more = problem.fit(limited)
            if more.resources.spills > fitted.resources.spills:  # the compiler sometimes spills less with a lower limit
                lower = problem.fit(replace(limited, max_registers=limit - REGISTER_UNIT))
                more = min(more, lower, key=lambda candidate: candidate.resources.spills)
            if more.occupancy <= fitted.occupancy or more.resources.spills > fitted.resources.spills + max_spill:
                break
            fitted = more
        return fitted
