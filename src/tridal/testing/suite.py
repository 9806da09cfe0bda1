"""The cases of the suite: shapes, dims, dtypes, layouts, values and numbers that have shown faults. Data only."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, get_args

import torch

from tridal.devices.types import Backend, row_bucket
from tridal.ops import table
from tridal.ops.arguments import Argument
from tridal.ops.op import Op
from tridal.testing.cases import (
    DIRECTIONS,
    TUTORIAL_SHAPE,
    Case,
    Layout,
    Values,
    is_choice,
    op_cases,
    optional_tensors,
)
from tridal.testing.plan_overrides import overrides

_MODIFICATIONS: tuple[dict[str, Any], ...] = (
    {"scale": 0.25}, {"scale": -0.5, "causal": True}, {"mask": "boolean", "masked_rows": "zero"},
    {"mask": "added", "scale": 2.0}, {"mask": "boolean keys", "causal": True, "masked_rows": "zero"},
    {"mask": "boolean batches", "scale": 0.125}, {"mask": "boolean sliced", "masked_rows": "zero"},
    {"mask": "added halves", "causal": True}, {"mask": "added keys"}, {"mask": "boolean"}, {"masked_rows": "zero"},
)  # fmt: skip

_SHAPES = (
    (), (1,), (7,), (1, 1), (5, 1), (1, 5), (2, 3), TUTORIAL_SHAPE, (33, 257), (17, 1024), (6, 1001), (3, 5000),
    (30_000, 3), (70_001, 5), (9, 16), (2, 3, 4, 5, 6), (2, 50_257), (1, 131_072), (1, (1 << 20) + 7),
)  # fmt: skip
_DIMS = (
    *((shape, dim) for shape in ((0,), (0, 5), (5, 0), (5, 0, 0), (3, 0, 2)) for dim in range(len(shape))),
    ((3, 5, 7, 11), 0), ((3, 5, 7, 11), 1), ((3, 5, 7, 11), -2), ((3, 5, 7, 11), 3), ((781, 64), 0), ((781, 65), -2),
    ((1, 7, 1), 1), ((4, 300, 33), 1), ((2, 1000, 257), 1), ((5, 70_001), 0), ((40_009, 3), 0),
)  # fmt: skip
_SEVERAL_DIMS = (((3, 4, 5, 6), 2), ((4, 5, 6), 3), ((33, 7, 13), 2), ((2, 0, 3), 2))
_TWO_DIMS, _FOUR_DIMS = (37, 53), (3, 10, 7, 9)
_DTYPE_SHAPES = ((TUTORIAL_SHAPE, -1), ((5, 257), -1), ((3, 50_257), -1), ((781, 64), 0), ((4, 33, 7), 1))
_DOUBLE_SHAPES = (((5, 7), -1), ((4, 33), 0), ((3, 4, 5), 1), ((), 0))
_PLAN_SHAPES = ((_TWO_DIMS, -1), ((300, 781), -1), ((5, 4097), -1), ((781, 64), 0), ((3, 300, 33), 1))
_BUCKETS = ((70, 781), (1000, 37), (2100, 24))
"""Rows and columns of matrices. All numbers of rows in the bucket of one have the same plan and launch."""
_BLOCKS = (
    ((3, 70, 33), 1), ((70, 3, 8), 1), ((3, 5, 4097), 1), ((2, 3, 40, 17), 2), ((5, 9, 24), 0), ((2, 3, 40, 17), 1),
    ((1, 9, 53), 1), ((2, 1, 3, 16), 1), ((4, 0, 5), 1), ((0, 4, 5), 1),
)  # fmt: skip
"""Shapes, and how many of their first dims are those of blocks of rows: tiles that are not full, more blocks than
programs, one block, and blocks without rows."""
_OVERRIDDEN_BLOCKS = 3
"""So many of these have overridden plans."""
_FEW_ELEMENTS = 120_000
"""Elements of the largest tensor with several rows of ops of several tensors, which take longer than others."""
_NOT_OVERRIDDEN = ("some +inf", "some nan", "dominant")
"""Values that ops of several kernels, which take longer than others, do not have with overridden plans."""
_LAYOUTS, _SPECIAL_VALUES = get_args(Layout)[1:], get_args(Values)[1:]
_CASTS = (
    ("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16"), ("float32", "float16"),
    ("float32", "float64"), ("float64", "float32"), ("int64", "float32"), ("uint8", "float32"), ("bool", "float16"),
)  # fmt: skip


def cases(backend: Backend, ops: Sequence[str] | None = None) -> tuple[Case, ...]:
    """Returns all cases for a backend that is available here. `ops` are names; None stands for all ops.

    Leaves out cases with a dtype that the backend does not support. Includes cases with a stream only if the backend
    serves torch's accelerator, and cases with `last_device` only if it has several devices.

    Raises:
        PlanError: an op is unknown or cannot be used. The message suggests similar names.

    Example:
        >>> backend = tridal.registry.available("interpreter")
        >>> cases = tridal.testing.cases(backend, ["softmax"])
        >>> {case.op for case in cases}
        {'softmax'}
    """
    made = ((op, case) for op in table.selected(ops) for case in _cases(op, backend))
    return tuple(dict.fromkeys(case for op, case in made if _dtypes(case) <= backend.dtypes and _is_defined(op, case)))


def _dtypes(case: Case) -> set[str]:
    """The floating dtypes of the tensors of a case."""
    dtypes = {case.dtype, case.out_dtype, *dict(case.dtypes).values()}
    return {name for name in dtypes if "float" in name} | ({"float16"} if case.mask == "added halves" else set())


def _is_defined(op: Op, case: Case) -> bool:
    """Whether the op is defined for a case: its dtypes, the dims of a row, and what the op itself requires."""
    several, rank, steps = not op.one_tensor, len(case.shape), op.steps is not None
    if "float" not in case.dtype and (several or case.direction != "forward"):
        return False
    if several and math.prod(case.shape) > _FEW_ELEMENTS and (math.prod(case.shape[:-1]) > 1 or steps):
        return False
    if steps and case.plan != "planned" and case.values in _NOT_OVERRIDDEN:
        return False
    if op.dim is not None and (not rank or case.dim % rank != op.dim % rank or case.grad_layout != "contiguous"):
        return False
    if all(argument.name != "dims" for argument in op.arguments):
        return case.dims == 1 and (case.cast is None or op.signature.casts) and op_cases(op).is_defined(case)
    return case.cast is None and rank >= case.dims and case.dim in (-1, rank - 1)


def _cases(op: Op, backend: Backend) -> Iterator[Case]:
    differentiable = op.differentiable_results > 0 and any(argument.differentiable for argument in op.arguments)
    forward, backward = (partial(Case, op.name, direction) for direction in DIRECTIONS)
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    for make in (forward, backward) if differentiable else (forward,):
        yield from _shapes_and_layouts(make)
        yield from _dtypes_and_values(make, backend, op)
        yield from _tensors_and_numbers(make, op)
        for plan in overrides(backend):
            yield from _overridden(partial(make, plan=plan), op)
            if any(argument.per_block for argument in op.arguments):
                yield from (make(shape, block_dims=dims, plan=plan) for shape, dims in _BLOCKS[:_OVERRIDDEN_BLOCKS])
        if any(argument.per_block for argument in op.arguments):
            yield from _blocks(make, op)
        if accelerator is not None and accelerator.type == backend.device_type:
            yield make(_TWO_DIMS, stream=True)
        if backend.device_count() > 1:
            yield make(_TWO_DIMS, last_device=True)
    if differentiable:
        yield from _gradient_layouts(backward)
        for dtype, (shape, dim) in product(("float32", "float64"), _DOUBLE_SHAPES):
            yield Case(op.name, "double", shape, dim, dtype)
    if op.scale_mask:
        yield from _modified(forward, backward)
        for plan in overrides(backend):
            yield from _modified_and_overridden(partial(forward, plan=plan), partial(backward, plan=plan))


def _tensors_and_numbers(make: Callable[..., Case], op: Op) -> Iterator[Case]:
    """Yields cases without optional tensors, with tensors of several dtypes, and with drawn numbers."""
    optional = optional_tensors(op)
    numbers = [argument for argument in (*op.arguments, *op_cases(op).options) if argument.range]
    roles = {argument.name: argument.role for argument in op.arguments[1:]}
    columns = tuple((name, "float32") for name, role in roles.items() if role == "column")
    elements = tuple(name for name, role in roles.items() if role == "element")
    absent = dict.fromkeys((optional, *((name,) for name in optional))) if optional else {}
    for without in absent:
        for shape in ((7,), (5, 1), _TWO_DIMS, (6, 1001), (0, 5), (1, 131_072)):
            yield make(shape, absent=without)
        yield from (make(_TWO_DIMS, dtype=dtype, absent=without) for dtype in ("float16", "bfloat16", "float64"))
        yield make((33, 7, 13), dims=2, absent=without)
        yield make(_FOUR_DIMS, 1, absent=without, layout="transposed")
        yield make((6, 33, 781), 1, absent=without)
    for dtype in ("float16", "bfloat16") if columns else ():
        for shape in (_TWO_DIMS, (6, 1001), (5, 4096)):
            yield make(shape, dtype=dtype, dtypes=columns, layout="sliced" if shape[1] == 4096 else "contiguous")
        yield make(_TWO_DIMS, dtype=dtype, dtypes=columns, absent=tuple(n for n in optional if n in elements))
    for dtype, other in (("bfloat16", "float32"), ("float32", "bfloat16"), ("bfloat16", "float64")):
        wide = {"bfloat16": "float32"}.get(other, other)
        if elements:
            dtypes = (*((name, other) for name in elements), *((name, wide) for name, _ in columns))
            yield make(_TWO_DIMS, dtype=dtype, dtypes=dtypes)
    for name, layout in product(elements, ("sliced", "expanded", "stepped")):
        yield make(_TWO_DIMS, layouts=((name, layout),))
        yield make(_TWO_DIMS, layout="sliced", layouts=((name, layout),), dtype="bfloat16")
    generator = random.Random(0)
    drawn = [tuple((n.name, _drawn(n, generator)) for n in numbers) for _ in range(len(numbers) and len(numbers) + 2)]
    ends = [((number.name, value),) for number in numbers for value in (number.range or ())]
    for values, dtype in product((*ends, *drawn), ("float32", "bfloat16")):
        yield make(_TWO_DIMS, dtype=dtype, numbers=values)
        if dtype != "float32":
            yield make((6, 1001), dtype=dtype, numbers=values, dtypes=columns, absent=optional[:1])
        elif values in ends:
            yield make(_TWO_DIMS, numbers=values, values="small")


def _blocks(make: Callable[..., Case], op: Op) -> Iterator[Case]:
    """Yields cases of tensors with a number per column and block of rows: shapes, dtypes and layouts of these."""
    names, optional = [argument.name for argument in op.arguments if argument.per_block], optional_tensors(op)
    for shape, dims in _BLOCKS:
        yield make(shape, block_dims=dims)
        yield make(shape, block_dims=dims, absent=optional)
    yield make((3, 6, 5, 7), block_dims=1, dims=2)
    for dtype, other in (("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float64")):
        yield make((3, 40, 96), block_dims=1, dtype=dtype, dtypes=tuple((name, other) for name in names))
    for layout in ("sliced", "transposed", "stepped", "permuted"):
        yield make((3, 7, 50), block_dims=1, layout=layout)
        yield from (make((3, 7, 50), block_dims=1, layouts=((name, layout),)) for name in names)


def _drawn(number: Argument, generator: random.Random) -> Any:
    """A random value of a number's range."""
    values: Any = number.range
    if is_choice(number):
        return generator.choice(values)
    low, high = values
    if number.optional and generator.random() < 0.5:
        return None
    if number.type == "int":
        return generator.randint(low, high)
    return low * (high / low) ** generator.random() if low > 0 else generator.uniform(low, high)


def _shapes_and_layouts(make: Callable[..., Case]) -> Iterator[Case]:
    yield from (make(shape) for shape in _SHAPES)
    yield from (make(shape, dim) for shape, dim in _DIMS)
    yield from (make(shape, dims=dims) for shape, dims in _SEVERAL_DIMS)
    yield from (make((rows, cols)) for rows, cols in _BUCKETS for rows in row_bucket(rows, cols))
    for layout in _LAYOUTS:
        yield from (make(_FOUR_DIMS, dim, layout=layout) for dim in (0, 1, 3))
        yield make(_FOUR_DIMS, dims=2, layout=layout, grad_layout=layout)
        if layout != "channels_last":
            yield from (make(_TWO_DIMS, dim, layout=layout) for dim in (0, 1))


def _gradient_layouts(make: Callable[..., Case]) -> Iterator[Case]:
    for layout in _LAYOUTS:
        if layout != "channels_last":
            yield make(_TWO_DIMS, grad_layout=layout)
        yield make(_FOUR_DIMS, 1, grad_layout=layout)
        yield make(_FOUR_DIMS, 3, layout="transposed", grad_layout=layout)


def _dtypes_and_values(make: Callable[..., Case], backend: Backend, op: Op) -> Iterator[Case]:
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


def _overridden(make: Callable[..., Case], op: Op) -> Iterator[Case]:
    yield from (make(shape, dim) for shape, dim in _PLAN_SHAPES)
    yield make(_TWO_DIMS, dtype="bfloat16")
    yield make((5, 1001), dtype="float16")
    yield make(_FOUR_DIMS, 1, layout="stepped")
    yield make((5, 6, 31), dims=2)
    for values in ("some -inf", "row of -inf", "some +inf", "some nan", "dominant"):
        yield make((17, 211), values=values)
    if optional := optional_tensors(op):
        yield from (make(shape, absent=optional) for shape in ((5, 2), (300, 781), (5, 4097)))
        yield make((6, 33, 781), 1, absent=optional)
    for name in (a.name for a in op.arguments[1:] if a.role == "element"):
        yield make((17, 211), layouts=((name, "sliced"),))
        yield make((17, 211), layout="sliced", layouts=((name, "contiguous"),))


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
