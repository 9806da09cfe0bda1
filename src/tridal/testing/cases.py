"""The cases of the conformance suite: shapes, dims, dtypes, layouts and values that have shown faults. Data only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, TypeAlias

import torch

from tridal.devices.types import Backend
from tridal.ops import table
from tridal.ops.row_op import RowOp
from tridal.testing.plan_overrides import overrides

Direction: TypeAlias = Literal["forward", "backward", "double"]
Layout: TypeAlias = Literal["contiguous", "transposed", "expanded", "sliced", "stepped", "channels_last", "permuted"]
Values: TypeAlias = Literal[
    "normal", "shifted", "constant", "dominant", "largest", "some -inf", "row of -inf", "some +inf", "some nan"
]
"""Which values the input has: see `tridal.testing.inputs.make_values`."""

Mask: TypeAlias = Literal[
    "boolean", "boolean sliced", "boolean keys", "boolean batches", "added", "added halves", "added keys"
]
"""A boolean mask or one that is added. "keys" and "batches" have fewer dims and are broadcast, "halves" is float16."""

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Case:
    """One call of an op's function: its arguments, and where and how it runs."""

    op: str
    """Name of the op."""
    direction: Direction
    shape: tuple[int, ...]
    dim: int = -1
    dtype: str = "float32"
    """The input's dtype."""
    cast: str | None = None
    """The argument `dtype`; None if it is not given."""
    layout: Layout = "contiguous"
    """The memory layout of the input."""
    grad_layout: Layout = "contiguous"
    """The memory layout of the output's gradient."""
    values: Values = "normal"
    scale: float | None = None
    mask: Mask | None = None
    """The kind of mask; None if there is none."""
    causal: bool = False
    masked_rows: Literal["nan", "zero"] = "nan"
    plan: str = "planned"
    """A name of `tridal.testing.PLAN_OVERRIDES`."""
    stream: bool = False
    """Whether the device's current stream is passed as an argument."""
    last_device: bool = False
    """Whether the tensor lies on the last device, while another is current."""

    @property
    def out_dtype(self) -> str:
        """The result's dtype."""
        return self.cast or self.dtype

    @property
    def modified(self) -> bool:
        """Whether the input is scaled or masked first."""
        return self.scale is not None or self.mask is not None or self.causal or self.masked_rows != "nan"

    @property
    def name(self) -> str:
        """One line that identifies the case."""
        shape = "x".join(map(str, self.shape)) or "0-d"
        parts = [self.op, self.direction, shape, f"dim={self.dim}", self.dtype]
        parts += [f"to {self.cast}"] if self.cast else []
        parts += [self.layout] if self.layout != "contiguous" else []
        parts += [f"{self.grad_layout} gradient"] if self.grad_layout != "contiguous" else []
        parts += [self.values] if self.values != "normal" else []
        parts += [f"scale {self.scale:g}"] if self.scale is not None else []
        parts += [f"mask {self.mask}"] if self.mask is not None else []
        parts += ["causal"] * self.causal + ["zero rows"] * (self.masked_rows == "zero")
        parts += [f"plan {self.plan}"] if self.plan != "planned" else []
        parts += ["stream"] * self.stream + ["last device"] * self.last_device
        return " ".join(parts)


_MODIFICATIONS: tuple[dict[str, Any], ...] = (
    {"scale": 0.25}, {"scale": -0.5, "causal": True}, {"mask": "boolean", "masked_rows": "zero"},
    {"mask": "added", "scale": 2.0}, {"mask": "boolean keys", "causal": True, "masked_rows": "zero"},
    {"mask": "boolean batches", "scale": 0.125}, {"mask": "boolean sliced", "masked_rows": "zero"},
    {"mask": "added halves", "causal": True}, {"mask": "added keys"}, {"mask": "boolean"}, {"masked_rows": "zero"},
)  # fmt: skip

TUTORIAL_SHAPE = (1823, 781)
"""The shape of the unit test in Triton's tutorials. No power of two divides its rows or columns."""

_SHAPES = (
    (), (1,), (7,), (1, 1), (5, 1), (1, 5), (2, 3), TUTORIAL_SHAPE, (33, 257), (17, 1024), (6, 1001), (3, 5000),
    (30_000, 3), (70_001, 5), (9, 16), (2, 3, 4, 5, 6), (2, 50_257), (1, 131_072), (1, (1 << 20) + 7),
)  # fmt: skip
_EMPTY = ((0,), (0, 5), (5, 0), (5, 0, 0), (3, 0, 2))
_DIMS = (
    ((3, 5, 7, 11), 0), ((3, 5, 7, 11), 1), ((3, 5, 7, 11), -2), ((3, 5, 7, 11), 3), ((781, 64), 0), ((781, 65), -2),
    ((1, 7, 1), 1), ((4, 300, 33), 1), ((2, 1000, 257), 1), ((5, 70_001), 0), ((40_009, 3), 0),
)  # fmt: skip
_DTYPE_SHAPES = ((TUTORIAL_SHAPE, -1), ((5, 257), -1), ((3, 50_257), -1), ((781, 64), 0), ((4, 33, 7), 1))
_LAYOUTS: tuple[Layout, ...] = ("transposed", "expanded", "sliced", "stepped", "channels_last", "permuted")
_SPECIAL: tuple[Values, ...] = (
    "shifted", "constant", "dominant", "largest", "some -inf", "row of -inf", "some +inf", "some nan",
)  # fmt: skip
_CASTS = (
    ("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16"), ("float32", "float16"),
    ("float32", "float64"), ("float64", "float32"), ("int64", "float32"), ("uint8", "float32"), ("bool", "float16"),
)  # fmt: skip


def cases(backend: Backend, ops: Sequence[str] | None = None) -> tuple[Case, ...]:
    """Returns all cases for a backend.

    Cases with a dtype that the backend does not compute are left out. Cases with a stream, or with a second device, are
    included only if the backend's device type has streams, or the backend has two devices.

    Args:
        backend: a backend that is available here.
        ops: names of ops in the table of ops; None for all ops.

    Raises:
        PlanError: an op is unknown or cannot be used. The message suggests similar names.
    """
    chosen = {name: op for name, op in table.ops().items() if ops is None}
    chosen |= {name: table.op_named(name) for name in ops or ()}
    names = list(chosen)
    modifiable = [name for name, op in chosen.items() if op.scale_mask]
    found = [*_shapes_and_dims(names), *_layouts(names), *_dtypes(names, backend), *_values(chosen)]
    found += [*_double(names, backend), *_modified(modifiable)]
    found += [case for plan in overrides(backend) for case in _overridden(names, modifiable, plan)]
    if _has_streams(backend.device_type):
        found += [Case(op, d, (37, 53), stream=True) for op, d in product(names, DIRECTIONS)]
    if backend.device_count() > 1:
        found += [Case(op, d, (37, 53), last_device=True) for op, d in product(names, DIRECTIONS)]
    return tuple(dict.fromkeys(case for case in found if _computes(backend, case)))


def _has_streams(device_type: str) -> bool:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator is not None and accelerator.type == device_type


def _shapes_and_dims(names: Sequence[str]) -> Iterator[Case]:
    for op, direction in product(names, DIRECTIONS):
        yield from (Case(op, direction, shape) for shape in _SHAPES)
        yield from (Case(op, direction, shape, dim) for shape in _EMPTY for dim in range(len(shape)))
        yield from (Case(op, direction, shape, dim) for shape, dim in _DIMS)


def _layouts(names: Sequence[str]) -> Iterator[Case]:
    four, two = (3, 10, 7, 9), (37, 53)
    for op, layout in product(names, _LAYOUTS):
        for direction, dim in product(DIRECTIONS, (0, 1, 3)):
            yield Case(op, direction, four, dim, layout=layout)
        if layout != "channels_last":
            for direction, dim in product(DIRECTIONS, (0, 1)):
                yield Case(op, direction, two, dim, layout=layout)
            yield Case(op, "backward", two, grad_layout=layout)
        yield Case(op, "backward", four, 1, grad_layout=layout)
        yield Case(op, "backward", four, 3, layout="transposed", grad_layout=layout)


def _dtypes(names: Sequence[str], backend: Backend) -> Iterator[Case]:
    for op, direction in product(names, DIRECTIONS):
        for dtype in sorted(backend.dtypes):
            for shape, dim in _DTYPE_SHAPES:
                yield Case(op, direction, shape, dim, dtype)
            yield Case(op, direction, (37, 53), dtype=dtype, layout="sliced", grad_layout="expanded")
        for dtype, cast in _CASTS:
            if direction == "forward" or "float" in dtype:
                yield Case(op, direction, (33, 257), dtype=dtype, cast=cast)
                yield Case(op, direction, (3, 10, 7, 9), 1, dtype=dtype, cast=cast, layout="permuted")


def _values(ops: Mapping[str, RowOp]) -> Iterator[Case]:
    for op, direction, values in product(ops, DIRECTIONS, _SPECIAL):
        if values == "largest" and not getattr(ops[op].bounds, "any_values", False):
            continue  # intermediate results may not be representable in float32
        yield Case(op, direction, (37, 53), values=values)
        yield Case(op, direction, (53, 37), 0, values=values)
        yield Case(op, direction, (37, 53), dtype="bfloat16", values=values)
    for op, direction in product(ops, DIRECTIONS):
        yield Case(op, direction, (17, 1001), dtype="float16", values="shifted")


def _double(names: Sequence[str], backend: Backend) -> Iterator[Case]:
    dtypes = sorted({"float32", "float64"} & backend.dtypes)
    for op, dtype, (shape, dim) in product(names, dtypes, (((5, 7), -1), ((4, 33), 0), ((3, 4, 5), 1), ((), 0))):
        yield Case(op, "double", shape, dim, dtype)


def _overridden(names: Sequence[str], modifiable: Sequence[str], plan: str) -> Iterator[Case]:
    for op, direction in product(names, DIRECTIONS):
        for shape, dim in (((37, 53), -1), ((300, 781), -1), ((5, 4097), -1), ((781, 64), 0), ((3, 300, 33), 1)):
            yield Case(op, direction, shape, dim, plan=plan)
        yield Case(op, direction, (37, 53), dtype="bfloat16", plan=plan)
        yield Case(op, direction, (5, 1001), dtype="float16", plan=plan)
        yield Case(op, direction, (3, 10, 7, 9), 1, layout="stepped", plan=plan)
        for values in ("some -inf", "row of -inf", "some +inf", "some nan", "dominant"):
            yield replace(Case(op, direction, (17, 211), plan=plan), values=values)
    for op in modifiable:
        for shape, modification in product(((37, 53), (300, 781), (5, 4097), (2, 3, 17, 64)), _MODIFICATIONS):
            yield Case(op, "forward", shape, plan=plan, **modification)
        for modification in _MODIFICATIONS:
            case = Case(op, "forward", (2, 3, 17, 211), dtype="bfloat16", plan=plan, **modification)
            yield replace(case, values="some -inf")
        for shape in ((37, 53), (300, 781), (5, 4097)):
            yield Case(op, "backward", shape, scale=0.125, mask="boolean", masked_rows="zero", plan=plan)


def _modified(modifiable: Sequence[str]) -> Iterator[Case]:
    for op in modifiable:
        shapes = ((2, 3, 33, 257), (40, 1024), (3, 5000))
        for direction, shape, modification in product(DIRECTIONS, shapes, _MODIFICATIONS):
            yield Case(op, direction, shape, **modification)
        for direction, layout in product(DIRECTIONS, _LAYOUTS):
            yield Case(op, direction, (3, 10, 7, 9), layout=layout, scale=0.5, mask="boolean", masked_rows="zero")
        masks: tuple[Mask, ...] = ("boolean", "added", "boolean batches")
        for dim, mask in product((0, 1, 2), masks):
            yield Case(op, "forward", (3, 10, 7, 9), dim, mask=mask, scale=0.5, masked_rows="zero")
        for dtype, cast in (("float16", None), ("float64", None), ("bfloat16", "float32"), ("float32", "bfloat16")):
            for modification in _MODIFICATIONS:
                yield Case(op, "forward", (9, 17, 65), dtype=dtype, cast=cast, **modification)
            yield Case(op, "backward", (9, 17, 65), dtype=dtype, cast=cast, scale=0.5, causal=True)


def _computes(backend: Backend, case: Case) -> bool:
    """Whether the backend computes the case's floating-point dtypes."""
    floating = {dtype for dtype in (case.dtype, case.out_dtype) if "float" in dtype}
    return floating <= backend.dtypes
