"""The public function rotary_embedding, and the checks of its arguments."""

from __future__ import annotations

from typing import Any, Literal

import torch

from tridal.errors import ShapeError
from tridal.library.rotary.rotary import ROTARY_EMBEDDING
from tridal.ops import check_choice, check_floating, check_tensor, wrong
from tridal.pytorch import row_function

Tensor = torch.Tensor
_NAME = ROTARY_EMBEDDING.name


def rotary_embedding(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *, unsqueeze_dim: Literal[1, 2] = 1,
    casting: Literal["transformers"] | None = None, stream: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns x * cos + rotated(x) * sin for query and key. rotated(x) is (-second, first), the halves of the last dim.

    Args:
        query: a tensor [batch, heads, length, dim] of any strides. `dim` is even.
        key: the same. It may have another number of heads.
        cos: a tensor [batch, length, dim], [1, length, dim] or [length, dim].
        sin: a tensor of the same shape.
        unsqueeze_dim: the dim of the heads in query and key: 1, or 2 for [batch, length, heads, dim].
        casting: None computes in float32 (float64 for float64) and rounds once. "transformers" rounds both products to
            the dtype of the result before they are added, as the operations of torch do.
        stream: see `tridal.softmax`.

    Returns:
        The results for query and key, in the promoted dtype. They have the strides that torch's `empty_like` gives. The
        backward saves only cos and sin, which get no gradient from kernels.

    Raises:
        TypeError, ValueError, DTypeError, ShapeError, TensorDeviceError, LayoutError, StreamError: an argument is
            wrong.
        NoBackendError: no backend serves the tensors and the setting `fallback` is "error".

    Example:
        >>> query, key = torch.arange(4.0).view(1, 1, 1, 4), torch.ones(1, 2, 1, 4)
        >>> cos, sin = torch.zeros(1, 4), torch.ones(1, 4)  # a rotation by 90 degrees
        >>> tridal.rotary_embedding(query, key, cos, sin)[0]
        tensor([[[[-2., -3.,  0.,  1.]]]])
    """
    given = {"query": query, "key": key, "cos": cos, "sin": sin}
    for name, tensor in given.items():
        check_tensor(_NAME, name, tensor)
        check_floating(_NAME, name, tensor)
    check_choice(_NAME, "unsqueeze_dim", unsqueeze_dim, (1, 2))
    check_choice(_NAME, "casting", casting, (None, "transformers"))
    for name in ("query", "key"):
        _check_shapes(name, given, unsqueeze_dim)
    factors = factors_of(cos, sin, unsqueeze_dim)
    first, second = (
        _rotary(*halves_of(x, factors), -2, stream=stream, casting=casting or "").flatten(-2) for x in (query, key)
    )
    return first, second


def _check_shapes(name: str, given: dict[str, Tensor], heads: int) -> None:
    """Checks the shapes of query or key, and those of cos and sin against it."""
    shape = tuple(given[name].shape)
    if len(shape) != 4 or shape[3] % 2:
        raise ShapeError(wrong(_NAME, name, "have four dims, the last one of even size", f"the shape {shape}"))
    for factor in ("cos", "sin"):
        shapes = [(*batch, shape[3 - heads], shape[3]) for batch in ((shape[0],), (1,), ())]
        if tuple(given[factor].shape) not in shapes:
            expected = f"have the shape {shapes[0]}, {shapes[1]} or {shapes[2]} with {name} of shape {shape}"
            raise ShapeError(wrong(_NAME, factor, expected, f"{tuple(given[factor].shape)}"))


def factors_of(cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Returns views of cos and sin with a dim of size 1 for the heads, and the dims (2, half) instead of the last."""
    batched = (factor if factor.dim() == 3 else factor.unsqueeze(0) for factor in (cos, sin))
    first, second = (_split(factor).unsqueeze(heads) for factor in batched)
    return first, second


def halves_of(x: Tensor, factors: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns views of x and of the factors, of one shape that ends with (2, half)."""
    halves = _split(x)
    return halves, factors[0].expand(halves.shape), factors[1].expand(halves.shape)


def _split(x: Tensor) -> Tensor:
    return torch.unflatten(x, -1, (2, x.shape[-1] // 2))


_rotary = row_function(ROTARY_EMBEDDING)
