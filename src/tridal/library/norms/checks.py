"""Checks of the arguments of rms_norm and layer_norm. The messages begin with torch's."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch

from tridal.errors import DTypeError, LayoutError, ShapeError, TensorDeviceError
from tridal.pytorch import tracing_state

CASTINGS = (None, "llama", "gemma")
DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""The dtypes of the tensors. torch's functions get all others."""


def check_norm(input: Any, normalized_shape: Sequence[int], eps: Any, **tensors: Any) -> None:
    """Checks the arguments that all norms have. `tensors` are the optional ones by name.

    Raises:
        TypeError: an argument has the wrong type.
        ShapeError: normalized_shape is not the end of the input's shape, or a tensor has another shape.
        TensorDeviceError: a tensor is on another device than the input.
        LayoutError: a tensor is not dense.
    """
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"input must be a torch.Tensor, got {type(input).__name__}")
    if not isinstance(normalized_shape, (tuple, list)):
        hint = f": pass ({normalized_shape},)" if isinstance(normalized_shape, int) else ""
        raise TypeError(f"normalized_shape must be a tuple of ints, got {type(normalized_shape).__name__}{hint}")
    for size in normalized_shape:
        if isinstance(size, bool) or not isinstance(size, (int, torch.SymInt, Integral)):
            raise TypeError(f"normalized_shape must be a tuple of ints, but it holds {size!r}")
    if isinstance(eps, bool) or not isinstance(eps, (int, float, torch.SymFloat, torch.SymInt, Real)):
        raise TypeError(f"eps must be a float, got {eps!r}")
    wanted, shape = list(normalized_shape), list(input.shape)
    if not wanted:
        raise ShapeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
            "normalized_shape = []"
        )
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor or None, got {type(tensor).__name__}")
        if name == "residual":
            if list(tensor.shape) != shape:
                raise ShapeError(
                    f"Expected residual to be of same shape as input, but got residual of shape {list(tensor.shape)} "
                    f"and input of shape {shape}: expand it first"
                )
        elif list(tensor.shape) != wanted:
            raise ShapeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(tensor.shape)} and normalized_shape = {wanted}"
            )
    if len(shape) < len(wanted) or shape[len(shape) - len(wanted) :] != wanted:
        sizes = ", ".join([f"{size}" for size in wanted])  # dynamo of torch 2.11 cannot trace `str`
        raise ShapeError(
            f"Given normalized_shape={wanted}, expected input with shape [*, {sizes}], but got "
            f"input of size {shape}: normalized_shape has to be the last sizes of the input"
        )
    for name, tensor in (("input", input), *tensors.items()):
        if tensor is None:
            continue
        if tensor.device != input.device:
            raise TensorDeviceError(f"{name} is on {tensor.device}, but input is on {input.device}: move one of them")
        if tensor.layout is not torch.strided:
            raise LayoutError(f"{name} has the layout {tensor.layout}, for which norms are not defined: use to_dense()")


def traced_sizes(normalized_shape: Any) -> Any:
    """Returns the sizes as ints. While torch.jit.trace is active, the sizes of a tensor are tensors without dims."""
    if tracing_state() is None or not isinstance(normalized_shape, (tuple, list)):
        return normalized_shape
    return tuple(int(size) if isinstance(size, torch.Tensor) else size for size in normalized_shape)


def check_scaling(weight_offset: Any, casting: Any) -> None:
    """Checks the arguments that only rms_norm has.

    Raises:
        TypeError, ValueError: the argument of that name is wrong.
    """
    if isinstance(weight_offset, bool) or not isinstance(weight_offset, (int, float, torch.SymFloat, Real)):
        raise TypeError(f"weight_offset must be a number, got {weight_offset!r}")
    if casting not in CASTINGS:
        raise ValueError(f"casting must be None, 'llama' or 'gemma', got {casting!r}")


def check_parameter_dtypes(dtype: torch.dtype, **parameters: torch.Tensor | None) -> None:
    """Checks the dtypes of layer_norm's parameters, for an input (plus residual) of this dtype.

    Raises:
        DTypeError: a parameter has neither the input's dtype, nor do all have float32 with a 16-bit input.
    """
    found = {name: parameter.dtype for name, parameter in parameters.items() if parameter is not None}
    mixed = dtype.itemsize == 2 and set(found.values()) == {torch.float32}
    if not mixed and any(other is not dtype for other in found.values()):
        given = ", ".join(f"{name} has {other}" for name, other in found.items())
        also = ", or float32 for all of them" if dtype.itemsize == 2 else ""
        raise DTypeError(f"layer_norm of {dtype} takes parameters of {dtype}{also}, but {given}")
