"""Checks of the arguments of an op and of its gradient."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from tridal.errors import DimensionError, DTypeError, LayoutError, ShapeError, TensorDeviceError
from tridal.ops.op import Op
from tridal.ops.scale_mask import check_scale_mask
from tridal.ops.signature import Rows, Signature
from tridal.runtime.row_kernel import RowKernel


def check(input: torch.Tensor, dim: int, dtype: torch.dtype | None, op: str, name: str = "input") -> None:
    """Checks a tensor, dim and dtype of an op. `name` is that of the tensor.

    Raises:
        TypeError: an argument has the wrong type.
        DTypeError, DimensionError, LayoutError: the op is not defined for the argument.
    """
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"{op}: {name} must be a torch.Tensor, got {type(input).__name__}")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"{op}: dtype must be a torch.dtype or None, got {dtype!r}")
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise TypeError(f"{op}: dim must be an int, got {dim!r}")
    if torch.compiler.is_dynamo_compiling() and not isinstance(dim, (int, torch.SymInt)):
        raise TypeError(f"{op}: dim must be an int, but torch.compile traces numpy's as a tensor: convert it first")
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
    rank, shape = max(input.dim(), 1), tuple(input.shape)
    if not -rank <= operator.index(dim) < rank:
        raise DimensionError(
            f"{op}: dim {dim} is out of range for a tensor of shape {shape}: expected {-rank} to {rank - 1}"
        )


def check_arguments(op: Op, signature: Signature, arguments: tuple[Any, ...]) -> None:
    """Checks the arguments of a registered op, or of its gradient.

    Raises:
        TypeError, DTypeError, DimensionError, LayoutError: see `check` and `check_scale_mask`.
        ShapeError: a tensor has another shape than its role requires.
        TensorDeviceError: the tensors are on different devices.
    """
    named, main = signature.named(arguments), arguments[signature.main]
    roles = dict(zip(signature.names, signature.roles(named), strict=True))
    present = {n: named[n] for n, role in roles.items() if role not in (None, "mask") and named[n] is not None}
    if "dim" in named:
        for name, tensor in present.items():
            check(tensor, named["dim"] if roles[name] == "element" else -1, named["dtype"], signature.name, name)
    if signature is op.signature and op.scale_mask:
        rows = "zero" if named["zero_masked_rows"] else "nan"
        check_scale_mask(main, named["dim"], named["scale"], named["mask"], named["causal"], rows)
    if len(present) == 1:
        return
    dtypes = [tensor.dtype for name, tensor in present.items() if roles[name] not in ("index", "whole")]
    if not all(dtype.is_floating_point for dtype in dtypes):
        given = " and ".join([f"{dtype}" for dtype in dtypes])
        all_of_them = "both" if len(dtypes) == 2 else "all"
        raise DTypeError(f"{signature.name} of {given} is not defined: {all_of_them} must be floating-point dtypes")
    _check_roles(signature, arguments, roles, present)
    for name, tensor in present.items():
        if tensor.device != main.device:
            raise TensorDeviceError(
                f"{signature.name} needs tensors on one device, got {tensor.device} and {main.device}"
                if len(present) == 2
                else f"{signature.name} needs tensors on one device, got {name} on {tensor.device} and others on "
                f"{main.device}"
            )


def _check_roles(
    signature: Signature, arguments: tuple[Any, ...], roles: dict[str, Any], present: dict[str, torch.Tensor]
) -> None:
    """Checks the shapes of tensors. A gradient that is added may have another shape: then it is left out."""
    rows, shape = signature.rows(arguments), arguments[signature.main].shape
    added = None if signature.kernel is None else signature.kernel.added
    main, shapes = signature.names[signature.main], rows.shapes(shape)
    for name, tensor in present.items():
        if name != added and roles[name] in shapes:
            where = f"{main} of shape {tuple(shape)} along dim {rows.first}"
            _check_shape(signature.name, name, tensor, roles[name], shapes[roles[name]], where)


def _check_shape(op: str, name: str, tensor: torch.Tensor, role: str, expected: tuple[int, ...], where: str) -> None:
    """Checks the shape of a tensor. One with a number per row may have any shape with as many elements."""
    of_rows = role in ("row", "index") and tensor.numel() == math.prod(expected)
    if tensor.shape != expected and not of_rows:
        held = {"index": "has a number per row", "number": "is one number"}.get(role, f"has a number per {role}")
        raise ShapeError(f"{op}: {name} {held}: expected the shape {expected}, got {tuple(tensor.shape)}, with {where}")


def check_shapes(
    kernel: RowKernel, dim: int, tensors: Sequence[torch.Tensor], out: Sequence[torch.Tensor] = ()
) -> None:
    """Checks the shapes of the tensors that a kernel reads along `dim`, in the order of `RowKernel.tensors`.

    `out` are tensors that it writes, in the order of `RowKernel.writes`. Tensors with a number per row may have any
    shape with as many elements, because kernels read them in order.

    Raises:
        ShapeError: a tensor has another shape than its kind requires. A kernel would read memory beyond its end.
    """
    shape, shapes = tensors[0].shape, Rows(dim, 1).shapes(tensors[0].shape)
    kinds = zip(("element", "element", "row", "index", "column"), kernel.tensors[3:], strict=True)
    named = [(name, role) for role, names in kinds for name in names]
    where = f"{named[0][0]} of shape {tuple(shape)} along dim {dim}"
    given = [*zip(named, tensors, strict=True), *zip(((name, "element") for name in kernel.writes), out, strict=False)]
    for (name, role), tensor in given:
        _check_shape(kernel.name, name, tensor, role, shapes[role], where)
