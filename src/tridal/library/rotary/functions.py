"""The public function rotary_embedding, and the checks of its arguments."""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch

from tridal.library.rotary.rotary import NAME, ROTARY_EMBEDDING, check_shapes
from tridal.ops import check_choice, check_floating, compute
from tridal.pytorch import (
    check_tensors,
    is_distributed,
    op_function,
    records_gradient,
    torch_computes,
    transforms_active,
)

Tensor = torch.Tensor
_compiling = torch.compiler.is_dynamo_compiling


@op_function(ROTARY_EMBEDDING)
def rotary_embedding(
    call: Any, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *, unsqueeze_dim: Literal[1, 2] = 1,
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
    check_tensors(ROTARY_EMBEDDING.signature, **given)
    for name, tensor in given.items():
        check_floating(NAME, name, tensor)
    check_choice(NAME, "unsqueeze_dim", unsqueeze_dim, (1, 2))
    check_choice(NAME, "casting", casting, (None, "transformers"))
    check_shapes(given, unsqueeze_dim)
    tensors = tuple(given.values())
    # A transform hides the placements of its tensors, and the op's reference computes gradients of cos and sin.
    if is_distributed(*tensors) and (_compiling() or not transforms_active()) and not records_gradient(cos, sin):
        from tridal.library.rotary.dtensor import rotate_shards

        options: dict[str, Any] = {"unsqueeze_dim": unsqueeze_dim, "casting": casting}
        return rotate_shards(functools.partial(rotary_embedding, **options), tensors, unsqueeze_dim)
    arguments = (*tensors, unsqueeze_dim, casting or "")
    if torch_computes(NAME, *tensors):
        return compute(ROTARY_EMBEDDING, *arguments)  # type: ignore[return-value]
    return call(*arguments, results=2, checked=True)  # type: ignore[no-any-return]
