"""RMSNorm of the heads of query and key with rotary embedding: its kernels, its math in torch's ops, and its steps.

A launch reads the pairs of a tensor as two views, as those of rotary_embedding do. The gradient computes the statistic
of a row again: a kernel has no tensors with a number per row if dims of batch, heads and length have any order in
memory, and a saved number per row would cost more than the sum of elements that are read anyway.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tridal.errors import ShapeError
from tridal.library.norms.norms import RMS_NORM
from tridal.library.rotary import rotary
from tridal.library.rotary.rotary import ROTARY_EMBEDDING, factor_pairs, join_pairs, pairs_of
from tridal.ops import (
    Named,
    Op,
    Result,
    RowKernel,
    RowReduce,
    Statistic,
    accumulator,
    check_shape,
    number,
    whole,
    wrong,
)
from tridal.pytorch import Steps

Tensor = torch.Tensor
NAME = "qk_norm_rotary"
_NAMES = ("query", "key")
_SQUARES = Statistic("squares", "sum", term="square")
_FORWARD = RowKernel(
    name=NAME,
    module="tridal.library.qk_norm.kernels.qk_norm_rotary",
    reads=("first", "second", "cos_first", "cos_second", "sin_first", "sin_second"),
    column_reads=("first_weight", "second_weight"),
    statistics=(_SQUARES,),
    row_value="inverse_rms",
    writes=("first_result", "second_result"),
    parameters=("eps", "weight_offset"),
    neutral_padding=True,
    live_tiles=8,
)
_BACKWARD = RowKernel(
    name=f"{NAME}_backward",
    module=_FORWARD.module,
    reads=(*_FORWARD.reads, "dy_first", "dy_second"),
    column_reads=_FORWARD.column_reads,
    statistics=(_SQUARES, Statistic("dot", "sum", term="product")),
    row_value="inverse_rms",
    writes=("first_gradient", "second_gradient"),
    column_writes=("first_weight_gradient", "second_weight_gradient"),
    parameters=_FORWARD.parameters,
    live_tiles=12,
)


def check_shapes(named: Named, heads: int) -> None:
    """Checks the shapes of the tensors of a call by name. `heads` is the dim of the heads."""
    query = named["query"]
    size = query.shape[-1] if query.dim() else 0
    rotary.check_shapes({name: named[name] for name in (*_NAMES, "cos", "sin")}, heads, size, NAME)
    for name in _NAMES:
        x, weight = named[name], named[f"{name}_weight"]
        if x is not None and x.shape[-1] != size:
            raise ShapeError(wrong(NAME, name, f"have the last size of query, {size}", f"the shape {tuple(x.shape)}"))
        if weight is not None:
            check_shape(NAME, f"{name}_weight", weight, (size,))


def _wide(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns query or key, and its weight, in the dtype in which they are computed."""
    dtype = accumulator(x, weight, cos, sin)
    return x.to(dtype), None if weight is None else weight.to(dtype)


def _inverse_rms(x: Tensor, rows: RowReduce, eps: float) -> Tensor:
    return torch.rsqrt(rows.mean(x * x) + eps)


def reference(
    query: Tensor, key: Tensor | None, query_weight: Tensor | None, key_weight: Tensor | None, cos: Tensor,
    sin: Tensor, rows: RowReduce, eps: float, weight_offset: float, unsqueeze_dim: int, interleaved: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The rotation of x * inverse_rms * (weight + weight_offset) for query and key."""

    def normalized(x: Tensor | None, weight: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        x, weight = _wide(x, weight, cos, sin)
        n = x * _inverse_rms(x, rows, eps)
        return n if weight is None else n * (weight + weight_offset)

    pair = normalized(query, query_weight), normalized(key, key_weight)
    options = unsqueeze_dim, "", True, interleaved, False, query.shape[-1]
    return ROTARY_EMBEDDING.reference(*pair, cos, sin, rows, *options)  # type: ignore[no-any-return]


def gradient(
    query_grad: Tensor | None, key_grad: Tensor | None, query: Tensor, key: Tensor | None,
    query_weight: Tensor | None, key_weight: Tensor | None, cos: Tensor, sin: Tensor, rows: RowReduce, eps: float,
    weight_offset: float, unsqueeze_dim: int, interleaved: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of query, key and their weights: through the rotation by -sin, then through the norm."""

    def of_one(grad: Tensor | None, x: Tensor | None, weight: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        if grad is None or x is None:
            return None, None
        assert ROTARY_EMBEDDING.gradient is not None
        assert RMS_NORM.gradient is not None
        x, weight = _wide(x, weight, cos, sin)
        options = unsqueeze_dim, True, interleaved, False, x.shape[-1]
        dn, _ = ROTARY_EMBEDDING.gradient(grad.to(x.dtype), None, cos, sin, rows, *options)
        dx, term = RMS_NORM.gradient(dn, x, _inverse_rms(x, rows, eps), weight, rows, eps, weight_offset)
        return dx, None if weight is None else term.flatten(0, -2).sum(0)

    of_query, of_key = of_one(query_grad, query, query_weight), of_one(key_grad, key, key_weight)
    return of_query[0], of_key[0], of_query[1], of_key[1]


def _inputs(call: Steps, named: Named, name: str) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """Returns views of query or key, cos and sin, and of the weight: of the first and the second elements of pairs."""
    x, weight, interleaved = named[name], named[f"{name}_weight"], named["interleaved"]
    size, heads = x.shape[-1], named["unsqueeze_dim"]
    cos, sin = (call.view(factor_pairs, named[f], heads, x.shape, size, interleaved) for f in ("cos", "sin"))
    weights = (None, None) if weight is None else call.view(pairs_of, weight, size, interleaved)
    return (*call.view(pairs_of, x, size, interleaved), *cos, *sin), weights


def _numbers(named: Named, name: str) -> dict[str, Any]:
    """Returns the parameters of a kernel for query or key."""
    offset = None if named[f"{name}_weight"] is None else named["weight_offset"] or None
    return {"eps": named["eps"], "weight_offset": offset}


def _steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    """Computes each result that is wanted with one kernel."""
    check_shapes(named, named["unsqueeze_dim"])
    results: list[Tensor | None] = []
    for name, wanted in zip(_NAMES, call.wanted, strict=True):
        x = named[name] if wanted else None
        if x is None:
            results.append(None)
            continue
        reads, weights = _inputs(call, named, name)
        result = call.empty_like(x)
        out = call.view(pairs_of, result, x.shape[-1], named["interleaved"])
        call.kernel(_FORWARD, *reads, *weights, dtypes=(x.dtype, x.dtype), out=out, **_numbers(named, name))
        results.append(result)
    return tuple(results)


def _gradient_steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    """Computes the gradients of a tensor and of its weight with one kernel, and joins the two parts of the latter."""
    check_shapes(named, named["unsqueeze_dim"])
    interleaved = named["interleaved"]
    found: list[Tensor | None] = [None] * 4
    for index, name in enumerate(_NAMES):
        x, weight, grad = named[name], named[f"{name}_weight"], named[f"{name}_grad"]
        of_x, of_weight = (grad is not None and call.wanted[i] for i in (index, index + 2))
        if not (of_x or of_weight):
            continue
        out: tuple[Tensor, ...] = ()
        if of_x:
            found[index] = call.empty_like(_like(x, grad), x.dtype)
            out = call.view(pairs_of, found[index], x.shape[-1], interleaved)
        reads, weights = _inputs(call, named, name)
        results = call.kernel(
            _BACKWARD, *reads, *call.view(pairs_of, grad, x.shape[-1], interleaved), *weights,
            dtypes=(x.dtype,) * len(out), writes=_BACKWARD.writes * of_x + _BACKWARD.column_writes * of_weight,
            out=out, **_numbers(named, name),
        )  # fmt: skip
        if of_weight:
            found[index + 2] = call.torch(_join_weights, *results[-2:], interleaved, weight.dtype)
    return tuple(found)


def _join_weights(first: Tensor, second: Tensor, interleaved: bool, dtype: torch.dtype) -> Tensor:
    return join_pairs(first, second, interleaved).to(dtype)


def _like(x: Tensor, grad: Tensor) -> Tensor:
    """Returns the tensor whose strides the gradient of x gets: x, or grad if x is a part of a wider tensor.

    The kernel then reads and writes tensors of at most three kinds of strides: x, grad, and cos and sin.
    """
    return x if torch.empty_like(x, device="meta").stride() == x.stride() else grad


def _result(name: str, needs: Any) -> Result:
    """Returns the declaration of rotated query or key."""
    return Result(
        f"rotated_{name}", "whole", needs=needs, gradient=f"{name}_grad",
        new=lambda named: torch.empty_like(named[name]), depends_on=(name, f"{name}_weight"),
    )  # fmt: skip


def _gradient_result(name: str) -> Result:
    """Returns the declaration of the gradient of query or key."""

    def new(named: Named) -> Tensor:
        return torch.empty_like(_like(named[name], named[f"{name}_grad"]), dtype=named[name].dtype)

    return Result(name, "whole", needs=f"{name}_grad", new=new)


def _weight_gradient_result(name: str) -> Result:
    """Returns the declaration of the gradient of the weight of query or key."""
    weight = f"{name}_weight"

    def needs(named: Named) -> bool:
        return named[weight] is not None and named[f"{name}_grad"] is not None

    return Result(weight, "whole", needs=needs, new=lambda named: torch.empty_like(named[weight]))


_OPTIONS = (
    number("eps", range=(1e-12, 1e-2)), number("weight_offset", 0.0, range=(-1.0, 1.0)),
    number("unsqueeze_dim", 1, range=(1, 2)), number("interleaved", False),
)  # fmt: skip
QK_NORM_ROTARY = Op(
    name=NAME,
    arguments=(
        whole("query", differentiable=True), whole("key", optional=True, differentiable=True),
        whole("query_weight", optional=True, differentiable=True),
        whole("key_weight", optional=True, differentiable=True), whole("cos"), whole("sin"), *_OPTIONS,
    ),
    results=(_result("query", None), _result("key", lambda named: named["key"] is not None)),
    kernels=(_FORWARD, _BACKWARD),
    reference=reference,
    gradient=gradient,
    steps=_steps,
    gradient_steps=_gradient_steps,
    dim=-1,
    saves=("query", "key", "query_weight", "key_weight", "cos", "sin"),
    gradient_numbers=tuple(replace(n, default=None) for n in _OPTIONS),
    gradient_results=(*map(_gradient_result, _NAMES), *map(_weight_gradient_result, _NAMES)),
    cases="tridal.library.qk_norm.cases:QK_NORM_ROTARY",
    benchmark="tridal.library.qk_norm.benchmark:QK_NORM_ROTARY",
)  # fmt: skip
