"""The specialization of a kernel for a call, and its scalar arguments. Arithmetic only.

Two launches with equal specializations can use the same compiled kernel.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import Any

from tridal.devices.types import ALIGNMENT, ITEMSIZE, KernelConfig, LaunchPlan, Problem
from tridal.runtime.row_kernel import POINTERS, RowKernel
from tridal.runtime.row_layout import RowLayout
from tridal.runtime.scale_mask import ScaleMask

_SIZES = ("outer", "inner", "cols")
_STRIDES = ("in_outer", "in_inner", "in_col", "out_outer", "out_inner", "out_col")
_ROW_STRIDES = ("row_outer", "row_inner")
_PARAMETERS = ("param0", "param1")
TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "uint8": "u8", "int64": "i64"}
ADDRESS_BITS = 63
"""Mask of the bits of an address that decide its alignment: vectors have at most 16 elements of 4 bytes."""
BLOCK = 32
"""Number of slots that a program reads at once, see `tridal.kernels.exchange`."""

NO_SCALE_MASK = ScaleMask()

_UNIT_STRIDES = {"row": ("in_col", "out_col"), "inner": ("in_inner", "out_inner"), "strided": ()}
"""Strides that are one, by layout."""


@dataclass(frozen=True, slots=True)
class Specialization:
    """Everything that a compiled kernel is specialised on."""

    kernel: RowKernel
    entry: str
    """The Triton function that is compiled: "whole_row", "overlapped" or "column_loop"."""
    types: tuple[tuple[str, str], ...]
    """Triton's type of each run-time argument."""
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[str, ...]
    """Arguments that are multiples of 16."""
    num_warps: int
    num_stages: int
    max_registers: int | None
    cooperative: bool
    """Whether all programs of a launch have to be resident at the same time."""


@dataclass(frozen=True)
class KernelCall:
    """A kernel, and the layout, dtypes and addresses of its tensors. They and the plan decide the specialization."""

    kernel: RowKernel
    layout: RowLayout
    dtypes: tuple[str, ...]
    """The dtype of each tensor of `RowKernel.pointers`."""
    addresses: tuple[int, ...] = ()
    """The address of each of these tensors; its `ADDRESS_BITS` suffice. By default, all tensors are aligned."""
    parameters: tuple[float | None, ...] = ()
    scale_mask: ScaleMask = NO_SCALE_MASK

    def __post_init__(self) -> None:
        """Sets the default of `addresses`."""
        object.__setattr__(self, "addresses", self.addresses or (0,) * len(self.dtypes))

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem that a backend plans for."""
        kernel, layout, remaining = self.kernel, self.layout, iter(self.dtypes)
        writes, row_writes, column_writes, reads, added, row_reads, _, column_reads = (
            tuple(itertools.islice(remaining, len(tensors))) for tensors in kernel.tensors
        )
        units = _UNIT_STRIDES[layout.layout]
        lengths = [value for name, value in zip(_STRIDES, layout.strides, strict=True) if name not in units]
        lengths += [layout.inner if layout.layout == "inner" else layout.cols, *self.addresses]
        return Problem(
            cols=layout.cols,
            inner=layout.inner,
            outer=layout.outer,
            reads=reads,
            writes=writes,
            added=added,
            row_reads=row_reads,
            column_reads=column_reads,
            row_writes=row_writes,
            column_writes=column_writes,
            passes=kernel.passes,
            live_tiles=kernel.live_tiles + len(added),
            statistics=len(kernel.statistics),
            layout=layout.layout,
            aligned=not any(length % ALIGNMENT for length in lengths),
            scale_mask=self.scale_mask != NO_SCALE_MASK,
        )

    def with_rows(self, rows: int) -> KernelCall:
        """Returns this call with another number of rows, for a layout with `outer == 1`."""
        call = replace(self, layout=replace(self.layout, inner=rows))
        call.__dict__["problem"] = replace(self.problem, inner=rows)  # only the rows differ; saves 20 us
        return call

    def row_range(self, plan: LaunchPlan) -> tuple[int, int]:
        """Returns the first and the last number of rows that this call serves, with its specialization and layout."""
        rows, specialization = self.problem.rows, self.specialize(plan.config)
        # One row has no stride. The position of a row in a mask, and that of its diagonal, depend on the shape.
        if plan.row_range is None or rows == 1 or self.scale_mask.causal or self.scale_mask.mask is not None:
            return rows, rows
        same = all(self.with_rows(end).specialize(plan.config) == specialization for end in plan.row_range)
        return plan.row_range if same else (rows, rows)

    def launched_layout(self, config: KernelConfig) -> RowLayout:
        """Returns the layout that the kernel gets: interleaved blocks if each program has rows with equal heads."""
        interleaved = self.problem.equal_heads(config)
        return self.layout.interleaved(self.problem.vector) if interleaved else self.layout

    @property
    def _has_row_tensors(self) -> bool:
        kernel = self.kernel
        return bool(kernel.row_reads or kernel.row_writes or kernel.row_index)

    def _misalignments(self) -> dict[str, int]:
        """Returns, for each tensor, the number of elements from the last vector boundary to its first row."""
        tensors = zip(self.kernel.pointers, self.dtypes, self.addresses, strict=True)
        return {
            name: address // ITEMSIZE[dtype] % self.problem.vector
            for name, dtype, address in tensors
            if name.startswith(("out", "in_", "in2", "added"))
        }

    def scalars(self, config: KernelConfig) -> dict[str, Any]:
        """Returns the scalar arguments of the kernel by name."""
        layout, p = self.launched_layout(config), self.problem
        row_strides = layout.row_strides if self._has_row_tensors else (0, 0)
        numbers = (layout.outer, layout.inner, layout.cols, *layout.strides, *row_strides)
        values: dict[str, Any] = dict(zip(_SIZES + _STRIDES + _ROW_STRIDES, numbers, strict=True))
        values["misalignment"] = self._misalignments()["in_ptr"] if config.peel else 0
        if config.schedule != "column_loop":
            interleaved = layout is not self.layout
            values["long_blocks"] = p.rows - (layout.inner - 1) * layout.outer if interleaved else None
        values |= dict(zip(_PARAMETERS, (*self.parameters, None, None), strict=False))
        return values | self.scale_mask.numbers

    def specialize(self, config: KernelConfig) -> Specialization:
        """Returns the specialization of this call for a configuration.

        A stride of one is a constant, because contiguity decides how memory is read. Unused arguments are constants.
        The number of rows is never a constant: a new batch size compiles nothing, unless it exceeds 32 bits.
        """
        p, s, scalars = self.problem, self.scale_mask, self.scalars(config)
        pointers = dict(zip(self.kernel.pointers, self.dtypes, strict=True))
        divisible = [n for n, a in zip(pointers, self.addresses, strict=True) if a % ALIGNMENT == 0]
        constants: dict[str, Any] = dict.fromkeys(_UNIT_STRIDES[p.layout], 1)
        if s.mask is not None:
            pointers["mask_ptr"] = s.mask
        names = (*itertools.chain(*POINTERS), "mask_ptr")
        constants |= {name: None for name in names if name not in pointers}
        mask_extent = (config.cols - 1) * s.strides[-1]
        accumulator = "fp64" if p.accumulator == 8 else "fp32"
        constants |= {
            "ACC_DTYPE": accumulator,
            "EXP2_BIAS": config.exp2_bias,
            "INT64_OFFSETS": max(self.launched_layout(config).max_offset(config.rows, config.cols), mask_extent)
            >= 2**31,
            "AXIS": 0 if p.layout == "inner" else 1,
            "ROWS": config.rows,
            "COLS": config.cols,
            "CAUSAL": s.causal,
            "ZERO_MASKED_ROWS": s.zero_masked_rows,
            "MASK_BYTES": self._mask_bytes(config),
        }
        constants |= self._edge_constants(config)
        if config.schedule == "column_loop":
            constants |= {"STAGES": config.num_stages, "LANES": config.lanes}
        else:
            constants |= self._whole_row_constants(config)
        if not self._has_row_tensors:
            constants |= dict.fromkeys(_ROW_STRIDES, 0)
        elif scalars["row_inner"] == 1:
            constants["row_inner"] = 1
        constants |= {name: None for name in _PARAMETERS if scalars[name] is None}
        constants |= {n: v for n, v in s.numbers.items() if v is None or (n != "scale" and v in (0, 1))}
        run_time = {name: value for name, value in scalars.items() if name not in constants}
        unspecialised = {"outer", "misalignment", "long_blocks", *_ROW_STRIDES, *_PARAMETERS, *s.numbers}
        unspecialised |= {"inner"} if p.layout != "inner" else set()
        divisible += [n for n, value in run_time.items() if n not in unspecialised and value % ALIGNMENT == 0]
        types = {name: f"*{TYPES[dtype]}" for name, dtype in pointers.items()}
        if exchanges(config, self.kernel):
            types["workspace"] = "*i64"
            divisible.append("workspace")
        floats = {"scale", *_PARAMETERS}
        types |= {n: accumulator if n in floats else "i32" if v < 2**31 else "i64" for n, v in run_time.items()}
        return Specialization(
            kernel=self.kernel,
            entry=_entry(config),
            types=tuple(types.items()),
            constants=tuple(constants.items()),
            divisible=tuple(divisible),
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            max_registers=config.max_registers,
            cooperative=exchanges(config, self.kernel),
        )

    def _whole_row_constants(self, config: KernelConfig) -> dict[str, Any]:
        """Returns the constants that only `whole_row` and `overlapped` have: how programs share a row."""
        constants: dict[str, Any] = {} if exchanges(config, self.kernel) else {"workspace": None}
        if not self.problem.equal_heads(config):
            constants["long_blocks"] = None
        if not config.overlap:
            constants |= {"STAGES": config.num_stages, "PERSISTENT": config.persistent, "RELOAD": config.reload}
        return constants | {
            "PROGRAMS_PER_ROW": config.programs_per_row,
            "SPLIT_POW2": 1 << (config.programs_per_row - 1).bit_length(),
            "SLOTS": slots_per_tile(config),
        }

    def _edge_constants(self, config: KernelConfig) -> dict[str, Any]:
        """Returns the constants that describe the head and the tail of a row."""
        vector, misalignments = self.problem.vector, set(self._misalignments().values())
        strides = zip(self.layout.in_strides[:2], self.layout.out_strides[:2], strict=True)
        same = len(misalignments) == 1 and all((read - written) % vector == 0 for read, written in strides)
        constants = {"PEEL": config.peel, "VECTOR": vector, "SAME_MISALIGNMENT": config.peel and same}
        return constants if config.peel else constants | {"misalignment": 0}

    def _mask_bytes(self, config: KernelConfig) -> int:
        """Returns the alignment, in bytes, that the compiler may assume for the mask of each row of a tile."""
        if self.problem.layout == "inner":  # vectors contain elements of several rows
            return 1
        misalignment = self._misalignments()["in_ptr"] if config.peel else None
        return self.scale_mask.alignment(self.problem.vector, config.cols, misalignment)

    def workspace_slots(self, plan: LaunchPlan, rows: int | None = None) -> int:
        """Returns the number of 64-bit slots in the workspace of a launch. They are zero before and after it.

        `rows` is another number of rows in the range of the plan.
        """
        config = plan.config
        if not exchanges(config, self.kernel):
            return 0
        programs = plan.programs if rows is None else plan.programs_for(self.problem, rows)
        counter = 2 + 3 * (programs // config.programs_per_row) if config.persistent else 0
        tiles = self.problem.tiles_of(config, rows)
        return tiles * slots_per_tile(config) + counter


def _entry(config: KernelConfig) -> str:
    """Returns the name of the Triton function of a configuration."""
    if config.schedule == "column_loop":
        return "column_loop"
    return "overlapped" if config.overlap else "whole_row"


def exchanges(config: KernelConfig, kernel: RowKernel) -> bool:
    """Returns whether programs exchange statistics, so that all of them have to be resident at the same time."""
    return config.programs_per_row > 1 and bool(kernel.statistics)


def slots_per_tile(config: KernelConfig) -> int:
    """Returns the number of 64-bit slots in the workspace for one tile.

    A persistent program has a slot for each row. If more than 2 * `BLOCK` programs compute one row, each block of
    `BLOCK` programs has one more. A program that is not persistent has a mailbox: a slot for each program of the row.
    """
    if not config.persistent:
        return config.programs_per_row**2
    blocks = -(-config.programs_per_row // BLOCK) if config.programs_per_row > 2 * BLOCK else 0
    return config.programs_per_row * config.rows + (blocks if config.rows == 1 else 0)
