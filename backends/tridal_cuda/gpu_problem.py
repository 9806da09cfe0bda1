"""`GpuProblem`, a problem with the GPU that it is planned for, and `Fit`, a compiled configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tridal.devices.types import MAX_PROGRAMS, KernelConfig, next_power_of_2
from tridal.errors import PlanError
from tridal_accelerator.gpu import Compiled, DeviceProblem, cdiv
from tridal_cuda import tuning
from tridal_cuda.resources import max_registers_for, occupancy


def warps_for(elements: int, elements_per_thread: int) -> int:
    """A power of two from 1 to 32, which is rounded down."""
    return 1 << max(1, min(32, elements // (32 * elements_per_thread))).bit_length() - 1


def limit_rows(rows: int, cols: int, max_elements: int) -> int:
    """Halves the rows of an inner-dim tile until it has at most `max_elements`, but keeps half of `INNER_ROWS`."""
    while 2 * rows > tuning.INNER_ROWS and rows * cols > max_elements:
        rows //= 2
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProblem(DeviceProblem):
    """A problem with the GPU that it is planned for and the probe that compiles its kernel."""

    @property
    def reads_several(self) -> bool:
        """Whether the kernel reads more than one tensor."""
        return len(self.reads) > 1

    @property
    def reads_several_columns(self) -> bool:
        """Whether the kernel reads more than one number per column."""
        return len(self.column_reads) > 1

    @property
    def few_rows(self) -> bool:
        """Whether one program for each row would leave too much of the GPU idle in the last wave."""
        return self.rows < tuning.MIN_WAVES * self.device.cores

    @property
    def loads_late(self) -> bool:
        """Whether the kernel reads several tensors and keeps more than two tiles, as one with a gate does."""
        return self.reads_several and self.live_tiles > 2

    @property
    def keeps_gate(self) -> bool:
        """Whether a kernel with sums keeps elements of three tensors and their gradients at the same time."""
        return bool(self.column_writes) and len(self.reads) > 2 and self.live_tiles > 5

    @property
    def padding(self) -> float:
        """The share of padding in a tile that holds a whole row."""
        return 1 - self.cols / self.tile_cols

    @property
    def first_and_rest(self) -> tuple[int, int]:
        """Columns of two tiles of a row: the first one has no padding, the second one as little as possible."""
        first = next_power_of_2(self.cols) // 2
        return first, next_power_of_2(self.cols - first)

    @property
    def bytes_per_tensor(self) -> int:
        """Bytes of one tensor of the widest dtype that is read or written."""
        return self.rows * self.cols * self.itemsize

    @property
    def half_of_registers(self) -> int:
        """Half of the 32-bit registers of a multiprocessor."""
        return (self.device.registers or 65_536) // 2

    @property
    def max_elements(self) -> int:
        """Most elements of a tile: a tile of each tensor that is read fills at most half of a core's registers."""
        return 1 << (self.half_of_registers * 4 // (self.accumulator * len(self.reads))).bit_length() - 1

    @property
    def has_large_l1(self) -> bool:
        """Whether the L1 cache is large enough for `reload`. Its size follows from the size of the shared memory."""
        return (self.device.shared_memory or 0) > tuning.LARGE_L1

    @property
    def few_slots(self) -> bool:
        """Whether 16-bit rows are limited by issue slots: the memory is fast for so many multiprocessors."""
        per_core = (self.device.bandwidth or 0) / self.device.cores
        return self.itemsize == 2 and per_core > tuning.FEW_SLOTS_BANDWIDTH

    @property
    def max_stages(self) -> int:
        """Most stages of a software pipeline that fit in shared memory."""
        return 4 if self.has_large_l1 else 2

    @property
    def caches_inner_rows(self) -> bool:
        """Whether programs can load inner-dim rows again from the L1 cache.

        The problem must have enough data for all multiprocessors, because tiles with `reload` are larger.
        """
        enough = self.bytes_per_tensor >= self.device.cores * tuning.RELOAD_BYTES_IN_FLIGHT
        return self.has_large_l1 and self.aligned and enough and not self.whole_rows

    @property
    def reloads_inner_rows(self) -> bool:
        """Whether inner-dim rows are computed with `reload`, if a program has one tile.

        This helps 16-bit elements only: they need 4 bytes in a register, but 2 in the cache.
        """
        return self.itemsize == 2 and self.caches_inner_rows

    def with_reload(self, config: KernelConfig) -> KernelConfig:
        """Adds `reload`, and the number of warps that suits it."""
        narrow = self.layout == "row" and config.cols <= tuning.RELOAD_TILE_ELEMENTS
        elements_per_thread = tuning.RELOAD_ELEMENTS_PER_THREAD // (2 if narrow or self.reads_several else 1)
        return replace(config, num_warps=warps_for(config.rows * config.cols, elements_per_thread), reload=True)

    def fit(self, config: KernelConfig, max_spill: int = tuning.MAX_SPILL) -> Fit:
        """Sets `peel`, `persistent` and `exp2_bias` of a configuration, compiles it, and computes its occupancy.

        Rows with two tiles are not peeled. Up to `max_spill` bytes per thread count as few spills.

        Raises:
            PlanError: a multiprocessor cannot hold one program, and the configuration is not a software pipeline.
        """
        peel = self.peel and not config.rest_cols and (config.schedule != "column_loop" or self.statistics_only)
        # Programs that sum over rows loop over tiles. Otherwise, each tile would store its sums.
        persistent = config.persistent or bool(self.column_writes) or self._has_too_many_programs(config)
        config = replace(config, peel=peel, persistent=persistent, exp2_bias=self.exp2_bias(tuning.EXP2_BIAS))
        resources = self.probe(config)
        programs, formula = occupancy(config, resources, self.device)
        if programs == 0 and config.num_stages == 1:
            raise PlanError(f"{config} does not fit on {self.device.name}: {formula}")
        return Fit(self, config, resources, programs, formula, max_spill)

    def fit_if_usable(self, config: KernelConfig | None) -> Fit | None:
        """Fits a configuration with few spills. None stands for no configuration, and for a fit that is not usable."""
        fitted = None if config is None else self.fit(config).with_few_spills()
        return fitted if fitted is not None and fitted.usable else None

    def _has_too_many_programs(self, config: KernelConfig) -> bool:
        """Whether a launch cannot have a program for each tile."""
        return self.tiles(config.rows) * config.programs_per_row > MAX_PROGRAMS

    def halve_elements_per_thread(self, config: KernelConfig) -> KernelConfig | None:
        """Doubles the warps if a thread can then still have `MAX_REGISTERS`, and halves the tile otherwise.

        Returns None if the tile cannot be halved: it holds one whole row, or its rows would have too many programs.
        """
        more_warps = replace(config, num_warps=2 * config.num_warps)
        if max_registers_for(1, more_warps, self.device) >= tuning.MAX_REGISTERS:
            return more_warps
        cols = max(1, config.cols // 2)
        if config.schedule == "column_loop":
            return replace(config, cols=cols)
        # With a block per multiprocessor at most, all programs of a row are resident.
        blocks = cdiv(self.cols, cols)
        if config.schedule == "cooperative" and (config.rows == 1 or blocks <= self.device.cores):
            too_many = blocks > tuning.ROW_PROGRAMS_PER_CORE * self.device.cores
            return None if too_many else replace(config, cols=cols, programs_per_row=blocks)
        return replace(config, rows=config.rows // 2) if config.rows > 1 else None

    def with_resident_row(self, config: KernelConfig) -> KernelConfig:
        """Adds a register limit with which all programs of a row are resident, if one is needed."""
        needed = cdiv(config.programs_per_row, self.device.cores)
        limit = max_registers_for(needed, config, self.device)
        enough = not self.statistics or needed == 1 or limit >= (config.max_registers or tuning.MAX_REGISTERS)
        return config if enough else replace(config, max_registers=limit)


@dataclass(frozen=True, slots=True)
class Fit(Compiled):
    """A compiled configuration. The occupancy of a software pipeline can be 0."""

    problem: GpuProblem
    max_spill: int = tuning.MAX_SPILL
    """Up to so many bytes per thread count as few spills."""

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the tiles that are resident on one multiprocessor."""
        return self.occupancy * self.problem.bytes_per_tile(self.config)

    @property
    def few_spills(self) -> bool:
        """Whether at most `max_spill` bytes per thread are spilled."""
        return self.resources.spills <= self.max_spill

    @property
    def usable(self) -> bool:
        """Whether few bytes are spilled, and all programs of a row can be resident at the same time."""
        return self.few_spills and self.resident >= self.config.programs_per_row

    def with_register_limit(self, wanted_bytes: int, max_spill: int = 0) -> Fit:
        """Lowers the register limit until `wanted_bytes` are in flight. Each step makes room for one more program.

        Stops if a step makes no room for a program, if the steps together add more than `max_spill` spilled bytes per
        thread, or if more than `MAX_SPILL` would be spilled.
        Without a limit, the compiler uses more registers than it needs: it does not know the wanted occupancy.
        """
        fitted, problem = self, self.problem
        allowed = min(self.resources.spills + max_spill, tuning.MAX_SPILL)
        while fitted.bytes_in_flight < wanted_bytes:
            limit = max_registers_for(fitted.occupancy + 1, fitted.config, problem.device)
            limited = replace(fitted.config, max_registers=limit)
            possible, _ = occupancy(limited, replace(fitted.resources, registers=limit), problem.device)
            if limit < 1 or possible <= fitted.occupancy:
                break
            more = problem.fit(limited)
            if more.occupancy <= fitted.occupancy or more.resources.spills > allowed:
                break
            fitted = more
        return fitted

    @property
    def groups(self) -> int:
        """How many groups of programs are resident; 0 if the programs of a row are not."""
        return self.resident // self.config.programs_per_row

    def without_idle_programs(self) -> Fit:
        """Raises the register limit while programs loop as often. More of them would only be idle at the end.

        Softmax of 128x128256 and 64x262144 in bf16 takes 0.91 of the time (H200): 33 groups of programs instead of 41
        have four rows each.
        """
        fitted, problem, tiles = self, self.problem, self.problem.tiles(self.config.rows)
        while fitted.config.max_registers is not None and fitted.occupancy > 1:
            limit = max_registers_for(fitted.occupancy - 1, fitted.config, problem.device)
            fewer = problem.fit(replace(fitted.config, max_registers=limit))
            if not 0 < fewer.groups < fitted.groups or cdiv(tiles, fewer.groups) > cdiv(tiles, fitted.groups):
                break
            fitted = fewer
        return fitted

    def with_few_spills(self, wanted_bytes: int = 0, max_spill: int = 0) -> Fit:
        """Sets a register limit as `with_register_limit` does. If this spills too much, halves a thread's elements."""
        fitted, config = self.with_register_limit(wanted_bytes, max_spill), self.config
        if fitted.few_spills:
            return fitted
        for _ in range(tuning.MAX_HALVINGS):
            halved = self.problem.halve_elements_per_thread(config)
            if halved is None:
                break
            config, fitted = halved, self.problem.fit(halved)
            if fitted.few_spills:
                return fitted.with_register_limit(wanted_bytes, max_spill)
        return fitted
