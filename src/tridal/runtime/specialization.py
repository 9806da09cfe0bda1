"""The specialization of a kernel for a call, and its scalar arguments. Arithmetic only.

Two launches with equal specializations can use the same compiled kernel.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, fields, replace
from typing import Any

from tridal.devices.types import ALIGNMENT, ITEMSIZE, MAX_32_BIT_ROWS, MAX_TILE, KernelConfig, LaunchPlan, Problem
from tridal.kernels.row_kernel import TENSORS, RowKernel
from tridal.runtime.row_layout import GROUPS, RowLayout
from tridal.runtime.scale_mask import ScaleMask

_SIZES = ("outer", "inner", "cols")
STRIDES = tuple(f"{group}_{axis}" for group in GROUPS for axis in ("outer", "inner", "col"))
"""The arguments for the groups of strides of a `RowLayout`."""
JUMPS = tuple(f"{group}_jump" for group in GROUPS)
"""Those for its jumps, one for each group."""
_ROW_STRIDES = ("row_outer", "row_inner")
_LAUNCH_OPTIONS = ("SCHEDULE", "NUM_WARPS", "MAX_REGISTERS")
TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "uint8": "u8", "int64": "i64"}
ADDRESS_BITS = 63
"""Mask of the bits of an address that decide its alignment: vectors have at most 16 elements of 4 bytes."""

NO_SCALE_MASK = ScaleMask()

_INVARIANT_ROWS = 4096
"""The number of rows of every batch-invariant plan. It is large enough to keep a device busy."""
_ROW_MULTIPLES = {"workspace", "cols", "in_inner", "out_inner", "in_outer", "out_outer"}
"""Arguments that are multiples of 16 in every batch if the row length is such a multiple and addresses are aligned.

Tensors with a number per element are such arguments, too.
"""

_UNIT_STRIDES = {
    "row": tuple(f"{group}_col" for group in GROUPS), "inner": tuple(f"{group}_inner" for group in GROUPS),
    "strided": (),
}  # fmt: skip
"""Strides that are one, by layout."""


@dataclass(frozen=True, slots=True)
class Specialization:
    """Everything that a compiled kernel is specialized on."""

    kernel: RowKernel
    entry: str
    """The Triton function that is compiled: "whole_row" or "column_loop"."""
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
    invariant: bool = False
    """Whether the result of a row has the same bits in every batch. All tensors are contiguous then.

    Because the order in which a row is summed depends on the plan and on the compiled kernel, every plan is made for a
    fixed number of rows, and the compiler may only assume alignments that hold for each row of any batch.
    """
    block_stride: int = 0
    """The stride between the blocks of inputs with a number per column and block, see `RowKernel.per_block`."""

    def __post_init__(self) -> None:
        """Sets the default of `addresses`."""
        object.__setattr__(self, "addresses", self.addresses or (0,) * len(self.dtypes))

    @functools.cached_property
    def bucket(self) -> Problem:
        """The problem with rounded numbers of rows. `aligned` follows from the real sizes of the call."""
        kernel, layout, remaining = self.kernel, self.layout, iter(self.dtypes)
        dtypes = {field: tuple(itertools.islice(remaining, len(kernel.named(field)))) for field in TENSORS}
        del dtypes["row_index"], dtypes["top_index"]
        for of_slots, of_rows in (("top_reads", "row_reads"), ("top_writes", "row_writes")):
            dtypes[of_rows] += dtypes.pop(of_slots)
        units = _UNIT_STRIDES[layout.layout]
        strides = itertools.chain(*layout.groups)
        lengths = [value for name, value in zip(STRIDES, strides, strict=False) if name not in units]
        lengths += [*layout.jumps, layout.inner if layout.layout == "inner" else layout.cols, *self.addresses]
        outer, inner = layout.rounded
        return Problem(
            layout.cols, inner, outer, **dtypes, passes=kernel.passes, statistics=len(kernel.computed),
            live_tiles=kernel.live_tiles + len(dtypes["added"]), layout=layout.layout,
            aligned=not any(length % ALIGNMENT for length in lengths),
            scale_mask=self.scale_mask != NO_SCALE_MASK, per_block=bool(kernel.per_block), whole_rows=kernel.whole_rows,
        )  # fmt: skip

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem that a backend plans for: the bucket, or the one of all batches.

        The latter is aligned, because the order of the sums of a peeled row depends on its position in the batch.
        """
        return replace(self.bucket, outer=1, inner=_INVARIANT_ROWS, aligned=True) if self.invariant else self.bucket

    @property
    def planned_for(self) -> str:
        """The number of rows that a plan is made for, in words, or "" if it is that of the call."""
        rows, planned = self.layout.rows, self.problem.rows
        if self.invariant:
            return f"batch-invariant, planned for {planned:,} rows"
        return "" if planned == rows else f"planned for {planned:,} rows, the bucket of {rows:,}"

    @property
    def row_range(self) -> tuple[int, int]:
        """The first and the last number of rows that this call serves, with its plan, specialization and strides."""
        # The stride of a single row is arbitrary. The positions of rows in a mask, and diagonals, depend on the shape.
        if self.layout.rows == 1 or self.scale_mask.causal or self.scale_mask.mask is not None:
            return self.layout.rows, self.layout.rows
        return self.layout.row_range

    def column_range(self, config: KernelConfig) -> tuple[int, int] | None:
        """The first and the last number of columns that this call of one row serves, or None for its own only.

        The tile holds each of them, and each fills more than half of it. They have the same divisibility by 16.
        """
        layout = self.layout
        one_tile = config.schedule == "whole_row" and not (config.peel or self.kernel.whole_rows)
        if layout.rows > 1 or layout.layout != "row" or self.scale_mask != NO_SCALE_MASK or not one_tile:
            return None
        first, last = (config.cols if config.rest_cols else config.cols // 2) + 1, config.row_cols
        if layout.cols % ALIGNMENT == 0:
            first = -(-first // ALIGNMENT) * ALIGNMENT
        return (first, last) if first <= layout.cols <= last and first < last else None

    @property
    def _has_row_tensors(self) -> bool:
        kernel = self.kernel
        return bool(kernel.row_reads or kernel.row_writes or kernel.row_index or kernel.whole_rows)

    def _misalignments(self) -> list[int]:
        """Counts the elements from a vector boundary to the first row of each tensor with a number per element.

        The first number is that of the first tensor that is read.
        """
        kernel, vector = self.kernel, self.problem.vector
        tensors = dict(zip(kernel.pointers, zip(self.dtypes, self.addresses, strict=True), strict=True))
        first = f"{kernel.reads[0]}_ptr"
        names = [first, *(name for name in kernel.element_pointers if name != first)]
        return [tensors[name][1] // ITEMSIZE[tensors[name][0]] % vector for name in names]

    def scalars(self, config: KernelConfig) -> dict[str, Any]:
        """The scalar arguments of the kernel by name. None is an argument that the kernel does not have."""
        layout = self.layout
        row_strides = layout.row_strides if self._has_row_tensors else (0, 0)
        numbers = (layout.outer, layout.inner, layout.cols, *row_strides, *itertools.chain(*layout.groups))
        values: dict[str, Any] = dict.fromkeys((*_SIZES, *STRIDES, *JUMPS))
        values |= zip(_SIZES + _ROW_STRIDES + STRIDES, numbers, strict=False)
        values |= {"minor_blocks": layout.minor_blocks, **dict(zip(JUMPS, layout.jumps, strict=False))}
        values["misalignment"] = self._misalignments()[0] if config.peel else 0
        values |= {"block_stride": self.block_stride} if self.kernel.per_block else {}
        values |= dict.fromkeys(self._parameters) | dict(zip(self._parameters, self.parameters, strict=False))
        return values | self.scale_mask.numbers

    @property
    def _parameters(self) -> list[str]:
        return [f"{name}_number" for name in self.kernel.parameters]

    def specialize(self, config: KernelConfig) -> Specialization:
        """Collects all constants of the compiled kernel of this call for a configuration.

        A stride of one is a constant, because contiguity decides how memory is read. Unused arguments are constants.
        The number of rows is never a constant: a new batch size compiles nothing, unless it exceeds 32 bits.
        """
        p, s, scalars = self.problem, self.scale_mask, self.scalars(config)
        pointers = dict(zip(self.kernel.pointers, self.dtypes, strict=True))
        divisible = [n for n, a in zip(pointers, self.addresses, strict=True) if a % ALIGNMENT == 0]
        cooperative = exchanges(config, self.kernel)
        constants: dict[str, Any] = {field.name.upper(): getattr(config, field.name) for field in fields(config)}
        constants = {name: value for name, value in constants.items() if name not in _LAUNCH_OPTIONS}
        mask_extent = (config.row_cols - 1) * s.strides[-1]
        accumulator = "fp64" if p.accumulator == 8 else "fp32"
        constants |= {
            "ACC_DTYPE": accumulator,
            "INT64_OFFSETS": max(self.layout.max_offset(config.rows, config.row_cols), mask_extent) >= 2**31,
            "INT64_TILES": self.layout.rows > MAX_32_BIT_ROWS,
            "AXIS": 0 if p.layout == "inner" else 1,
            "VECTOR": p.vector,
            "SAME_MISALIGNMENT": config.peel and self._same_misalignment(),
            "CAUSAL": s.causal,
            "ZERO_MASKED_ROWS": s.zero_masked_rows,
            "MASK_BYTES": self._mask_bytes(config),
            "MASK_IS_BOOL": s.mask == "uint8",
            "SPLIT_POW2": 1 << (config.programs_per_row - 1).bit_length(),
            "SLOTS": config.programs_per_row * config.rows,
        }
        constants |= dict.fromkeys(_UNIT_STRIDES[p.layout], 1)
        constants |= {name: None for name, value in scalars.items() if value is None}
        if s.mask is None:
            constants["score_mask"] = None
        else:
            pointers["score_mask"] = s.mask
        if not cooperative:
            constants["workspace"] = None
        if not config.peel:
            constants["misalignment"] = 0
        if not self._has_row_tensors:
            constants |= dict.fromkeys(_ROW_STRIDES, 0)
        elif scalars["row_inner"] == 1:
            constants["row_inner"] = 1
        constants |= {n: v for n, v in s.numbers.items() if n != "scale" and v in (0, 1)}
        run_time = {name: value for name, value in scalars.items() if name not in constants}
        unspecialized = {"outer", "minor_blocks", "misalignment", *_ROW_STRIDES}
        unspecialized |= {*self._parameters, *s.numbers, *({"inner"} if p.layout != "inner" else ())}
        divisible += [n for n, value in run_time.items() if n not in unspecialized and value % ALIGNMENT == 0]
        types = {name: f"*{TYPES[dtype]}" for name, dtype in pointers.items()}
        if cooperative:
            types["workspace"] = "*i64"
            divisible.append("workspace")
        floats = {"scale", *self._parameters}
        wide = {n for n, v in run_time.items() if abs(v) >= 2**31} | ({"inner"} if constants["INT64_TILES"] else set())
        wide |= {"cols"} if p.cols > 2**31 - 2 * MAX_TILE else set()  # kernels add the columns of a tile, and a tail
        types |= {n: accumulator if n in floats else "i64" if n in wide else "i32" for n in run_time}
        if self.invariant:
            divisible = self._divisible_in_any_batch([*types])
        return Specialization(
            kernel=self.kernel,
            entry="column_loop" if config.schedule == "column_loop" else "whole_row",
            types=tuple(types.items()),
            constants=tuple(constants.items()),
            divisible=tuple(divisible),
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            max_registers=config.max_registers,
            cooperative=cooperative,
        )

    def _divisible_in_any_batch(self, names: list[str]) -> list[str]:
        """Names the arguments that are multiples of 16 for each row of any batch."""
        multiples = {*_ROW_MULTIPLES, *self.kernel.element_pointers}
        addresses = [a for name, a in zip(self.kernel.pointers, self.addresses, strict=False) if name in multiples]
        aligned = self.problem.layout == "row" and self.layout.cols % ALIGNMENT == 0 and not any(addresses)
        return [name for name in names if name in multiples] if aligned else []

    def _same_misalignment(self) -> bool:
        """Returns whether each row of all tensors with a number per element has the same misalignment."""
        vector, layout = self.problem.vector, self.layout
        strides = [*zip(*layout.groups, strict=True)][:2] + [layout.jumps] * bool(layout.jumps)
        same = all((of_first - stride) % vector == 0 for of_first, *others in strides for stride in others)
        return same and len(set(self._misalignments())) == 1

    def _mask_bytes(self, config: KernelConfig) -> int:
        """The bytes of alignment that the compiler may assume for the mask of each row of a tile."""
        # Vectors contain elements of several rows, or the alignment depends on the position of the row in the batch.
        if self.problem.layout == "inner" or self.invariant:
            return 1
        misalignment = self._misalignments()[0] if config.peel else None
        return self.scale_mask.alignment(self.problem.vector, config.cols, misalignment)

    def tiles(self, config: KernelConfig, rows: int | None = None) -> int:
        """Counts the tiles. `rows` is another number of rows in `row_range`."""
        return self.layout.outer * -(-(self.layout.inner if rows is None else rows) // config.rows)

    def programs(self, plan: LaunchPlan, rows: int | None = None) -> int:
        """Counts the programs of a launch. `rows` is another number of rows in `row_range`."""
        tiles, blocks = self.tiles(plan.config, rows), self.layout.outer if self.kernel.per_block else 1
        return plan.programs_for(tiles // blocks) * blocks if self.invariant else plan.programs_for(tiles, blocks)

    def workspace_slots(self, plan: LaunchPlan, rows: int | None = None) -> int:
        """Counts the 64-bit slots in the workspace of a launch. They are zero before and after it.

        `rows` is another number of rows in `row_range`.
        """
        config = plan.config
        if not exchanges(config, self.kernel):
            return 0
        groups = self.programs(plan, rows) // config.programs_per_row
        return self.tiles(config, rows) * config.rows * config.programs_per_row + 2 + 3 * groups


def exchanges(config: KernelConfig, kernel: RowKernel) -> bool:
    """If programs exchange statistics, all of them have to be resident at the same time."""
    return config.programs_per_row > 1 and bool(kernel.computed)
