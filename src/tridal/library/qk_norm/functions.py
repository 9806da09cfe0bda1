"""The public function qk_norm_rotary, and the checks of its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch

from tridal.library.qk_norm.qk_norm_rotary import NAME, QK_NORM_ROTARY, check_shapes
from tridal.library.rotary.functions import check_rotated, in_shards
from tridal.ops import accumulator, check_bool, check_number, compute
from tridal.pytorch import op_function, torch_computes

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tensor = torch.Tensor


class _Options(TypedDict, total=False):
    """The keyword arguments of `qk_norm_rotary`."""

    weight_offset: float
    unsqueeze_dim: Literal[0, 1, 2]
    interleaved: bool
    stream: Any


@overload
def qk_norm_rotary(
    query: Tensor, key: Tensor, query_weight: Tensor | None, key_weight: Tensor | None, cos: Tensor, sin: Tensor,
    eps: float | None = None, **options: Unpack[_Options],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def qk_norm_rotary(
    query: Tensor, key: None, query_weight: Tensor | None, key_weight: Tensor | None, cos: Tensor, sin: Tensor,
    eps: float | None = None, **options: Unpack[_Options],
) -> Tensor: ...  # fmt: skip
@op_function(QK_NORM_ROTARY)
def qk_norm_rotary(
    call: Any, query: Tensor, key: Tensor | None, query_weight: Tensor | None, key_weight: Tensor | None, cos: Tensor,
    sin: Tensor, eps: float | None = None, *, weight_offset: float = 0.0, unsqueeze_dim: Literal[0, 1, 2] = 1,
    interleaved: bool = False, stream: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the rotary embedding of rms_norm(x) * weight for query and key, whose heads are normalized (QK norm).

    Args:
        query: a tensor [batch, heads, length, dim] with any strides and an even `dim`, or without the batch dim.
        key: the same, but the number of heads may differ. None computes only query.
        query_weight: the weight of the norm of query, a tensor [dim], or None.
        key_weight: the same of key. It is not used if key is None.
        cos: a tensor [batch, length, dim], [1, length, dim] or [length, dim]. It may be half as wide, with one number
            for each pair of elements. All elements of a head are rotated.
        sin: a tensor of the same shape.
        eps: added to the mean of squares. By default, the eps of float32; for float64 that of float64.
        weight_offset: added to the weights in float32. With 1.0, the factor is 1 + weight, as in Gemma 3.
        unsqueeze_dim: the dim of the heads, see `tridal.rotary_embedding`.
        interleaved: whether to rotate pairs of even and odd elements, instead of pairs from both halves.
        stream: see `tridal.softmax`.

    Returns:
        The normalized and rotated query and key, or only query if key is None, in their own dtypes and with the strides
        of torch's `empty_like`. They are computed in float32 (float64 for float64) and rounded once. Kernels compute no
        gradients of cos and sin.

    Raises:
        TypeError, ValueError, DTypeError, ShapeError, TensorDeviceError, LayoutError, StreamError: an argument is
            wrong.
        NoBackendError: no backend serves the tensors and the setting `fallback` is "error".

    Example:
        >>> query, weight = torch.tensor([3.0, 4.0]).view(1, 1, 1, 2), torch.ones(2)
        >>> cos, sin = torch.zeros(1, 2), torch.ones(1, 2)  # a rotation by 90 degrees
        >>> tridal.qk_norm_rotary(query, None, weight, None, cos, sin)
        tensor([[[[-1.1314,  0.8485]]]])
    """
    given = {
        "query": query, "key": key, "query_weight": query_weight, "key_weight": key_weight, "cos": cos, "sin": sin,
    }  # fmt: skip
    check_rotated(QK_NORM_ROTARY, given, unsqueeze_dim)
    if eps is not None:
        check_number(NAME, "eps", eps)
    check_number(NAME, "weight_offset", weight_offset)
    check_bool(NAME, "interleaved", interleaved)
    check_shapes(given, unsqueeze_dim)
    tensors = tuple(given.values())
    eps = torch.finfo(accumulator(query, key)).eps if eps is None else float(eps)
    # Under FSDP2, a weight may be distributed alone; then each rank has other tokens, and `call` raises an error.
    if in_shards(query, key, cos, sin):
        from tridal.library.rotary.dtensor import rotate_shards

        def rotate(query: Tensor, key: Any, cos: Tensor, sin: Tensor, *weights: Any) -> Any:
            """Computes the shards of a rank."""
            of_query, of_key = (*weights, None)[:2]
            return qk_norm_rotary(
                query, key, of_query, of_key, cos, sin, eps, weight_offset=weight_offset, unsqueeze_dim=unsqueeze_dim,
                interleaved=interleaved,
            )  # fmt: skip

        return rotate_shards(rotate, (query, key, cos, sin), unsqueeze_dim, (query_weight, key_weight))  # type: ignore[no-any-return]
    arguments = (*tensors, eps, float(weight_offset), unsqueeze_dim, interleaved)
    if torch_computes(NAME, *tensors):
        results = compute(QK_NORM_ROTARY, *arguments)
        return results[0] if key is None else results  # type: ignore[return-value]
    return call(*arguments, results=1 if key is None else 2, checked=True)  # type: ignore[no-any-return]
