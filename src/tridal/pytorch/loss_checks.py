"""Checks of the arguments of cross-entropy and of its linear form. Errors have the types that torch's have."""

from __future__ import annotations

import torch

from tridal.errors import DTypeError, LayoutError
from tridal.ops.cross_entropy import REDUCTIONS, classes_dim

Tensor = torch.Tensor
INDEX_DTYPES = (torch.int64, torch.uint8)


def check_numbers(
    reduction: object, ignore_index: object, label_smoothing: object, z_loss: object, softcap: object
) -> None:
    """Checks the arguments that are not tensors.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: the reduction is unknown, or softcap is not positive.
        RuntimeError: label_smoothing is not between 0 and 1, as torch raises it.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"{reduction!r} is not a valid value for reduction: expected {', '.join(REDUCTIONS)}")
    if isinstance(ignore_index, bool) or not hasattr(ignore_index, "__index__"):
        raise TypeError(f"ignore_index must be an int, got {ignore_index!r}")
    for name, value in (("label_smoothing", label_smoothing), ("z_loss", z_loss), ("softcap", softcap)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise TypeError(f"{name} must be a number, got {value!r}")
    if not isinstance(label_smoothing, (int, float)) or not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    if z_loss is None:
        raise TypeError("z_loss must be a number, got None: pass 0.0 for a loss without it")
    if isinstance(softcap, (int, float)) and not 0 < softcap < float("inf"):
        raise ValueError(f"softcap must be a positive number or None, got {softcap!r}")


def check_tensors(
    input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, autocast: bool, name: str = "input"
) -> None:
    """Checks logits, targets and the weights of classes. `name` is the name of the logits in messages.

    Raises:
        TypeError: an argument is not a tensor.
        DTypeError, LayoutError: the loss is not defined for a dtype or a layout.
        ValueError: the target has another number of rows.
        RuntimeError: the target or the weight has another shape or device, or ignore_index is given for probabilities.
    """
    for argument, tensor in ((name, input), ("target", target), ("weight", weight)):
        if not isinstance(tensor, Tensor) and (argument != "weight" or tensor is not None):
            raise TypeError(f"{argument} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor is not None and tensor.layout is not torch.strided:
            raise LayoutError(
                f"cross_entropy of a {argument} with layout {tensor.layout} is not defined: use to_dense()"
            )
        if tensor is not None and tensor.device != input.device:
            raise RuntimeError(f"{argument} is on {tensor.device}, but {name} is on {input.device}: move it there")
    if not input.is_floating_point():
        raise DTypeError(f"cross_entropy of {input.dtype} is not defined: {name} must have a floating-point dtype")
    if input.dim() == 0:
        raise RuntimeError("cross_entropy needs classes: expected logits of shape (C,), (N, C) or (N, C, d1, ...)")
    dim = classes_dim(input)
    _check_target(input, target, ignore_index, dim)
    if weight is None:
        return
    if tuple(weight.shape) != (input.shape[dim],):
        raise RuntimeError(
            f"weight tensor should be defined either for all {input.shape[dim]} classes or no classes but got weight "
            f"tensor of shape: {list(weight.shape)}"
        )
    if not weight.is_floating_point() or not (autocast or target.is_floating_point() or weight.dtype == input.dtype):
        raise DTypeError(
            f"expected a weight of the dtype of {name}, {input.dtype}, but got {weight.dtype}: "
            f"use weight.to({name}.dtype)"
        )


def _check_target(input: Tensor, target: Tensor, ignore_index: int, dim: int) -> None:
    if target.shape == input.shape:
        if not target.is_floating_point():
            raise DTypeError(
                f"Expected floating point type for target with class probabilities, got {target.dtype}: a target of "
                f"the shape of the logits, {tuple(input.shape)}, holds probabilities"
            )
        if ignore_index >= 0:
            raise RuntimeError("ignore_index is not supported for floating point target: set the loss's weight instead")
        return
    rows = (*input.shape[:dim], *input.shape[dim + 1 :])
    if input.dim() > 1 and (target.dim() == 0 or target.shape[0] != input.shape[0]):
        raise ValueError(
            f"Expected input batch_size ({input.shape[0]}) to match target batch_size "
            f"({target.shape[0] if target.dim() else 'none, it has no dims'})"
        )
    if tuple(target.shape) != rows and not (input.dim() == 1 and tuple(target.shape) == (1,)):
        raise RuntimeError(
            f"Expected target size {list(rows)} for indices or {list(input.shape)} for probabilities, "
            f"got {list(target.shape)}"
        )
    if target.dtype not in INDEX_DTYPES:
        raise DTypeError(f"expected target dtype to be Long or Byte, but got {target.dtype}: use target.long()")


def check_range(target: Tensor, classes: int, ignore_index: int) -> None:
    """Raises IndexError if a target index is not one of a class. This waits for the device."""
    outside = (target != ignore_index) & ((target < 0) | (target >= classes))
    if outside.any():
        raise IndexError(f"Target {int(target[outside][0])} is out of bounds: expected 0 to {classes - 1}")
