"""Checks of the arguments of cross-entropy and of its linear form. Errors have the types that torch's have."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch

from tridal.errors import DTypeError, LayoutError
from tridal.library.losses.maths import REDUCTIONS

Tensor = torch.Tensor
INDEX_DTYPES = (torch.int64, torch.uint8)


def check_numbers(reduction: object, ignore_index: object, label_smoothing: Any, z_loss: Any, softcap: Any) -> None:
    """Checks the arguments that are not tensors.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: the reduction is unknown, or softcap is not positive.
        RuntimeError: label_smoothing is not between 0 and 1, as torch raises it.
    """
    if not isinstance(reduction, str) or reduction not in REDUCTIONS:
        raise ValueError(f"{reduction!r} is not a valid value for reduction: expected {', '.join(REDUCTIONS)}")
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, torch.SymInt, Integral)):
        raise TypeError(f"ignore_index must be an int, got {ignore_index!r}")
    if not -(2**63) <= ignore_index < 2**63:  # type: ignore[operator]
        raise ValueError(f"ignore_index must fit in 64 bits, got {ignore_index!r}")
    for name, value in (("label_smoothing", label_smoothing), ("z_loss", z_loss), ("softcap", softcap)):
        if value is not None:
            check_number(name, value)
    if label_smoothing is None or not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    if z_loss is None:
        raise TypeError("z_loss must be a number, got None: pass 0.0 for a loss without it")
    if softcap is not None and not 0 < softcap < float("inf"):
        raise ValueError(f"softcap must be a positive number or None, got {softcap!r}")


def check_number(name: str, value: object) -> None:
    """Raises TypeError if the value is no real number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymFloat, Real)):
        raise TypeError(f"{name} must be a number, got {value!r}")


def check_tensors(op: str, **tensors: object) -> None:
    """Checks that all arguments are dense tensors on one device. Weights and biases may be None.

    Messages call what is computed `op`.

    Raises:
        TypeError: an argument is not a tensor.
        LayoutError: a tensor is sparse.
        RuntimeError: the tensors are on different devices.
    """
    main, first = next(iter(tensors.items()))
    for argument, tensor in tensors.items():
        if tensor is None and argument in ("linear_bias", "weight"):
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{argument} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.layout is not torch.strided:
            raise LayoutError(f"{op} is not defined for {argument} with layout {tensor.layout}: use to_dense()")
        assert isinstance(first, Tensor)
        if tensor.device != first.device:
            raise RuntimeError(f"{argument} is on {tensor.device}, but {main} is on {first.device}: move it there")


def check_targets(
    shape: Sequence[int], dtype: torch.dtype, target: Tensor, weight: Tensor | None, ignore_index: int, autocast: bool
) -> None:
    """Checks the target and the weights of the classes for logits of this shape and dtype.

    Raises:
        DTypeError: the loss is not defined for a dtype.
        ValueError: the target has another number of rows.
        RuntimeError: the target or the weight has another shape, or ignore_index is given for probabilities.
    """
    if not dtype.is_floating_point:
        raise DTypeError(f"expected input with a floating-point dtype, got {dtype}")
    if not shape:
        raise RuntimeError("the loss needs classes: expected input of shape (C,), (N, C) or (N, C, d1, ...)")
    dim = min(len(shape) - 1, 1)
    _check_target(shape, target, ignore_index, dim)
    if weight is None:
        return
    if tuple(weight.shape) != (shape[dim],):
        raise RuntimeError(
            f"weight tensor should be defined either for all {shape[dim]} classes or no classes but got weight "
            f"tensor of shape: {list(weight.shape)}"
        )
    if not weight.is_floating_point() or not (autocast or target.is_floating_point() or weight.dtype == dtype):
        raise DTypeError(
            f"expected a weight of the dtype of the logits, {dtype}, but got {weight.dtype}: use weight.to({dtype})"
        )


def _check_target(shape: Sequence[int], target: Tensor, ignore_index: int, dim: int) -> None:
    if target.shape == shape:
        if not target.is_floating_point():
            raise DTypeError(
                f"Expected floating point type for target with class probabilities, got {target.dtype}: a target of "
                f"the shape of the logits, {tuple(shape)}, holds probabilities"
            )
        if ignore_index >= 0:
            raise RuntimeError("ignore_index is not supported for floating point target: set the loss's weight instead")
        return
    rows = (*shape[:dim], *shape[dim + 1 :])
    if len(shape) > 1 and (target.dim() == 0 or target.shape[0] != shape[0]):
        raise ValueError(
            f"Expected input batch_size ({shape[0]}) to match target batch_size "
            f"({target.shape[0] if target.dim() else 'none, it has no dims'})"
        )
    if len(shape) == 1 and target.dim() == 1 and target.shape[0] != 1:
        raise ValueError(f"For 1D input, 1D target must have size 1, but got target size: {target.shape[0]}")
    if tuple(target.shape) != rows and not (len(shape) == 1 and tuple(target.shape) == (1,)):
        hint = ": dim 1 of the logits has the classes; if the last dim has them, use logits.movedim(-1, 1)"
        raise RuntimeError(
            f"Expected target size {list(rows)} for indices or {list(shape)} for probabilities, "
            f"got {list(target.shape)}{hint if tuple(target.shape) == tuple(shape[:-1]) else ''}"
        )
    check_index_dtype(target)


def check_index_dtype(target: Tensor) -> None:
    """Raises DTypeError if target indices have another dtype than int64 or uint8."""
    if target.dtype not in INDEX_DTYPES:
        raise DTypeError(f"expected target dtype to be Long or Byte, but got {target.dtype}: use target.long()")


def check_range(target: Tensor, classes: int, ignore_index: int | None) -> None:
    """Raises IndexError if a target index is not one of a class. This waits for the device."""
    outside = (target != ignore_index) & ((target < 0) | (target >= classes))
    if outside.any():
        raise IndexError(f"Target {int(target[outside][0])} is out of bounds: expected 0 to {classes - 1}")
