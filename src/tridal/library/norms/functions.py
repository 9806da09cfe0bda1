"""The public functions rms_norm and layer_norm: their checks, and the choice between kernels and torch."""

# mypy: disable-error-code=no-any-return
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch

from tridal.errors import DTypeError
from tridal.library.norms.checks import DTYPES, check_scaling, check_sizes, has_mixed_dtypes, traced_sizes
from tridal.library.norms.norms import LAYER_NORM, RMS_NORM, total_dtype
from tridal.ops import Arguments, Op, accumulator, check_number, check_tensor, compute, has_tangent, wrong
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
        normalized_shape: the sizes of the dims that are normalized together.
        weight: a tensor of this shape, which may be float32 if the input is 16-bit.
        eps: by default, the eps of float32; for float64 input that of float64.
        residual: a tensor of the input's shape. input + residual is rounded to the promoted dtype and normalized.
        weight_offset: added to the weight in float32. With 1.0, the factor is 1 + weight, as in Gemma.
        casting: None computes in float32 and rounds once, to torch's dtype. "gemma" is the same, but the result always
            has the dtype of the input (plus residual). "llama" rounds the normalized input to this dtype, then
            multiplies by the weight in the promoted dtype, which is the result's.
        stream: see `tridal.softmax`.

    Returns:
        The normalized tensor, contiguous; with a `residual`, a tuple of it and the sum. Statistics are float32 (float64
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
    check_scaling(RMS_NORM.name, weight_offset, casting)
    if eps is not None:
        check_number(RMS_NORM.name, "eps", eps)
    scaling = (0.0 if weight is None else float(weight_offset), casting or "")
    of_torch = torch.nn.functional.rms_norm if weight_offset == 0 and casting is None else None
    return _compute(call, RMS_NORM, of_torch, (input, residual), {"weight": weight}, normalized_shape, eps, scaling)


@overload
def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *, residual: None = None, weight_offset: float = 0.0, stream: Any = None,
) -> Tensor: ...  # fmt: skip
@overload
def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *, residual: Tensor, weight_offset: float = 0.0, stream: Any = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@op_function(LAYER_NORM, sizes="normalized_shape")
def layer_norm(
    call: Any, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *, residual: Tensor | None = None, weight_offset: float = 0.0, stream: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """(input - mean) / sqrt(variance + eps) * weight + bias over the last dims, as torch.nn.functional.layer_norm.

    Args:
        input, normalized_shape, residual, weight_offset, stream: see `rms_norm`.
        weight, bias: tensors of this shape, in the dtype of the input (plus residual), or both float32 with a 16-bit
            input.
        eps: added to the variance.

    Returns:
        The normalized tensor in the dtype of the input (plus residual), contiguous; with a `residual`, a tuple
        of it and the sum.

    Raises:
        TypeError, DTypeError, ShapeError, TensorDeviceError, LayoutError, NoBackendError: see `rms_norm`.

    Example:
        >>> tridal.layer_norm(torch.tensor([[1.0, 2.0, 3.0]]), (3,))
        tensor([[-1.2247,  0.0000,  1.2247]])
    """
    check_scaling(LAYER_NORM.name, weight_offset)
    check_number(LAYER_NORM.name, "eps", eps)
    scaling = (0.0 if weight is None else float(weight_offset),)
    of_torch = torch.nn.functional.layer_norm if weight_offset == 0 else None
    parameters = {"weight": weight, "bias": bias}
    return _compute(call, LAYER_NORM, of_torch, (input, residual), parameters, normalized_shape, eps, scaling)


def _compute(
    call: Any, op: Op, of_torch: Any, tensors: tuple[Tensor, Tensor | None], parameters: dict[str, Tensor | None],
    normalized_shape: Sequence[int], eps: float | None, scaling: tuple[Any, ...],
) -> Any:  # fmt: skip
    """Checks the arguments and computes a norm.

    `of_torch` is torch's function, or None if it does not have the `scaling`, which are further arguments of the op.
    """
    name, (input, residual), given = op.name, tensors, (*tensors, *parameters.values())
    normalized_shape = traced_sizes(normalized_shape)
    if _torch_only(*given):
        of_torch = of_torch if residual is None else None
        return _by_torch(name, of_torch, normalized_shape, eps, input=input, **parameters, residual=residual)
    check_sizes(name, input, normalized_shape)
    dims = len(normalized_shape)
    check_arguments(Arguments(op.signature, (*given, dims, eps, *scaling)))
    input, residual, *others = _autocast(name, *given)
    mixed = False
    if op is LAYER_NORM:
        mixed = has_mixed_dtypes(
            name, total_dtype({"input": input, "residual": residual}), dict(zip(parameters, others, strict=True))
        )
    if eps is None:
        eps = torch.finfo(accumulator(input, residual)).eps
    if not torch_computes(name, input, *others, residual):
        arguments = (input, residual, *others, dims, float(eps), *scaling)
        return call(*arguments, results=1 if residual is None else 2, checked=True)
    total = input if residual is None else input + residual
    # torch's layer_norm of other devices than the CPU refuses mixed dtypes, and its gradient of a tangent is wrong.
    refused = op is LAYER_NORM and ((mixed and total.device.type != "cpu") or has_tangent(total, *others))
    if of_torch is None or refused:
        y: Any = compute(op, total, None, *others, dims, eps, *scaling)[0]
    else:
        y = of_torch(total, normalized_shape, *others, eps)
    return y if residual is None else (y, total)


def _torch_only(*tensors: Any) -> bool:
    """Whether one of the tensors is only for torch's functions: nested, or of a dtype that kernels do not have."""
    return any(isinstance(t, Tensor) and (t.dtype not in DTYPES or t.is_nested) for t in tensors)


def _by_torch(op: str, of_torch: Any, normalized_shape: Sequence[int], eps: float | None, **tensors: Any) -> Any:
    """Computes a call with torch's function. Raises DTypeError or LayoutError if it does not define the call either."""
    input, cause = tensors["input"], None
    try:
        if of_torch is not None:
            parameters = [tensor for name, tensor in tensors.items() if name in ("weight", "bias")]
            return of_torch(input, normalized_shape, *parameters, eps)
    except torch.OutOfMemoryError:
        raise
    except (NotImplementedError, RuntimeError) as error:
        if not input.is_nested:
            check_sizes(op, input, normalized_shape)
        cause = error
    name, tensor = next((name, tensor) for name, tensor in tensors.items() if _torch_only(tensor))
    check_tensor(op, name, tensor)  # raises LayoutError for a nested one
    expected = "have the dtype float16, bfloat16, float32 or float64"
    hint = "torch's function computes some others, but not this call"
    raise DTypeError(wrong(op, name, expected, tensor.dtype, hint)) from cause


def _autocast(name: str, *tensors: Tensor | None) -> Any:
    """The tensors, in float32 if autocast computes the op in float32 on their device."""
    assert tensors[0] is not None
    kind = tensors[0].device.type
    if not autocast_enabled(kind) or not autocasts(name, kind):
        return tensors
    return tuple(t if t is None or t.dtype is torch.float64 else t.float() for t in tensors)
