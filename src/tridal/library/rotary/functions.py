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
    """
    given = {"query": query, "key": key, "cos": cos, "sin": sin}
    for name, tensor in given.items():
        check_tensor(_NAME, name, tensor)
        check_floating(_NAME, name, tensor)
    check_choice(_NAME, "unsqueeze_dim", unsqueeze_dim, (1, 2))
    check_choice(_NAME, "casting", casting, (None, "transformers"))
    results = [_rotate(name, given, unsqueeze_dim, casting or "", stream) for name in ("query", "key")]
    return results[0], results[1]


def _rotate(name: str, given: dict[str, Tensor], heads: int, casting: str, stream: Any) -> Tensor:
    """Returns the result for query or key. The halves of each tensor become a dim of their own."""
    x, shape = given[name], tuple(given[name].shape)
    if x.dim() != 4 or shape[-1] % 2:
        raise ShapeError(wrong(_NAME, name, "have four dims, the last one of even size", f"the shape {shape}"))
    length = shape[3 - heads]
    factors = []
    for factor in ("cos", "sin"):
        tensor = given[factor]
        shapes = [(*batch, length, shape[3]) for batch in ((shape[0],), (1,), ())]
        if tuple(tensor.shape) not in shapes:
            expected = f"have the shape {shapes[0]}, {shapes[1]} or {shapes[2]} with {name} of shape {shape}"
            raise ShapeError(wrong(_NAME, factor, expected, f"{tuple(tensor.shape)}"))
        tensor = tensor if tensor.dim() == 3 else tensor.unsqueeze(0)
        factors.append(tensor.unsqueeze(heads).expand(shape))
    halves = (torch.unflatten(tensor, -1, (2, shape[3] // 2)) for tensor in (x, *factors))
    return _rotary(*halves, -2, stream=stream, casting=casting).flatten(-2)  # type: ignore[no-any-return]


_rotary = row_function(ROTARY_EMBEDDING)
