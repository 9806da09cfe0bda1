"""The public functions modulated_layer_norm and modulated_rms_norm, and the checks of their arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from tridal.errors import ShapeError
from tridal.library.modulated_norm.modulated_norm import MODULATED_LAYER_NORM, MODULATED_RMS_NORM
from tridal.library.norms.checks import check_sizes, traced_sizes
from tridal.ops import Arguments, Op, accumulator, check_number, check_tensor, compute, is_block_shape, wrong
from tridal.pytorch import check_arguments, op_function, torch_computes

Tensor = torch.Tensor
_NAMES = {"scale": "scaling"}  # `scale` is a number of other ops


@op_function(MODULATED_LAYER_NORM, sizes="normalized_shape", names=_NAMES)
def modulated_layer_norm(
    call: Any, input: Tensor, scale: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5, *, shift: Tensor | None = None, stream: Any = None,
) -> Tensor:  # fmt: skip
    """layer_norm(input) * (1 + scale) + shift over the last dims, the adaptive LayerNorm (adaLN) of diffusion models.

    Args:
        input: a tensor whose last sizes are `normalized_shape`, with any strides, such as [batch, tokens, channels].
        scale: a tensor of the input's shape, or with sizes of one before the normalized dims: [batch, 1, channels] has
            a scale per batch. It may have another floating-point dtype.
        normalized_shape: the sizes of the dims that are normalized together.
        weight, bias: tensors of this shape. Most models have none.
        eps: added to the variance.
        shift: a tensor like the scale. Both may have different shapes.
        stream: see `tridal.softmax`.

    Returns:
        A contiguous tensor in the dtype of the input, rounded once from float32 (float64 for float64).

    Raises:
        TypeError, ValueError, DTypeError, ShapeError, TensorDeviceError, LayoutError, StreamError: an argument is
            wrong.
        NoBackendError: no backend serves the tensors and the setting `fallback` is "error".

    Example:
        >>> x = torch.tensor([[[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]])
        >>> tridal.modulated_layer_norm(x, torch.ones(1, 1, 3), (3,), shift=torch.ones(1, 1, 3))
        tensor([[[-1.4495,  1.0000,  3.4495],
                 [ 3.4495,  1.0000, -1.4495]]])
    """
    check_number(MODULATED_LAYER_NORM.name, "eps", eps)
    return _compute(call, MODULATED_LAYER_NORM, input, scale, shift, normalized_shape, eps, weight, bias)


@op_function(MODULATED_RMS_NORM, sizes="normalized_shape", names=_NAMES)
def modulated_rms_norm(
    call: Any, input: Tensor, scale: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    eps: float | None = None, *, shift: Tensor | None = None, stream: Any = None,
) -> Tensor:  # fmt: skip
    """rms_norm(input) * (1 + scale) + shift over the last dims.

    Args:
        input, scale, normalized_shape, weight, shift, stream: see `modulated_layer_norm`.
        eps: by default, the eps of float32; for float64 input that of float64.

    Returns:
        A contiguous tensor in the dtype of the input, rounded once from float32 (float64 for float64).

    Raises:
        TypeError, ValueError, DTypeError, ShapeError, TensorDeviceError, LayoutError, StreamError, NoBackendError: see
            `modulated_layer_norm`.

    Example:
        >>> tridal.modulated_rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(1, 2), (2,))
        tensor([[1.6971, 2.2627]])
    """
    if eps is not None:
        check_number(MODULATED_RMS_NORM.name, "eps", eps)
    return _compute(call, MODULATED_RMS_NORM, input, scale, shift, normalized_shape, eps, weight)


def _compute(
    call: Any, op: Op, input: Tensor, scale: Tensor, shift: Tensor | None, normalized_shape: Sequence[int],
    eps: float | None, *columns: Tensor | None,
) -> Tensor:  # fmt: skip
    normalized_shape = traced_sizes(normalized_shape)
    check_sizes(op.name, input, normalized_shape)
    dims = len(normalized_shape)
    given = {"scale": scale, **({} if shift is None else {"shift": shift})}
    for name, tensor in given.items():
        check_tensor(op.name, name, tensor, optional=name == "shift")
        if not _can_expand(tensor.shape, input.shape, dims):
            expected = f"have the shape {tuple(input.shape)} of input, in which sizes before the last {dims} may be 1"
            raise ShapeError(wrong(op.name, name, expected, tuple(tensor.shape)))
    expanded = functools.partial(_expanded, dims)
    tensors = expanded(input, scale, shift, *columns)
    if eps is None:
        eps = torch.finfo(accumulator(input, scale, shift)).eps
    arguments = (*tensors, dims, float(eps))
    check_arguments(Arguments(op.signature, arguments))
    if torch_computes(op.name, *tensors):
        return compute(op, *arguments)[0]  # type: ignore[return-value]
    views = None if all(new is old for new, old in zip(tensors[1:3], (scale, shift), strict=True)) else expanded
    return call(*arguments, views=views, checked=True)  # type: ignore[no-any-return]


def _can_expand(shape: torch.Size, to: torch.Size, dims: int) -> bool:
    """Whether a shape equals another one, except that its sizes before the last `dims` may be one."""
    if len(shape) != len(to) or shape[len(to) - dims :] != to[len(to) - dims :]:
        return False
    return all(size in (1, other) for size, other in zip(shape, to, strict=True))


def _expanded(dims: int, input: Tensor, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns the input, scale and shift with one shape, and the tensors with a number per column.

    The shape of scale and shift is that of the input if they do not have a number per column and block of rows.
    """
    given = (tensor.shape for tensor in tensors[:2] if tensor is not None)
    shape: Any = torch.broadcast_shapes(*given)  # type: ignore[no-untyped-call]
    shape = shape if is_block_shape(shape, input.shape, dims) else input.shape
    expanded = (t if t is None or t.shape == shape else t.expand(shape) for t in tensors[:2])
    return input, *expanded, *tensors[2:]
