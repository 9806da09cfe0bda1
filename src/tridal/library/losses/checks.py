"""Checks of the arguments of losses and log-probabilities. Errors have the types that torch's have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tridal.errors import DTypeError, ShapeError
from tridal.library.losses.loss_math import REDUCTIONS, Options
from tridal.ops import (
    INTEGERS,
    check_choice,
    check_dtype,
    check_floating,
    check_index,
    check_number,
    check_shape,
    wrong,
)

Tensor = torch.Tensor
_NUMBERS: dict[str, tuple[Any, ...]] = {
    "ignore_index": ("be an int of 64 bits", lambda i: -(2**63) <= i < 2**63, ValueError, INTEGERS),
    "label_smoothing": ("be a number from 0 to 1", lambda part: 0 <= part <= 1, RuntimeError),
    "z_loss": ("be a number (0 for a loss without it)",),
    "softcap": ("be a positive number or None", lambda cap: 0 < cap < math.inf),
    "temperature": ("be a positive number", lambda temperature: 0 < temperature < math.inf),
    "chunk_size": ("be a positive int or None", lambda size: size > 0, ValueError, INTEGERS),
}
"""What each number must be, as `check_number` takes it."""


def check_numbers(op: str, **numbers: Any) -> None:
    """Raises TypeError or ValueError if a number is wrong, and RuntimeError for label_smoothing, as torch does."""
    for name, value in numbers.items():
        if value is not None or not _NUMBERS[name][0].endswith("None"):
            check_number(op, name, value, *_NUMBERS[name])


def checked_options(op: str, reduction: Any, **numbers: Any) -> Options:
    """Returns the options of a loss. Raises TypeError, ValueError or RuntimeError if one is wrong."""
    check_choice(op, "reduction", reduction, tuple(REDUCTIONS))
    check_numbers(op, **numbers)
    ignore_index, smoothing, z_loss, softcap = numbers.values()
    cap = None if softcap is None else float(softcap)
    return Options(REDUCTIONS[reduction], int(ignore_index), float(smoothing), float(z_loss), cap)


def check_target(
    op: str, shape: Sequence[int], dim: int, target: Tensor, ignore_index: int | None, hint: str = ""
) -> None:
    """Checks the target for logits of this shape, whose dim `dim` holds the classes.

    ShapeError is a RuntimeError and a ValueError, because torch raises both. ignore_index for probabilities is a
    RuntimeError.
    """
    shape, rows = tuple(shape), (*shape[:dim], *shape[dim + 1 :])
    if target.shape == shape:
        check_floating(op, "target", target, f"a target of the shape of the logits, {shape}, holds probabilities")
        if ignore_index is not None and ignore_index >= 0:
            expected = "be negative or absent for a target of probabilities"
            raise RuntimeError(wrong(op, "ignore_index", expected, ignore_index, "set the loss's weight instead"))
        return
    if target.shape != rows and not (len(shape) == 1 and tuple(target.shape) == (1,)):
        if target.shape == shape[:-1]:
            hint = f"dim {dim} of the logits has the classes; if the last dim has them, use logits.movedim(-1, {dim})"
        expected = f"have the shape {rows} for indices or {shape} for probabilities"
        raise ShapeError(wrong(op, "target", expected, tuple(target.shape), hint))
    check_index(op, "target", target)


def check_weight(
    op: str, classes: int, dtype: torch.dtype, target: Tensor, weight: Tensor | None, autocast: bool
) -> None:
    """Raises ShapeError or DTypeError if the weights of the classes do not fit logits of this dtype."""
    if weight is None:
        return
    check_shape(op, "weight", weight, (classes,), "a number per class")
    if not weight.is_floating_point() or not (autocast or target.is_floating_point() or weight.dtype == dtype):
        expected = f"have the dtype {dtype} of the logits"
        raise DTypeError(wrong(op, "weight", expected, weight.dtype, f"use weight.to({dtype})"))


def check_layer(
    op: str, input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, chunk_size: Any, accum_dtype: Any,
    autocast: bool,
) -> tuple[tuple[int, ...], tuple[torch.dtype, torch.dtype, int]]:  # fmt: skip
    """Returns the shape of a linear layer's logits, and the values of `CHUNK_NUMBERS`, if no argument is wrong."""
    check_numbers(op, chunk_size=chunk_size)
    check_dtype(op, "accum_dtype", accum_dtype)
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
    dtype = torch.get_autocast_dtype(input.device.type) if autocast and input.dtype != torch.float64 else input.dtype
    return (*shape[:-1], *outputs), (dtype, accum_dtype or torch.promote_types(dtype, torch.float32), chunk_size or 0)
