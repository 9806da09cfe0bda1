"""The cases of rms_norm and layer_norm in the conformance suite: shapes, dtypes, layouts and options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, get_args

from tridal.devices.types import Backend
from tridal.ops.fused_op import FusedOp
from tridal.testing.cases import DIRECTIONS, Layout, Values
from tridal.testing.norm_check import NormCase
from tridal.testing.plan_overrides import overrides

_SHAPES = (
    (1,), (7,), (1, 1), (5, 1), (1, 5), (2, 3), (33, 257), (17, 1024), (6, 1001), (3, 5000), (9, 16), (3000, 3),
    (2, 3, 4, 5, 6), (2, 50_257), (1, 131_072), (1, (1 << 20) + 7), (0, 5), (5, 0), (3, 0, 2),
)  # fmt: skip
_SEVERAL_DIMS = (((3, 4, 5, 6), 2), ((4, 5, 6), 3), ((33, 7, 13), 2), ((2, 0, 3), 2))
_PLAN_SHAPES = ((37, 53), (300, 781), (5, 4097), (5, 2), (3, 33, 300))
_TWO_DIMS, _FOUR_DIMS = (37, 53), (3, 10, 7, 9)
_VALUES: tuple[Values, ...] = ("shifted", "constant", "dominant", "some -inf", "row of -inf", "some +inf", "some nan")


def cases(op: FusedOp, backend: Backend) -> Iterator[NormCase]:
    """Yields the cases of a norm whose dtypes the backend computes."""
    for direction in DIRECTIONS:
        for case in _cases(partial(NormCase, op.name, direction), op, backend):
            if {name for name in (case.dtype, case.residual, case.weight) if name and name != "same"} <= backend.dtypes:
                yield case


def _cases(make: Callable[..., NormCase], op: FusedOp, backend: Backend) -> Iterator[NormCase]:
    yield from (make(shape) for shape in _SHAPES)
    yield from (make(shape, residual="float32") for shape in ((7,), (33, 257), (6, 1001), (0, 5), (1, 131_072)))
    for (shape, dims), residual in product(_SEVERAL_DIMS, (None, "float32")):
        yield make(shape, dims=dims, residual=residual)
    for dtype, shape in product(sorted(backend.dtypes), (_TWO_DIMS, (6, 1001), (3, 5000))):
        yield from (make(shape, dtype, residual=residual) for residual in (None, dtype))
        yield make(shape, dtype, weight=None)
    for dtype in ("float16", "bfloat16"):
        for shape, residual in product((_TWO_DIMS, (6, 1001)), (None, dtype)):
            yield make(shape, dtype, weight="float32", residual=residual)
        yield make(_TWO_DIMS, dtype, weight="float32", residual="float32")
        yield make((5, 4096), dtype, layout="sliced", weight="float32")
    yield make(_TWO_DIMS, "float32", residual="bfloat16")
    yield make(_TWO_DIMS, "bfloat16", residual="float64", weight="float64")
    for values in _VALUES:
        yield from (make(_TWO_DIMS, values=values, residual=residual) for residual in (None, "float32"))
        yield make(_TWO_DIMS, "bfloat16", values=values)
    for layout in get_args(Layout)[1:]:
        yield make(_FOUR_DIMS, layout=layout, residual="float32")
        yield make(_FOUR_DIMS, grad_layout=layout)
        yield make(_FOUR_DIMS, dims=2, layout=layout, grad_layout=layout)
    if op.name == "rms_norm":
        yield from _scalings(make)
    for plan in overrides(backend):
        yield from _overridden(partial(make, plan=plan))
    if backend.device_count() > 1:
        yield make(_TWO_DIMS, last_device=True)


def _scalings(make: Callable[..., NormCase]) -> Iterator[NormCase]:
    for casting, dtype in product((None, "llama", "gemma"), ("float32", "bfloat16", "float16")):
        for weight in ("same", "float32"):
            yield make(_TWO_DIMS, dtype, weight=weight, weight_offset=1.0, casting=casting)
            yield make((6, 1001), dtype, weight=weight, residual=dtype, casting=casting)


def _overridden(make: Callable[..., NormCase]) -> Iterator[NormCase]:
    for shape, residual in product(_PLAN_SHAPES, (None, "float32")):
        yield make(shape, residual=residual)
    options: tuple[dict[str, Any], ...] = (
        {"shape": _TWO_DIMS, "dtype": "bfloat16", "weight": "float32", "residual": "bfloat16"},
        {"shape": (5, 1001), "dtype": "float16", "weight": None}, {"shape": _FOUR_DIMS, "layout": "stepped"},
        {"shape": _FOUR_DIMS, "layout": "transposed", "grad_layout": "transposed"}, {"shape": (5, 6, 31), "dims": 2},
        {"shape": (17, 211), "values": "some -inf"}, {"shape": (17, 211), "values": "some nan", "residual": "float32"},
    )  # fmt: skip
    yield from (make(**option) for option in options)
