"""The cases of ops of one tensor: shapes, dims, dtypes, layouts and values that have shown faults. Data only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import torch

from tridal.devices.types import Backend
from tridal.ops.row_op import RowOp
from tridal.testing.plan_overrides import overrides

Direction: TypeAlias = Literal["forward", "backward", "double"]
Layout: TypeAlias = Literal["contiguous", "transposed", "expanded", "sliced", "stepped", "channels_last", "permuted"]
Values: TypeAlias = Literal[
    "normal", "shifted", "constant", "dominant", "largest", "some -inf", "row of -inf", "some +inf", "some nan"
]
Mask: TypeAlias = Literal[
    "boolean", "boolean sliced", "boolean keys", "boolean batches", "added", "added halves", "added keys"
]
"""The kind of a mask: boolean, or added to the scores. "keys" and "batches" are broadcast. "halves" is float16."""

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Case:
    """One call of an op's function: its arguments, and where and how it runs."""

    op: str
    direction: Direction
    shape: tuple[int, ...]
    dim: int = -1
    dtype: str = "float32"
    """The input's dtype."""
    cast: str | None = None
    """The argument `dtype`; None if it is not given."""
    layout: Layout = "contiguous"
    grad_layout: Layout = "contiguous"
    """The memory layout of the output's gradient."""
    values: Values = "normal"
    """The values of the input, see `tridal.testing.inputs.make_values`."""
    scale: float | None = None
    mask: Mask | None = None
    causal: bool = False
    masked_rows: Literal["nan", "zero"] = "nan"
    plan: str = "planned"
    """A key of `tridal.testing.PLAN_OVERRIDES`."""
    stream: bool = False
    """Whether the device's current stream is passed as an argument."""
    last_device: bool = False
    """Whether the tensors are on the last device while another device is current."""

    @property
    def out_dtype(self) -> str:
        """The result's dtype."""
        return self.cast or self.dtype

    @property
    def modified(self) -> bool:
        """Whether the input is scaled or masked before the op."""
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


@dataclass(frozen=True, slots=True)
class FusedCase:
    """One call of the function of an op of several tensors. A subclass adds the op's arguments."""

    op: str
    direction: Direction
    shape: tuple[int, ...]
    dtype: str = "float32"
    """The input's dtype."""
    layout: Layout = "contiguous"
    """The input's memory layout."""
    values: Values = "normal"
    plan: str = "planned"
    """A key of `tridal.testing.PLAN_OVERRIDES`."""
    last_device: bool = False
    """Whether the tensors are on the last device while another device is current."""
    modified: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """One line that identifies the case: the op, the direction, the shape, and the fields that differ."""
        shape = "x".join(map(str, self.shape)) or "0-d"
        rest = fields(self)[3:]
        changed = [
            (field.name, getattr(self, field.name)) for field in rest if getattr(self, field.name) != field.default
        ]
        return " ".join((self.op, self.direction, shape, *(f"{name}={value}" for name, value in changed)))

    def compare(self, implementation: Any) -> tuple[float, float, str | None]:
        """Calls the function of an `Implementation`. Returns the error, its bound and the message of a `Result`."""
        raise NotImplementedError


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
_DIMS = (
    *((shape, dim) for shape in ((0,), (0, 5), (5, 0), (5, 0, 0), (3, 0, 2)) for dim in range(len(shape))),
    ((3, 5, 7, 11), 0), ((3, 5, 7, 11), 1), ((3, 5, 7, 11), -2), ((3, 5, 7, 11), 3), ((781, 64), 0), ((781, 65), -2),
    ((1, 7, 1), 1), ((4, 300, 33), 1), ((2, 1000, 257), 1), ((5, 70_001), 0), ((40_009, 3), 0),
)  # fmt: skip
_TWO_DIMS, _FOUR_DIMS = (37, 53), (3, 10, 7, 9)
_DTYPE_SHAPES = ((TUTORIAL_SHAPE, -1), ((5, 257), -1), ((3, 50_257), -1), ((781, 64), 0), ((4, 33, 7), 1))
_DOUBLE_SHAPES = (((5, 7), -1), ((4, 33), 0), ((3, 4, 5), 1), ((), 0))
_PLAN_SHAPES = ((_TWO_DIMS, -1), ((300, 781), -1), ((5, 4097), -1), ((781, 64), 0), ((3, 300, 33), 1))
_LAYOUTS, _SPECIAL_VALUES = get_args(Layout)[1:], get_args(Values)[1:]
_CASTS = (
    ("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16"), ("float32", "float16"),
    ("float32", "float64"), ("float64", "float32"), ("int64", "float32"), ("uint8", "float32"), ("bool", "float16"),
)  # fmt: skip


def row_cases(op: RowOp, backend: Backend) -> Iterator[Case]:
    """Yields the cases of an op of one tensor whose dtypes the backend computes."""
    yield from (case for case in _cases(op, backend) if _is_defined(case, backend))


def _is_defined(case: Case, backend: Backend) -> bool:
    """Returns whether the backend computes the case's dtypes. A gradient also requires a floating-point input."""
    floating = {dtype for dtype in (case.dtype, case.out_dtype) if "float" in dtype}
    return floating <= backend.dtypes and (case.direction == "forward" or "float" in case.dtype)


def _cases(op: RowOp, backend: Backend) -> Iterator[Case]:
    forward, backward = (partial(Case, op.name, direction) for direction in DIRECTIONS)
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    for make in (forward, backward):
        yield from _shapes_and_layouts(make)
        yield from _dtypes_and_values(make, backend, op)
        for plan in overrides(backend):
            yield from _overridden(partial(make, plan=plan))
        if accelerator is not None and accelerator.type == backend.device_type:
            yield make(_TWO_DIMS, stream=True)
        if backend.device_count() > 1:
            yield make(_TWO_DIMS, last_device=True)
    yield from _gradient_layouts(backward)
    for dtype, (shape, dim) in product(("float32", "float64"), _DOUBLE_SHAPES):
        yield Case(op.name, "double", shape, dim, dtype)
    if op.scale_mask:
        yield from _modified(forward, backward)
        for plan in overrides(backend):
            yield from _modified_and_overridden(partial(forward, plan=plan), partial(backward, plan=plan))


def _shapes_and_layouts(make: Callable[..., Case]) -> Iterator[Case]:
    yield from (make(shape) for shape in _SHAPES)
    yield from (make(shape, dim) for shape, dim in _DIMS)
    for layout in _LAYOUTS:
        yield from (make(_FOUR_DIMS, dim, layout=layout) for dim in (0, 1, 3))
        if layout != "channels_last":
            yield from (make(_TWO_DIMS, dim, layout=layout) for dim in (0, 1))


def _gradient_layouts(make: Callable[..., Case]) -> Iterator[Case]:
    for layout in _LAYOUTS:
        if layout != "channels_last":
            yield make(_TWO_DIMS, grad_layout=layout)
        yield make(_FOUR_DIMS, 1, grad_layout=layout)
        yield make(_FOUR_DIMS, 3, layout="transposed", grad_layout=layout)


def _dtypes_and_values(make: Callable[..., Case], backend: Backend, op: RowOp) -> Iterator[Case]:
    for dtype in sorted(backend.dtypes):
        yield from (make(shape, dim, dtype) for shape, dim in _DTYPE_SHAPES)
        yield make(_TWO_DIMS, dtype=dtype, layout="sliced", grad_layout="expanded")
    for dtype, cast in _CASTS:
        yield make((33, 257), dtype=dtype, cast=cast)
        yield make(_FOUR_DIMS, 1, dtype=dtype, cast=cast, layout="permuted")
    for values in _SPECIAL_VALUES:
        if values == "largest" and not getattr(op.bounds, "any_values", False):
            continue  # intermediate results may not be representable in float32
        yield make(_TWO_DIMS, values=values)
        yield make(_TWO_DIMS[::-1], 0, values=values)
        yield make(_TWO_DIMS, dtype="bfloat16", values=values)
    yield make((17, 1001), dtype="float16", values="shifted")


def _overridden(make: Callable[..., Case]) -> Iterator[Case]:
    yield from (make(shape, dim) for shape, dim in _PLAN_SHAPES)
    yield make(_TWO_DIMS, dtype="bfloat16")
    yield make((5, 1001), dtype="float16")
    yield make(_FOUR_DIMS, 1, layout="stepped")
    for values in ("some -inf", "row of -inf", "some +inf", "some nan", "dominant"):
        yield make((17, 211), values=values)


def _modified(forward: Callable[..., Case], backward: Callable[..., Case]) -> Iterator[Case]:
    for make in (forward, backward):
        for shape, modification in product(((2, 3, 33, 257), (40, 1024), (3, 5000)), _MODIFICATIONS):
            yield make(shape, **modification)
        for layout in _LAYOUTS:
            yield make(_FOUR_DIMS, layout=layout, scale=0.5, mask="boolean", masked_rows="zero")
    for dim, mask in product((0, 1, 2), ("boolean", "added", "boolean batches")):
        yield forward(_FOUR_DIMS, dim, mask=mask, scale=0.5, masked_rows="zero")
    for dtype, cast in (("float16", None), ("float64", None), ("bfloat16", "float32"), ("float32", "bfloat16")):
        for modification in _MODIFICATIONS:
            yield forward((9, 17, 65), dtype=dtype, cast=cast, **modification)
        yield backward((9, 17, 65), dtype=dtype, cast=cast, scale=0.5, causal=True)


def _modified_and_overridden(forward: Callable[..., Case], backward: Callable[..., Case]) -> Iterator[Case]:
    for shape, modification in product((_TWO_DIMS, (300, 781), (5, 4097), (2, 3, 17, 64)), _MODIFICATIONS):
        yield forward(shape, **modification)
    for modification in _MODIFICATIONS:
        yield forward((2, 3, 17, 211), dtype="bfloat16", values="some -inf", **modification)
    for shape in (_TWO_DIMS, (300, 781), (5, 4097)):
        yield backward(shape, scale=0.125, mask="boolean", masked_rows="zero")
