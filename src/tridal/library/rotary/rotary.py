"""Rotary embedding of query and key: its kernels, its maths in torch's ops, and its steps: a launch for each tensor.

The kernels read the halves of the last dim as views. The gradient is the rotation by -sin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tridal.errors import ShapeError
from tridal.ops import Named, Op, Result, RowKernel, RowReduce, accumulator, number, whole, wrong
from tridal.pytorch import Steps

Tensor = torch.Tensor
NAME = "rotary_embedding"
_FORWARD = RowKernel(
    name=NAME, module="tridal.library.rotary.kernels.rotary", statistics=(),
    reads=("first", "second", "cos_first", "cos_second", "sin_first", "sin_second"),
    writes=("first_rotated", "second_rotated"), live_tiles=6,
    constants=(("SIGN", 1.0), ("ROUNDS", False), ("PRODUCT_DTYPE", "float32")),
)  # fmt: skip
_BACKWARD = RowKernel(
    name="rotary_embedding_backward", module=_FORWARD.module, statistics=(), reads=_FORWARD.reads,
    writes=_FORWARD.writes, constants=(("SIGN", -1.0), *_FORWARD.constants[1:]), live_tiles=6,
)  # fmt: skip


def check_shapes(tensors: Named, heads: int) -> None:
    """Checks the shapes of query and key, or of their gradients, and those of cos and sin against them.

    `heads` is the dim of the heads. Query or key may be None.
    """
    for name, x in tensors.items():
        if name in ("cos", "sin") or x is None:
            continue
        shape = tuple(x.shape)
        if len(shape) != 4 or shape[3] % 2:
            raise ShapeError(wrong(NAME, name, "have four dims, the last one of even size", f"the shape {shape}"))
        for factor in ("cos", "sin"):
            shapes = [(*batch, shape[3 - heads], shape[3]) for batch in ((shape[0],), (1,), ())]
            if tuple(tensors[factor].shape) not in shapes:
                expected = f"have the shape {shapes[0]}, {shapes[1]} or {shapes[2]} with {name} of shape {shape}"
                raise ShapeError(wrong(NAME, factor, expected, f"{tuple(tensors[factor].shape)}"))


def _with_heads(factor: Tensor, heads: int) -> Tensor:
    return (factor if factor.dim() == 3 else factor.unsqueeze(0)).unsqueeze(heads)


def _rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _dtype_of(name: str, named: Named) -> torch.dtype:
    """Returns the dtype of the result for query, key or a gradient, which may be absent."""
    tensors = (named[key] for key in (name, "cos", "sin"))
    dtypes: list[torch.dtype] = [tensor.dtype for tensor in tensors if tensor is not None]
    return functools.reduce(torch.promote_types, dtypes)


def _wide(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, ...]:
    """x, and cos and sin with a dim for the heads, in the dtype in which they are multiplied."""
    dtype = accumulator(x, cos, sin)
    return x.to(dtype), _with_heads(cos, heads).to(dtype), _with_heads(sin, heads).to(dtype)


def reference(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, reduce: RowReduce, unsqueeze_dim: int, casting: str
) -> tuple[Tensor, ...]:
    """x * cos + rotated(x) * sin for query and key."""
    results = []
    for name, tensor in (("query", query), ("key", key)):
        x, wide_cos, wide_sin = _wide(tensor, cos, sin, unsqueeze_dim)
        products = x * wide_cos, _rotated(x) * wide_sin
        if casting:
            dtype = torch.promote_types(reduce.dtypes[name], reduce.dtypes["cos"])
            products = reduce.rounded(products[0], dtype), reduce.rounded(products[1], dtype)
        results.append(products[0] + products[1])
    return tuple(results)


def gradient(
    query_grad: Tensor | None, key_grad: Tensor | None, cos: Tensor, sin: Tensor, reduce: RowReduce, unsqueeze_dim: int
) -> tuple[Tensor | None, ...]:
    """dy * cos - rotated(dy * sin). It does not depend on `casting`: it passes through the rounding."""

    def of_result(grad: Tensor) -> Tensor:
        dy, wide_cos, wide_sin = _wide(grad, cos, sin, unsqueeze_dim)
        return dy * wide_cos - _rotated(dy * wide_sin)

    return tuple(None if grad is None else of_result(grad) for grad in (query_grad, key_grad))


def _halves(x: Tensor) -> tuple[Tensor, ...]:
    return torch.unflatten(x, -1, (2, x.shape[-1] // 2)).unbind(-2)


def _factor_halves(factor: Tensor, heads: int, shape: torch.Size) -> tuple[Tensor, ...]:
    return _halves(_with_heads(factor, heads).expand(shape))


def _rotate(call: Steps, named: Named, names: tuple[str, str], kernel: RowKernel) -> tuple[Tensor | None, ...]:
    """Computes each result that is wanted with one kernel."""
    heads, rounds = named["unsqueeze_dim"], named.get("casting", "") != ""
    check_shapes({name: named[name] for name in (*names, "cos", "sin")}, heads)
    results: list[Tensor | None] = []
    for name, wanted in zip(names, call.wanted, strict=True):
        x, dtype = named[name], _dtype_of(name, named) if wanted else None
        if dtype is None:
            results.append(None)
            continue
        result = call.empty_like(x, dtype)
        cos, sin = (call.view(_factor_halves, named[factor], heads, x.shape) for factor in ("cos", "sin"))
        sin = sin if kernel is _FORWARD else sin[::-1]  # the gradient of a half has the sine of the other one
        product = str(torch.promote_types(x.dtype, named["cos"].dtype)).removeprefix("torch.")
        call.kernel(
            kernel, *call.view(_halves, x), *cos, *sin, dtypes=(dtype, dtype), out=call.view(_halves, result),
            ROUNDS=rounds, PRODUCT_DTYPE=product,
        )  # fmt: skip
        results.append(result)
    return tuple(results)


def _result(name: str, source: str, **options: Any) -> Result:
    """Returns the declaration of a result with the strides that `empty_like` gives for its source."""
    dtype: Callable[[Named], torch.dtype] = functools.partial(_dtype_of, source)
    return Result(
        name, "whole", dtype=dtype, new=lambda named: torch.empty_like(named[source], dtype=dtype(named)), **options
    )


ROTARY_EMBEDDING = Op(
    name=NAME,
    arguments=(
        whole("query", differentiable=True), whole("key", differentiable=True), whole("cos"), whole("sin"),
        number("unsqueeze_dim", 1, range=(1, 2)), number("casting", "", range=("", "transformers")),
    ),
    results=(
        _result("rotated_query", "query", depends_on=("query",), gradient="query_grad"),
        _result("rotated_key", "key", depends_on=("key",), gradient="key_grad"),
    ),
    kernels=(_FORWARD, _BACKWARD),
    reference=reference,
    gradient=gradient,
    steps=functools.partial(_rotate, names=("query", "key"), kernel=_FORWARD),
    gradient_steps=functools.partial(_rotate, names=("query_grad", "key_grad"), kernel=_BACKWARD),
    dim=-1,
    saves=("cos", "sin"),
    gradient_numbers=(number("unsqueeze_dim", type="int"),),
    gradient_results=tuple(
        _result(name, f"{name}_grad", needs=f"{name}_grad") for name in ("query", "key")
    ),
    cases="tridal.library.rotary.cases:ROTARY",
    benchmark="tridal.library.rotary.benchmark:ROTARY",
)  # fmt: skip
