"""Rotary embedding of query and key: its kernels, its math in torch's ops, and its steps: a launch for each tensor.

The kernels read the pairs of elements that are rotated as two views: halves, or even and odd elements. The gradient is
the rotation by -sin. Elements that are not rotated are copied by a launch of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
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


_COPY = RowKernel(
    name="rotary_embedding_rest", module=_FORWARD.module, statistics=(), reads=("rest",), writes=("copied",),
    live_tiles=2,
)  # fmt: skip


def rotated_size(cos: Tensor, rotary_dim: int | None) -> int:
    """Returns the number of rotated elements of the last dim, by default as many as cos has."""
    return cos.shape[-1] if rotary_dim is None else rotary_dim


def check_shapes(tensors: Named, heads: int, rotary_dim: int | None = None, op: str = NAME) -> None:
    """Checks the shapes of query and key, or of their gradients, and those of cos and sin against them.

    `heads` is the dim of the heads. Query or key may be None. `op` is the name of the op in errors.
    """
    size = rotated_size(tensors["cos"], rotary_dim) if tensors["cos"].dim() else 0
    rotated = {name: x for name, x in tensors.items() if name not in ("cos", "sin") and x is not None}
    for name, x in rotated.items():
        shape = tuple(x.shape)
        if len(shape) not in (3, 4) or shape[-1] % 2:
            expected = "have four dims, or three without a batch, the last one of even size"
            raise ShapeError(wrong(op, name, expected, f"the shape {shape}"))
        if len(shape) != (rank := next(iter(rotated.values())).dim()):
            raise ShapeError(wrong(op, name, f"have {rank} dims, as {next(iter(rotated))} has", f"the shape {shape}"))
        if not (0 <= size <= shape[-1] and size % 2 == 0):
            size = shape[-1]
        length = shape[2 * len(shape) - 5 - heads]
        batches = ((shape[0],), (1,), ()) if len(shape) == 4 else ((),)
        widths = (size,) if rotary_dim is None else (size, size // 2)
        for factor in ("cos", "sin"):
            shapes = [(*batch, length, width) for width in widths for batch in batches]
            given = tuple(tensors[factor].shape)
            if given not in shapes or given[-1] != tensors["cos"].shape[-1]:
                *others, last = map(str, shapes)
                listed = f"{', '.join(others)} or {last}" if others else last
                raise ShapeError(wrong(op, factor, f"have the shape {listed} with {name} of shape {shape}", f"{given}"))


def _dtype_of(name: str, named: Named) -> torch.dtype:
    """Returns the dtype of the result for query, key or a gradient, which may be absent."""
    names = (name,) if named["keep_dtype"] and named[name] is not None else (name, "cos", "sin")
    dtypes: list[torch.dtype] = [tensor.dtype for key in names if (tensor := named[key]) is not None]
    return functools.reduce(torch.promote_types, dtypes)


def pairs_of(x: Tensor, size: int, interleaved: bool) -> tuple[Tensor, ...]:
    """Views of the first and of the second element of each pair in the first `size` elements."""
    sizes, dim = ((size // 2, 2), -1) if interleaved else ((2, size // 2), -2)
    return torch.unflatten(x.narrow(-1, 0, size), -1, sizes).unbind(dim)


def factor_pairs(
    factor: Tensor, heads: int, shape: Sequence[int], size: int, interleaved: bool
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns cos or sin of both elements of each pair, with the dims of a query or key of this shape."""
    whole = factor.unsqueeze(heads - len(shape)).expand((*shape[:-1], factor.shape[-1]))
    return (whole, whole) if factor.shape[-1] < size else pairs_of(whole, size, interleaved)


def join_pairs(first: Tensor, second: Tensor, interleaved: bool) -> Tensor:
    """Returns the elements of pairs as one tensor."""
    return torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)


def _joined(first: Tensor, second: Tensor, x: Tensor, interleaved: bool) -> Tensor:
    """Returns the pairs as one tensor, followed by the elements of x that are not rotated."""
    rotated = join_pairs(first, second, interleaved)
    return rotated if rotated.shape == x.shape else torch.cat((rotated, x[..., rotated.shape[-1] :]), -1)


def _wide_pairs(
    x: Tensor, cos: Tensor, sin: Tensor, heads: int, rotary_dim: int | None, interleaved: bool, by: bool
) -> tuple[tuple[Tensor, ...], ...]:  # fmt: skip
    """Returns the pairs of x, and cos and sin of them, in the dtype in which they are multiplied.

    x is `interleaved`, and cos and sin are if `by`.
    """
    dtype, size = accumulator(x, cos, sin), rotated_size(cos, rotary_dim)
    factors = (factor_pairs(factor.to(dtype), heads, x.shape, size, by) for factor in (cos, sin))
    return pairs_of(x.to(dtype), size, interleaved), *factors


def reference(
    query: Tensor, key: Tensor | None, cos: Tensor, sin: Tensor, reduce: RowReduce, unsqueeze_dim: int, casting: str,
    keep_dtype: bool, interleaved: bool, to_halves: bool, rotary_dim: int | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """(first * cos - second * sin, second * cos + first * sin) for the pairs of query and key."""
    results: list[Tensor | None] = []
    for name, x in (("query", query), ("key", key)):
        if x is None:
            results.append(None)
            continue
        pair, cosines, sines = _wide_pairs(x, cos, sin, unsqueeze_dim, rotary_dim, interleaved, interleaved)
        products = [pair[0] * cosines[0], pair[1] * sines[0], pair[1] * cosines[1], pair[0] * sines[1]]
        if casting:
            dtype = torch.promote_types(reduce.dtypes[name], reduce.dtypes["cos"])
            products = [reduce.rounded(product, dtype) for product in products]
        first, second = products[0] - products[1], products[2] + products[3]
        results.append(_joined(first, second, x.to(first.dtype), interleaved and not to_halves))
    return tuple(results)


def gradient(
    query_grad: Tensor | None, key_grad: Tensor | None, cos: Tensor, sin: Tensor, reduce: RowReduce,
    unsqueeze_dim: int, keep_dtype: bool, interleaved: bool, to_halves: bool, rotary_dim: int | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The rotation of the gradients by -sin. It does not depend on `casting`: it passes through the rounding."""

    def of_result(grad: Tensor) -> Tensor:
        written = interleaved and not to_halves
        pair, cosines, sines = _wide_pairs(grad, cos, sin, unsqueeze_dim, rotary_dim, written, interleaved)
        first, second = pair[0] * cosines[0] + pair[1] * sines[1], pair[1] * cosines[1] - pair[0] * sines[0]
        return _joined(first, second, grad.to(first.dtype), interleaved)

    return tuple(None if grad is None else of_result(grad) for grad in (query_grad, key_grad))


def _rest(x: Tensor, size: int) -> Tensor:
    return x.narrow(-1, size, x.shape[-1] - size)


def _rotate(call: Steps, named: Named, names: tuple[str, str], kernel: RowKernel) -> tuple[Tensor | None, ...]:
    """Computes each result that is wanted with one kernel, and another one for the elements that are not rotated."""
    heads, rounds = named["unsqueeze_dim"], named.get("casting", "") != ""
    check_shapes({name: named[name] for name in (*names, "cos", "sin")}, heads, named["rotary_dim"])
    size, pairs = rotated_size(named["cos"], named["rotary_dim"]), named["interleaved"]
    layouts = pairs, pairs and not named["to_halves"]
    results: list[Tensor | None] = []
    for name, wanted in zip(names, call.wanted, strict=True):
        x = named[name] if wanted else None
        if x is None:
            results.append(None)
            continue
        dtype = _dtype_of(name, named)
        result = call.empty_like(x, dtype)
        cos, sin = (call.view(factor_pairs, named[factor], heads, x.shape, size, pairs) for factor in ("cos", "sin"))
        read, written = layouts if kernel is _FORWARD else layouts[::-1]
        sin = sin if kernel is _FORWARD else sin[::-1]  # the gradient of an element has the sine of the other one
        product = str(torch.promote_types(x.dtype, named["cos"].dtype)).removeprefix("torch.")
        call.kernel(
            kernel, *call.view(pairs_of, x, size, read), *cos, *sin, dtypes=(dtype, dtype),
            out=call.view(pairs_of, result, size, written), ROUNDS=rounds, PRODUCT_DTYPE=product,
        )  # fmt: skip
        if size < x.shape[-1]:
            call.kernel(_COPY, call.view(_rest, x, size), dtypes=(dtype,), out=call.view(_rest, result, size))
        results.append(result)
    return tuple(results)


def _result(name: str, source: str, **options: Any) -> Result:
    """Returns the declaration of a result with the strides that `empty_like` gives for its source."""
    dtype: Callable[[Named], torch.dtype] = functools.partial(_dtype_of, source)
    return Result(
        name, "whole", dtype=dtype, new=lambda named: torch.empty_like(named[source], dtype=dtype(named)), **options
    )


def _has_key(named: Named) -> bool:
    return named["key"] is not None


_SIZE = number("rotary_dim", type="int", optional=True, range=(2, 2))
_LAYOUT = number("keep_dtype", False), number("interleaved", False), number("to_halves", False)

ROTARY_EMBEDDING = Op(
    name=NAME,
    arguments=(
        whole("query", differentiable=True), whole("key", optional=True, differentiable=True),
        whole("cos"), whole("sin"), _SIZE,
        number("unsqueeze_dim", 1, range=(1, 2)), number("casting", "", range=("", "transformers")), *_LAYOUT,
    ),
    results=(
        _result("rotated_query", "query", depends_on=("query",), gradient="query_grad"),
        _result("rotated_key", "key", depends_on=("key",), needs=_has_key, gradient="key_grad"),
    ),
    kernels=(_FORWARD, _BACKWARD, _COPY),
    reference=reference,
    gradient=gradient,
    steps=functools.partial(_rotate, names=("query", "key"), kernel=_FORWARD),
    gradient_steps=functools.partial(_rotate, names=("query_grad", "key_grad"), kernel=_BACKWARD),
    dim=-1,
    saves=("cos", "sin"),
    gradient_numbers=(_SIZE, number("unsqueeze_dim", type="int"), *(replace(n, default=None) for n in _LAYOUT)),
    gradient_results=tuple(
        _result(name, f"{name}_grad", needs=f"{name}_grad") for name in ("query", "key")
    ),
    cases="tridal.library.rotary.cases:ROTARY",
    benchmark="tridal.library.rotary.benchmark:ROTARY",
)  # fmt: skip
