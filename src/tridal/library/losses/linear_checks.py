"""Checks of the arguments of the ops of a linear layer. Errors have the types that torch's have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tridal.errors import DTypeError, ShapeError
from tridal.library.losses.checks import check_numbers, check_target, check_weight
from tridal.ops import INTEGERS, check_dtype, check_floating, check_number, check_shape, wrong

Tensor = torch.Tensor


def check_linear(
    op: str, input: Tensor, linear_weight: Tensor, target: Tensor, options: Mapping[str, Any], autocast: bool
) -> tuple[Tensor, Tensor]:
    """Checks the arguments of `tridal.linear_cross_entropy`. Returns input and target with one batch dim.

    `options` are the arguments after the target, by name.

    Raises:
        TypeError, ValueError, RuntimeError, DTypeError, LayoutError: see `tridal.cross_entropy`.
    """
    numbers = [options[name] for name in ("reduction", "label_smoothing", "z_loss", "softcap")]
    ignore_index, weight = options["ignore_index"], options["weight"]
    check_numbers(op, numbers[0], -100 if ignore_index is None else ignore_index, *numbers[1:])
    shape = check_layer(op, input, linear_weight, options, autocast)
    batch, dim, hint = input.shape[:-1], input.dim() - 1, ""
    # The last comparison would be a guard of an exported program, so it is made only for an error.
    is_wrong = input.dim() == 2 and target.dim() == 1 and target.shape[0] != input.shape[0]
    if is_wrong and target.shape[0] == linear_weight.shape[0]:
        hint = "the first argument is the input, and the second one linear_weight"
    check_target(op, shape, dim, target, ignore_index, hint)
    check_weight(op, shape[dim], input.dtype, target, weight, autocast)
    if not batch:
        return input.unsqueeze(0), target.unsqueeze(0) if target.shape == shape else target.reshape(1)
    return (input.flatten(0, -2), target.flatten(0, len(batch) - 1)) if len(batch) > 1 else (input, target)


def check_layer(
    op: str, input: Tensor, linear_weight: Tensor, options: Mapping[str, Any], autocast: bool
) -> tuple[int, ...]:
    """Checks the tensors of a linear layer, and how chunks are computed. Returns the shape of the logits.

    Raises:
        TypeError, ValueError, DTypeError, ShapeError: an argument is wrong.
    """
    linear_bias, chunk_size = options["linear_bias"], options["chunk_size"]
    if chunk_size is not None:
        check_number(op, "chunk_size", chunk_size, "be a positive int or None", lambda size: size > 0, types=INTEGERS)
    check_dtype(op, "accum_dtype", options["accum_dtype"])
    check_floating(op, "input", input)
    shape, outputs = tuple(input.shape), tuple(linear_weight.shape[:-1])
    if not shape:
        raise ShapeError(wrong(op, "input", "have the shape (H,), (N, H) or (B, T, H)", shape))
    if not outputs or linear_weight.shape[-1] != shape[-1]:
        expected = f"have the shape (C, {shape[-1]}) or (C, d1, ..., {shape[-1]}) for input of shape {shape}"
        raise ShapeError(wrong(op, "linear_weight", expected, tuple(linear_weight.shape)))
    if linear_bias is not None:
        check_shape(op, "linear_bias", linear_bias, outputs, "a number per output")
    if len(outputs) > 1 and len(shape) != 2:
        expected = f"have the shape (N, {shape[-1]}) for linear_weight of shape {tuple(linear_weight.shape)}"
        raise ShapeError(wrong(op, "input", expected, shape))
    for name, tensor in (("linear_weight", linear_weight), ("linear_bias", linear_bias)):
        if tensor is not None and tensor.dtype != input.dtype and not autocast:
            expected, hint = f"have the dtype {input.dtype} of input", f"use {name}.to(input.dtype), or autocast"
            raise DTypeError(wrong(op, name, expected, tensor.dtype, hint))
    return (*shape[:-1], *outputs)


def matmul_dtype_of(input: Tensor, autocast: bool) -> torch.dtype:
    """Returns the dtype in which a linear layer is computed."""
    if autocast and input.dtype is not torch.float64:
        return torch.get_autocast_dtype(input.device.type)
    return input.dtype
