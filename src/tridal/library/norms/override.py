"""The kernels with which `override_torch` replaces torch's LayerNorm and RMSNorm, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tridal.errors import DTypeError
from tridal.library.norms.checks import DTYPES, has_mixed_dtypes
from tridal.library.norms.norms import LAYER_NORM, RMS_NORM
from tridal.ops import Arguments
from tridal.pytorch import compute_op, skip_frames

Tensor = torch.Tensor
_RMS_NORM = "_fused_rms_norm"


@skip_frames
def _native_layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    if not _fits(input, normalized_shape, weight, bias):  # torch's op raises torch's error
        x, *parameters = (None if t is None else t.to("meta") for t in (input, weight, bias))
        return torch.ops.aten.native_layer_norm(x, normalized_shape, *parameters, eps)  # type: ignore[no-any-return]
    if input.dtype not in DTYPES:
        raise DTypeError(f"layer_norm is not implemented for {input.dtype}")
    mixed = has_mixed_dtypes(LAYER_NORM.name, input.dtype, {"weight": weight, "bias": bias})
    y, _, mean, inverse_deviation = compute_op(
        LAYER_NORM, Arguments(LAYER_NORM.signature, (input, None, weight, bias, len(normalized_shape), eps, 0.0))
    )
    dtype = input.dtype if input.device.type == "cpu" and not mixed else None  # torch's dtype of statistics
    assert y is not None
    return y, *(_statistic(number, input, dtype) for number in (mean, inverse_deviation))


@skip_frames
def _native_layer_norm_backward(
    grad: Tensor, input: Tensor, normalized_shape: Sequence[int], mean: Tensor, rstd: Tensor, weight: Tensor | None,
    bias: Tensor | None, output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    dims = len(normalized_shape)
    rows = (number.view(input.shape[: input.dim() - dims]) for number in (mean, rstd))
    with torch.no_grad():  # torch differentiates this op itself
        given = (grad, None, input, *rows, weight, dims, 0.0, 0.0, output_mask)
        found = compute_op(LAYER_NORM, Arguments(LAYER_NORM.gradient_signature, given))
    return _with_dtypes(found, (input, weight, bias))


@skip_frames
def _fused_rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, ...]:
    plain = input.dtype in DTYPES and (weight is None or weight.dtype is input.dtype)
    if not plain or not _fits(input, normalized_shape, weight):
        composite = getattr(torch.ops.aten, _RMS_NORM).default
        return composite.decompose(input, normalized_shape, weight, eps)  # type: ignore[no-any-return]
    if eps is None:
        eps = torch.finfo(torch.float64 if input.dtype is torch.float64 else torch.float32).eps
    given = (input, None, weight, len(normalized_shape), eps, 0.0, "")
    y, _, inverse_rms = compute_op(RMS_NORM, Arguments(RMS_NORM.signature, given))
    assert y is not None
    return y, _statistic(inverse_rms, input, None)


@skip_frames
def _fused_rms_norm_backward(
    grad: Tensor, input: Tensor, normalized_shape: Sequence[int], rstd: Tensor, weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    if input.dtype not in DTYPES:
        raise DTypeError(f"override_torch has no gradient of rms_norm for {input.dtype}: end the override")
    dims = len(normalized_shape)
    inverse_rms = rstd.view(input.shape[: input.dim() - dims])
    with torch.no_grad():  # torch differentiates this op itself
        given = (grad, None, input, inverse_rms, weight, dims, 0.0, 0.0, output_mask)
        found = compute_op(RMS_NORM, Arguments(RMS_NORM.gradient_signature, given))
    return _with_dtypes(found, (input, weight))


def _fits(input: Tensor, normalized_shape: Sequence[int], *parameters: Tensor | None) -> bool:
    sizes = list(normalized_shape)
    last = list(input.shape[max(input.dim() - len(sizes), 0) :])
    return last == sizes != [] and all(p is None or list(p.shape) == sizes for p in parameters)


def _statistic(number: Tensor | None, input: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Returns a number per row with a size of one for each normalized dim, as torch's ops return it."""
    assert number is not None
    number = number.view(*number.shape, *[1] * (input.dim() - number.dim()))
    return number if dtype is None else number.to(dtype)


def _with_dtypes(found: Sequence[Tensor | None], like: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Returns gradients in the dtypes of their tensors. The bias's dtype is used only if there is a bias."""
    pairs = zip(found, like, strict=True)
    return tuple(g if g is None or tensor is None else g.to(tensor.dtype) for g, tensor in pairs)


LAYER_NORM_KERNELS: Mapping[str, Callable[..., Any]] = {
    "native_layer_norm": _native_layer_norm,
    "native_layer_norm_backward": _native_layer_norm_backward,
}
RMS_NORM_KERNELS: Mapping[str, Callable[..., Any]] = {
    _RMS_NORM: _fused_rms_norm,
    f"{_RMS_NORM}_backward": _fused_rms_norm_backward,
}
"""The replaced ATen ops. Versions of torch before 2.9 do not have all of them."""
