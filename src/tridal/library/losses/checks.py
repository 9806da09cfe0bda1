"""Checks of the arguments of cross-entropy and of its linear form. Errors have the types that torch's have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tridal.errors import DTypeError, ShapeError
from tridal.library.losses.maths import REDUCTIONS
from tridal.ops import INTEGERS, check_choice, check_floating, check_index, check_number, check_shape, wrong

Tensor = torch.Tensor


def check_numbers(
    op: str, reduction: object, ignore_index: object, label_smoothing: Any, z_loss: Any, softcap: Any
) -> None:
    """Checks the arguments that are not tensors.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: the reduction is unknown, or softcap is not positive.
        RuntimeError: label_smoothing is not between 0 and 1, as torch raises it.
    """
    check_choice(op, "reduction", reduction, tuple(REDUCTIONS))
    check_ignore_index(op, ignore_index)
    check_label_smoothing(op, label_smoothing)
    check_number(op, "z_loss", z_loss, "be a number (0 for a loss without it)")
    check_softcap(op, softcap)


def check_ignore_index(op: str, value: Any) -> None:
    """Raises TypeError or ValueError if `ignore_index` is no integer of 64 bits."""
    check_number(op, "ignore_index", value, "be an int of 64 bits", lambda i: -(2**63) <= i < 2**63, types=INTEGERS)


def check_label_smoothing(op: str, value: Any) -> None:
    """Raises TypeError, or RuntimeError as torch does, if `label_smoothing` is no number from 0 to 1."""
    check_number(op, "label_smoothing", value, "be a number from 0 to 1", lambda part: 0 <= part <= 1, RuntimeError)


def check_softcap(op: str, value: Any) -> None:
    """Raises TypeError or ValueError if `softcap` is neither a positive number nor None."""
    if value is not None:
        check_number(op, "softcap", value, "be a positive number or None", is_positive)


def is_positive(value: float) -> bool:
    """Returns whether a number is positive and finite."""
    return 0 < value < math.inf


def check_target(
    op: str, shape: Sequence[int], dim: int, target: Tensor, ignore_index: int | None, hint: str = ""
) -> None:
    """Checks the target for logits of this shape, whose dim `dim` holds the classes.

    Raises:
        DTypeError: the loss is not defined for the dtype.
        ShapeError: the target has another shape. It is a RuntimeError and a ValueError, as torch raises both.
        RuntimeError: ignore_index is given for probabilities.
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
    """Checks the weights of the classes for logits of this dtype.

    Raises:
        ShapeError, DTypeError: the weight has another shape or dtype.
    """
    if weight is None:
        return
    check_shape(op, "weight", weight, (classes,), "a number per class")
    if not weight.is_floating_point() or not (autocast or target.is_floating_point() or weight.dtype == dtype):
        expected = f"have the dtype {dtype} of the logits"
        raise DTypeError(wrong(op, "weight", expected, weight.dtype, f"use weight.to({dtype})"))
