"""Checks of the arguments of rms_norm and layer_norm that do not follow from the roles of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tridal.errors import DTypeError, ShapeError
from tridal.ops import INTEGERS, check_choice, check_number, check_tensor, wrong
from tridal.pytorch import tracing_state

CASTINGS = (None, "llama", "gemma")
DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""The dtypes of the tensors. torch's functions get all others."""


def check_sizes(op: str, input: Any, normalized_shape: Sequence[int]) -> None:
    """Raises ShapeError if normalized_shape is not the end of the input's shape, and LayoutError if it is not dense."""
    check_tensor(op, "input", input)
    if not isinstance(normalized_shape, (tuple, list)):
        hint = f"pass ({normalized_shape},)" if isinstance(normalized_shape, int) else ""
        raise TypeError(wrong(op, "normalized_shape", "be a tuple of ints", repr(normalized_shape), hint))
    for size in normalized_shape:
        check_number(op, "each size of normalized_shape", size, "be an int", types=INTEGERS)
    shape, dims = tuple(input.shape), len(normalized_shape)
    if not 1 <= dims <= len(shape) or shape[len(shape) - dims :] != tuple(normalized_shape):
        expected = f"be the last sizes (at least one) of input, which has the shape {shape}"
        raise ShapeError(wrong(op, "normalized_shape", expected, tuple(normalized_shape)))


def traced_sizes(normalized_shape: Any) -> Any:
    """The sizes as ints. While torch.jit.trace is active, the sizes of a tensor are tensors without dims."""
    if tracing_state() is None or not isinstance(normalized_shape, (tuple, list)):
        return normalized_shape
    return tuple(int(size) if isinstance(size, torch.Tensor) else size for size in normalized_shape)


def check_scaling(op: str, weight_offset: Any, casting: Any = None) -> None:
    """Raises TypeError or ValueError if an argument is wrong that torch's functions do not have."""
    check_number(op, "weight_offset", weight_offset)
    check_choice(op, "casting", casting, CASTINGS)


def has_mixed_dtypes(op: str, dtype: torch.dtype, parameters: Mapping[str, torch.Tensor | None]) -> bool:
    """Whether layer_norm's parameters have another dtype than the input (plus residual), whose dtype is given.

    Raises DTypeError unless all parameters have the dtype of the input, or float32 with a 16-bit input.
    """
    found = {name: parameter.dtype for name, parameter in parameters.items() if parameter is not None}
    mixed = any(other is not dtype for other in found.values())
    if mixed and not (dtype.itemsize == 2 and set(found.values()) == {torch.float32}):
        expected = f"have the dtype {dtype} of input" + ", or all torch.float32" * (dtype.itemsize == 2)
        got = " and ".join([f"{other}" for other in found.values()])
        raise DTypeError(wrong(op, " and ".join(found), expected, got))
    return mixed
