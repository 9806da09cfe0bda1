"""The public functions rms_norm and layer_norm: their checks, and the choice between kernels and torch."""

# mypy: disable-error-code=no-any-return
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch

from tridal.errors import DTypeError
from tridal.library.norms.checks import DTYPES, check_parameter_dtypes, check_scaling, check_sizes, traced_sizes
from tridal.library.norms.layer_norm import LAYER_NORM
from tridal.library.norms.residual import total_dtype
from tridal.library.norms.rms_norm import RMS_NORM
from tridal.ops import accumulator, check_tensor, compute, has_tangent, wrong
from tridal.pytorch import autocast_enabled, autocasts, check_arguments, op_function, torch_computes

Tensor = torch.Tensor
Casting = Literal["llama", "gemma"] | None


@overload
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None, *,
    residual: None = None, weight_offset: float = 0.0, casting: Casting = None, stream: Any = None,
) -> Tensor: ...  # fmt: skip
@overload
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None, *,
    residual: Tensor, weight_offset: float = 0.0, casting: Casting = None, stream: Any = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@op_function(RMS_NORM, sizes="normalized_shape")
def rms_norm(
    call: Any, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None,
    *, residual: Tensor | None = None, weight_offset: float = 0.0, casting: Casting = None, stream: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """input / sqrt(mean(input^2) + eps) * weight over the last dims, as torch.nn.functional.rms_norm defines it.

    Args:
        input: a tensor whose last sizes are `normalized_shape`, with any strides.
        normalized_shape: the sizes of the dims that are normalised together.
        weight: a tensor of this shape. It may be float32 with a 16-bit input.
        eps: by default, the eps of float32; for float64 input that of float64.
        residual: a tensor of the input's shape. input + residual is rounded to the promoted dtype and normalised.
        weight_offset: is added to the weight in float32. With 1.0, the factor is 1 + weight, as in Gemma.
        casting: None computes in float32 and rounds once, to torch's dtype. "gemma" is the same, but the result always
            has the dtype of the input (plus residual). "llama" rounds the normalised input to this dtype, then
            multiplies with the weight in the promoted dtype, which is the result's.
        stream: see `tridal.softmax`.

    Returns:
        The normalised tensor, contiguous; with a `residual`, a tuple of it and the sum. Statistics are float32 (float64
        for float64).

    Raises:
        TypeError, ValueError, DTypeError, ShapeError, TensorDeviceError, LayoutError, StreamError: an argument is
            wrong. These are also torch's types of errors.
        NoBackendError: no backend serves the tensors and the setting `fallback` is "error".

    Example:
        >>> x = torch.tensor([[3.0, 4.0]])
        >>> tridal.rms_norm(x, (2,))
        tensor([[0.8485, 1.1314]])
        >>> y, total = tridal.rms_norm(x, (2,), residual=torch.tensor([[1.0, -1.0]]))
        >>> total
        tensor([[4., 3.]])
    """
    normalized_shape = traced_sizes(normalized_shape)
    check_scaling(RMS_NORM.name, weight_offset, casting)
    if _torch_only(input, weight, residual):
        plain = residual is None and weight_offset == 0 and casting is None
        arguments: tuple[Any, ...] = (input, normalized_shape, weight, eps)
        of_torch = torch.nn.functional.rms_norm
        return _by_torch(RMS_NORM.name, of_torch, plain, arguments, input=input, weight=weight, residual=residual)
    check_sizes(RMS_NORM.name, input, normalized_shape, 0.0 if eps is None else eps)
    check_arguments(RMS_NORM, RMS_NORM.signature, (input, residual, weight, len(normalized_shape), eps, 0.0, ""))
    input, residual, weight = _autocast(RMS_NORM.name, input, residual, weight)
    if eps is None:
        eps = torch.finfo(accumulator(input, residual)).eps
    offset = 0.0 if weight is None else float(weight_offset)
    if torch_computes(RMS_NORM.name, input, weight, residual):
        total = input if residual is None else input + residual
        if casting is None and offset == 0:
            y: Any = torch.nn.functional.rms_norm(total, normalized_shape, weight, eps)
        else:
            y = compute(RMS_NORM, total, None, weight, len(normalized_shape), eps, offset, casting or "")[0]
        return y if residual is None else (y, total)
    arguments = (input, residual, weight, len(normalized_shape), float(eps), offset, casting or "")
    return call(*arguments, results=1 if residual is None else 2, checked=True)


@overload
def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *, residual: None = None, stream: Any = None,
) -> Tensor: ...  # fmt: skip
@overload
def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *, residual: Tensor, stream: Any = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@op_function(LAYER_NORM, sizes="normalized_shape")
def layer_norm(
    call: Any, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *, residual: Tensor | None = None, stream: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """(input - mean) / sqrt(variance + eps) * weight + bias over the last dims, as torch.nn.functional.layer_norm.

    Args:
        input, normalized_shape, residual, stream: see `rms_norm`.
        weight, bias: tensors of this shape, in the dtype of the input (plus residual), or both float32 with a 16-bit
            input.
        eps: is added to the variance.

    Returns:
        The normalised tensor in the dtype of the input (plus residual), contiguous; with a `residual`, a tuple
        of it and the sum.

    Raises:
        TypeError, DTypeError, ShapeError, TensorDeviceError, LayoutError, NoBackendError: see `rms_norm`.

    Example:
        >>> tridal.layer_norm(torch.tensor([[1.0, 2.0, 3.0]]), (3,))
        tensor([[-1.2247,  0.0000,  1.2247]])
    """
    tensors = (input, residual, weight, bias)
    normalized_shape = traced_sizes(normalized_shape)
    if _torch_only(*tensors):
        named = {"input": input, "weight": weight, "bias": bias, "residual": residual}
        of_torch, given = torch.nn.functional.layer_norm, (input, normalized_shape, weight, bias, eps)
        return _by_torch(LAYER_NORM.name, of_torch, residual is None, given, **named)
    check_sizes(LAYER_NORM.name, input, normalized_shape, eps)
    check_arguments(LAYER_NORM, LAYER_NORM.signature, (*tensors, len(normalized_shape), eps))
    input, residual, weight, bias = _autocast(LAYER_NORM.name, input, residual, weight, bias)
    dtype = total_dtype({"input": input, "residual": residual})
    check_parameter_dtypes(LAYER_NORM.name, dtype, weight=weight, bias=bias)
    if torch_computes(LAYER_NORM.name, *tensors):
        total = input if residual is None else input + residual
        mixed = any(parameter is not None and parameter.dtype is not total.dtype for parameter in (weight, bias))
        mixed = mixed and total.device.type != "cpu"  # torch's kernels of other devices refuse mixed dtypes
        if mixed or has_tangent(total, weight, bias):  # torch's gradient of a tangent is wrong
            y: Any = compute(LAYER_NORM, total, None, weight, bias, len(normalized_shape), eps)[0]
        else:
            y = torch.nn.functional.layer_norm(total, normalized_shape, weight, bias, eps)
        return y if residual is None else (y, total)
    arguments = (input, residual, weight, bias, len(normalized_shape), float(eps))
    return call(*arguments, results=1 if residual is None else 2, checked=True)


def _torch_only(*tensors: Any) -> bool:
    """Returns whether only torch's functions define a call: for nested tensors and dtypes that kernels do not have."""
    tensors = tuple(tensor for tensor in tensors if isinstance(tensor, torch.Tensor))
    return any(tensor.dtype not in DTYPES or tensor.is_nested for tensor in tensors)


def _by_torch(op: str, function: Any, plain: bool, arguments: tuple[Any, ...], **tensors: Any) -> Any:
    """Computes a call that only torch's function defines. It is `plain` if the function has all of its arguments.

    Raises:
        DTypeError, LayoutError: torch's function does not define it either.
    """
    cause: Exception | None = None
    try:
        if plain:
            return function(*arguments)
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        if not arguments[0].is_nested:
            check_sizes(op, arguments[0], arguments[1], 0.0)
        cause = error
    name, tensor = next((name, tensor) for name, tensor in tensors.items() if _torch_only(tensor))
    check_tensor(op, name, tensor)  # raises LayoutError for a nested one
    expected = "have the dtype float16, bfloat16, float32 or float64"
    hint = "torch's function computes some others, but not this call"
    raise DTypeError(wrong(op, name, expected, tensor.dtype, hint)) from cause


def _autocast(name: str, *tensors: Tensor | None) -> Any:
    """Returns the tensors in float32 if autocast computes the op in float32 on their device."""
    assert tensors[0] is not None
    kind = tensors[0].device.type
    if not autocast_enabled(kind) or not autocasts(name, kind):
        return tensors
    return tuple(t if t is None or t.dtype is torch.float64 else t.float() for t in tensors)
