"""The public function rotary_embedding, and the checks of its arguments."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch

from tridal.library.rotary.rotary import NAME, ROTARY_EMBEDDING, check_shapes
from tridal.ops import Op, check_bool, check_choice, check_floating, compute, wrong
from tridal.pytorch import (
    check_tensors,
    is_distributed,
    op_function,
    records_gradient,
    torch_computes,
    transforms_active,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tensor = torch.Tensor


class _Options(TypedDict, total=False):
    """The keyword arguments of `rotary_embedding`."""

    unsqueeze_dim: Literal[0, 1, 2]
    casting: Literal["transformers"] | None
    keep_dtype: bool
    interleaved: bool
    to_halves: bool
    rotary_dim: int | None
    stream: Any


@overload
def rotary_embedding(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, **options: Unpack[_Options]
) -> tuple[Tensor, Tensor]: ...
@overload
def rotary_embedding(query: Tensor, key: None, cos: Tensor, sin: Tensor, **options: Unpack[_Options]) -> Tensor: ...
@op_function(ROTARY_EMBEDDING)
def rotary_embedding(
    call: Any, query: Tensor, key: Tensor | None, cos: Tensor, sin: Tensor, *, unsqueeze_dim: Literal[0, 1, 2] = 1,
    casting: Literal["transformers"] | None = None, keep_dtype: bool = False, interleaved: bool = False,
    to_halves: bool = False, rotary_dim: int | None = None, stream: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Returns x * cos + rotated(x) * sin for query and key. rotated(x) is (-second, first), the halves of the last dim.

    Args:
        query: a tensor [batch, heads, length, dim] with any strides and an even `dim`, or without the batch dim.
        key: the same, but the number of heads may differ. None rotates only query.
        cos: a tensor [batch, length, rotary_dim], [1, length, rotary_dim] or [length, rotary_dim]. With an argument
            `rotary_dim`, it may be half as wide, with one number for each pair of elements.
        sin: a tensor of the same shape.
        unsqueeze_dim: the dim of the heads in query and key: 1, or 2 for [batch, length, heads, dim]. For tensors with
            three dims, 0 for [heads, length, dim], or 1 for [length, heads, dim].
        casting: None computes in float32 (float64 for float64) and rounds once. "transformers" rounds both products to
            the promoted dtype before they are added, as the operations of torch do.
        keep_dtype: whether to return the dtypes of query and key instead of the promoted dtypes.
        interleaved: whether to rotate pairs of even and odd elements, instead of pairs from both halves.
        to_halves: whether to return the rotated elements as halves even if those of query and key are interleaved, as
            DeepSeek-V3 does.
        rotary_dim: the number of elements to rotate, by default as many as cos has. The remaining elements are copied.
        stream: see `tridal.softmax`.

    Returns:
        The rotated query and key, or only query if key is None, in the promoted dtype and with the strides of torch's
        `empty_like`. The forward saves only cos and sin, of which kernels compute no gradient.

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
    check_rotated(ROTARY_EMBEDDING, given, unsqueeze_dim)
    check_choice(NAME, "casting", casting, (None, "transformers"))
    flags = {"keep_dtype": keep_dtype, "interleaved": interleaved, "to_halves": to_halves}
    for name, flag in flags.items():
        check_bool(NAME, name, flag)
    if rotary_dim is not None:
        _check_size(query, rotary_dim)
    check_shapes(given, unsqueeze_dim, rotary_dim)
    tensors = tuple(given.values())
    if in_shards(query, key, cos, sin):
        from tridal.library.rotary.dtensor import rotate_shards

        options: dict[str, Any] = {
            "unsqueeze_dim": unsqueeze_dim,
            "casting": casting,
            "rotary_dim": rotary_dim,
            **flags,
        }
        return rotate_shards(functools.partial(rotary_embedding, **options), tensors, unsqueeze_dim)  # type: ignore[no-any-return]
    arguments = (*tensors, rotary_dim, unsqueeze_dim, casting or "", *flags.values())
    if torch_computes(NAME, *tensors):
        results = compute(ROTARY_EMBEDDING, *arguments)
        return results[0] if key is None else results  # type: ignore[return-value]
    return call(*arguments, results=1 if key is None else 2, checked=True)  # type: ignore[no-any-return]


def check_rotated(op: Op, given: Mapping[str, Any], unsqueeze_dim: int) -> None:
    """Checks the tensors of a call by name, query first, and the dim of the heads."""
    check_tensors(op.signature, **given)
    for name, tensor in given.items():
        if tensor is not None:
            check_floating(op.name, name, tensor)
    check_choice(op.name, "unsqueeze_dim", unsqueeze_dim, (0, 1) if given["query"].dim() == 3 else (1, 2))


def in_shards(query: Tensor, key: Tensor | None, cos: Tensor, sin: Tensor) -> bool:
    """Returns whether ranks compute their shards of a call.

    A transform hides the placements of its tensors, and the op's reference computes gradients of cos and sin.
    """
    if not is_distributed(query, key, cos, sin) or records_gradient(cos, sin):
        return False
    return torch.compiler.is_dynamo_compiling() or not transforms_active()


def _check_size(query: Tensor, rotary_dim: int) -> None:
    """Checks the number of rotated elements."""
    if type(rotary_dim) is not int or not 0 < rotary_dim <= query.shape[-1] or rotary_dim % 2:
        expected = f"be None, or an even number from 2 to the size of the last dim, {query.shape[-1]}"
        raise ValueError(wrong(NAME, "rotary_dim", expected, repr(rotary_dim)))
