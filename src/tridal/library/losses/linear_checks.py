"""Checks of the arguments of linear_cross_entropy. Errors have the types that torch's have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tridal.errors import DTypeError
from tridal.library.losses.checks import check_numbers, check_targets, check_tensors

Tensor = torch.Tensor


def check_linear(
    input: Any, linear_weight: Any, target: Any, options: Mapping[str, Any], autocast: bool
) -> tuple[Tensor, Tensor]:
    """Checks the arguments of `tridal.linear_cross_entropy`. Returns input and target with one batch dim.

    `options` are the arguments after the target, by name.

    Raises:
        TypeError, ValueError, RuntimeError, DTypeError, LayoutError: see `tridal.cross_entropy`.
    """
    linear_bias, weight, ignore_index = options["linear_bias"], options["weight"], options["ignore_index"]
    ignored = -100 if ignore_index is None else ignore_index
    check_numbers(options["reduction"], ignored, options["label_smoothing"], options["z_loss"], options["softcap"])
    check_tensors(
        "the loss", input=input, linear_weight=linear_weight, target=target, linear_bias=linear_bias, weight=weight
    )
    shape = check_layer(input, linear_weight, linear_bias, options["chunk_size"], options["accum_dtype"], autocast)
    if input.dim() == 2 and target.dim() == 1 and input.shape[0] != target.shape[0] == linear_weight.shape[0]:
        raise ValueError(
            f"Expected input batch_size ({input.shape[0]}) to match target batch_size ({target.shape[0]}), which is "
            "the size of linear_weight: the first argument is the input, and the second one linear_weight"
        )
    batch, rest = input.shape[:-1], shape[input.dim() - 1 :]
    probabilities = target.shape == shape
    if probabilities and ignore_index is not None:
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    if len(batch) > 1 and not probabilities and target.shape != batch:
        raise RuntimeError(
            f"Expected target size {list(batch)} for indices or {list(shape)} for probabilities, "
            f"got {list(target.shape)}"
        )
    flat_shape = (math.prod(batch), *rest) if batch else shape
    flat_target = target.flatten(0, len(batch) - 1) if len(batch) > 1 else target
    check_targets(flat_shape, input.dtype, flat_target, weight, ignored, autocast)
    if not batch:
        return input.unsqueeze(0), target.unsqueeze(0) if probabilities else target.reshape(1)
    return (input.flatten(0, -2) if len(batch) > 1 else input), flat_target


def check_layer(
    input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, chunk_size: object, accum_dtype: object,
    autocast: bool,
) -> tuple[int, ...]:  # fmt: skip
    """Checks the tensors of a linear layer, and how chunks are computed. Returns the shape of the logits.

    Raises:
        TypeError, ValueError, RuntimeError, DTypeError: an argument is wrong.
    """
    _check_options(chunk_size, accum_dtype)
    shape = _logits_shape(input, linear_weight, linear_bias)
    for name, tensor in (("linear_weight", linear_weight), ("linear_bias", linear_bias)):
        if tensor is not None and tensor.dtype != input.dtype and not autocast:
            raise DTypeError(
                f"expected input and {name} to have the same dtype, but got: {input.dtype} != {tensor.dtype}: use "
                f"{name}.to(input.dtype), or autocast"
            )
    return shape


def matmul_dtype_of(input: Tensor, autocast: bool) -> torch.dtype:
    """Returns the dtype in which a linear layer is computed."""
    if autocast and input.dtype is not torch.float64:
        return torch.get_autocast_dtype(input.device.type)
    return input.dtype


def _check_options(chunk_size: object, accum_dtype: object) -> None:
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int)):
        raise TypeError(f"chunk_size must be an int or None, got {chunk_size!r}")
    if isinstance(chunk_size, int) and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
    if accum_dtype is not None and not isinstance(accum_dtype, torch.dtype):
        raise TypeError(f"accum_dtype must be a torch.dtype or None, got {accum_dtype!r}")
    if isinstance(accum_dtype, torch.dtype) and not accum_dtype.is_floating_point:
        raise DTypeError(f"accum_dtype must be a floating-point dtype, got {accum_dtype}")


def _logits_shape(input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None) -> tuple[int, ...]:
    """Returns the shape of the logits. Raises RuntimeError if the shapes do not fit, with torch's messages."""
    if input.dim() < 1:
        raise RuntimeError("expected input with dimensionality at least 1: (H,), (N, H) or (B, T, H), got 0")
    if linear_weight.dim() < 2:
        raise RuntimeError(f"expected linear_weight with dimensionality at least 2, got {linear_weight.dim()}")
    if input.shape[-1] != linear_weight.shape[-1]:
        raise RuntimeError(
            "expected equal input and linear_weight last dimensions (in_features), "
            f"got {input.shape[-1]} and {linear_weight.shape[-1]}, respectively"
        )
    outputs = tuple(linear_weight.shape[:-1])
    if linear_bias is not None and tuple(linear_bias.shape) != outputs:
        raise RuntimeError(f"expected linear_bias shape {outputs}, got {tuple(linear_bias.shape)}")
    if len(outputs) > 1 and input.dim() != 2:
        batch = "unbatched input" if input.dim() == 1 else "input"
        raise RuntimeError(
            f"K-dimensional loss defined by linear_weight shape {tuple(linear_weight.shape)} requires batched input, "
            f"(N, {input.shape[-1]}), got {batch} with shape {tuple(input.shape)}"
        )
    return (*input.shape[:-1], *outputs)
