"""Checks of the arguments of an op and of its gradient."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch

from tridal.errors import DimensionError, DTypeError, LayoutError, ShapeError, TensorDeviceError
from tridal.ops.scale_mask import check_scale_mask
from tridal.pytorch.op_call import OpCall
from tridal.runtime.row_kernel import RowKernel


def check(input: torch.Tensor, dim: int, dtype: torch.dtype | None, op: str = "softmax") -> None:
    """Checks input, dim and dtype of an op.

    Raises:
        TypeError: an argument has the wrong type.
        DTypeError, DimensionError, LayoutError: the op is not defined for the argument.
    """
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"input must be a torch.Tensor, got {type(input).__name__}")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype or None, got {dtype!r}")
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise TypeError(f"dim must be an int, got {dim!r}")
    if torch.compiler.is_dynamo_compiling() and not isinstance(dim, (int, torch.SymInt)):
        raise TypeError("dim must be an int, but torch.compile traces numpy's as a tensor: convert it before the call")
    if input.layout is not torch.strided:
        sparse = f"use torch.sparse.{op}, or to_dense()" if hasattr(torch.sparse, op) else "use to_dense()"
        raise LayoutError(f"{op} of a tensor with layout {input.layout} is not defined here: {sparse}")
    if input.dtype.is_complex or (dtype is not None and dtype.is_complex):
        raise DTypeError(f"{op} is not defined for complex numbers (input {input.dtype}, dtype {dtype})")
    if dtype is None and not input.dtype.is_floating_point:
        raise DTypeError(
            f"{op} of {input.dtype} is not defined: pass a floating-point dtype=, for example dtype=torch.float32"
        )
    if dtype is not None and not dtype.is_floating_point:
        raise DTypeError(f"{op} can't give {dtype}: dtype must be a floating-point dtype")
    rank = max(input.dim(), 1)
    if not -rank <= operator.index(dim) < rank:
        raise DimensionError(
            f"dim {dim} is out of range for a tensor of shape {tuple(input.shape)}: expected {-rank} to {rank - 1}"
        )


def check_call(call: OpCall, *tensors: torch.Tensor) -> None:
    """Checks a call of an op with its input, or a call of its gradient with dY and the saved tensor.

    Raises:
        TypeError, DTypeError, DimensionError, LayoutError: see `check` and `check_scale_mask`.
        ShapeError, TensorDeviceError: dY and the saved tensor have different shapes, or are on different devices.
    """
    name = call.kernel.name
    for tensor in tensors:
        check(tensor, call.dim, call.dtype, name)
    if call.modification is not None:
        scale, mask, causal, zero_masked_rows = call.modification
        check_scale_mask(tensors[0], call.dim, scale, mask, causal, "zero" if zero_masked_rows else "nan")
    if len(tensors) == 1:
        return
    grad, saved = tensors
    if not (grad.dtype.is_floating_point and saved.dtype.is_floating_point):
        raise DTypeError(f"{name} of {grad.dtype} and {saved.dtype} is not defined: both must be floating-point dtypes")
    check_shapes(call.kernel, call.dim % max(grad.dim(), 1), tensors)
    if grad.device != saved.device:
        raise TensorDeviceError(f"{name} needs tensors on one device, got {grad.device} and {saved.device}")


def check_shapes(kernel: RowKernel, dim: int, tensors: Sequence[torch.Tensor]) -> None:
    """Checks the shapes of the tensors that a kernel reads along `dim`, in the order of `RowKernel.tensors`.

    Tensors with a number per row may have any shape with as many elements, because kernels read them in order.

    Raises:
        ShapeError: a tensor has another shape than its kind requires. A kernel would read memory beyond its end.
    """
    shape = tensors[0].shape
    *_, reads, added, row_reads, row_index, column_reads = kernel.tensors
    rows = (*shape[:dim], *shape[dim + 1 :])
    kinds = {"element": ((*reads, *added), shape), "row": ((*row_reads, *row_index), rows)}
    kinds["column"] = column_reads, shape[dim : dim + 1]
    described = [(name, kind, tuple(expected)) for kind, (names, expected) in kinds.items() for name in names]
    for (name, kind, expected), tensor in zip(described, tensors, strict=True):
        if tensor.shape != expected and not (kind == "row" and tensor.numel() == math.prod(expected)):
            raise ShapeError(
                f"{kernel.name}: {name} has a number per {kind}: expected the shape {expected}, got "
                f"{tuple(tensor.shape)}, with {described[0][0]} of shape {tuple(shape)} along dim {dim}"
            )
