"""Rotary embedding of one tensor: its kernel, its maths in torch's ops, and its gradient, the rotation by -sin.

The dim of a row has two elements: the two halves of the last dim of the function's tensors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tridal.ops import Named, Op, Result, RowKernel, RowReduce, number, per_element
from tridal.pytorch import Steps

Tensor = torch.Tensor
_FORWARD = RowKernel(
    name="rotary_embedding", module="tridal.library.rotary.kernels.rotary", statistics=(),
    reads=("first", "second", "cos_first", "cos_second", "sin_first", "sin_second"),
    writes=("first_rotated", "second_rotated"), live_tiles=6,
    constants=(("SIGN", 1.0), ("ROUNDS", False), ("PRODUCT_DTYPE", "float32")),
)  # fmt: skip
_BACKWARD = RowKernel(
    name="rotary_embedding_backward", module=_FORWARD.module, statistics=(), reads=_FORWARD.reads,
    writes=_FORWARD.writes, constants=(("SIGN", -1.0), *_FORWARD.constants[1:]), live_tiles=6,
)  # fmt: skip


def _rotated(x: Tensor, reduce: RowReduce) -> Tensor:
    """Returns (-second, first) for the halves (first, second)."""
    is_first = reduce.columns(x) == 0
    first, second = (reduce(torch.where(mask, x, 0.0), "sum") for mask in (is_first, ~is_first))
    return torch.where(is_first, -second, first)


def reference(input: Tensor, cos: Tensor, sin: Tensor, reduce: RowReduce, casting: str) -> Tensor:
    """Returns input * cos + rotated(input) * sin."""
    products = input * cos, _rotated(input, reduce) * sin
    if casting:
        dtype = torch.promote_types(reduce.dtypes["input"], reduce.dtypes["cos"])
        products = reduce.rounded(products[0], dtype), reduce.rounded(products[1], dtype)
    return products[0] + products[1]


def gradient(dy: Tensor, cos: Tensor, sin: Tensor, reduce: RowReduce) -> Tensor:
    """Returns dy * cos - rotated(dy * sin). It does not depend on `casting`: it passes through the rounding."""
    return dy * cos - _rotated(dy * sin, reduce)


def _rotate(call: Steps, named: Named, source: str, kernel: RowKernel) -> tuple[Tensor]:
    """Computes the result with one kernel. It has the strides of the tensor."""
    dtype = named["dtype"]
    result = call.torch(partial(torch.empty_like, dtype=dtype), named[source])
    (first, second), cos, sin, out = (
        call.view(Tensor.unbind, tensor, named["dim"]) for tensor in (named[source], named["cos"], named["sin"], result)
    )
    sin = sin if kernel is _FORWARD else sin[::-1]  # the gradient of a half has the sine of the other one
    product = str(torch.promote_types(first.dtype, cos[0].dtype)).removeprefix("torch.")
    options: Any = {"ROUNDS": named.get("casting", "") != "", "PRODUCT_DTYPE": product}
    call.kernel(kernel, first, second, *cos, *sin, dtypes=(dtype, dtype), out=out, **options)
    return (result,)


def _like(name: str) -> Any:
    return lambda named: torch.empty_like(named[name], dtype=named["dtype"])


ROTARY_EMBEDDING = Op(
    name="rotary_embedding",
    arguments=(
        per_element("input"), per_element("cos", differentiable=False), per_element("sin", differentiable=False),
        number("casting", "", range=("", "transformers")),
    ),
    results=(Result("output", "element", gradient="dy", new=_like("input")),),
    kernels=(_FORWARD, _BACKWARD),
    reference=reference,
    gradient=gradient,
    steps=partial(_rotate, source="input", kernel=_FORWARD),
    gradient_steps=partial(_rotate, source="dy", kernel=_BACKWARD),
    saves=("cos", "sin"),
    gradient_results=(Result("input", "element", new=_like("dy")),),
    cases="tridal.library.rotary.cases:ROTARY",
    benchmark="tridal.library.rotary.benchmark:ROTARY",
)  # fmt: skip
