"""Checks of the arguments of an op and of its gradient."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tridal.errors import DimensionError, DTypeError, TensorDeviceError
from tridal.kernels.row_kernel import RowKernel
from tridal.ops.argument_checks import (
    INTEGERS,
    check_dtype,
    check_floating,
    check_index,
    check_shape,
    check_tensor,
    wrong,
)
from tridal.ops.scale_mask import check_scale_mask
from tridal.ops.signature import Arguments, Rows, Signature


def check(input: torch.Tensor, dim: int, dtype: torch.dtype | None, op: str, name: str = "input") -> None:
    """Checks a tensor, dim and dtype of an op. `name` is that of the tensor.

    Raises:
        TypeError: an argument has the wrong type.
        DTypeError, DimensionError, LayoutError: the op is not defined for the argument.
    """
    check_tensor(op, name, input)
    check_dtype(op, "dtype", dtype)
    if isinstance(dim, bool) or not (isinstance(dim, INTEGERS) or _is_index(dim)):
        raise TypeError(wrong(op, "dim", "be an int", repr(dim)))
    if torch.compiler.is_dynamo_compiling() and not isinstance(dim, (int, torch.SymInt)):
        raise TypeError(f"{op}: dim must be an int, but torch.compile traces numpy's as a tensor: convert it first")
    if dtype is None:
        check_floating(op, name, input, "" if input.is_complex() else "pass dtype=, for example dtype=torch.float32")
    elif input.is_complex():
        raise DTypeError(wrong(op, name, "have a real dtype", input.dtype))
    rank = max(input.dim(), 1)
    if not -rank <= operator.index(dim) < rank:
        expected = f"be from {-rank} to {rank - 1} for {name} of shape {tuple(input.shape)}"
        raise DimensionError(wrong(op, "dim", expected, dim))


def _is_index(value: Any) -> bool:
    """Whether a value that is not an int works as an index, as a tensor with one integer does."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return not (isinstance(value, torch.Tensor) and value.dtype is torch.bool)


def check_tensors(signature: Signature, **tensors: Any) -> None:
    """Checks that arguments are dense tensors on one device. Those that the signature calls optional may be None.

    Raises:
        TypeError, LayoutError: an argument is no dense tensor.
        TensorDeviceError: the tensors are on different devices.
    """
    optional = signature.optional
    main, first = "", None
    for name, tensor in tensors.items():
        if tensor is None and name in optional:
            continue
        check_tensor(signature.name, name, tensor, name in optional)
        if first is None:
            main, first = name, tensor
        elif tensor.device != first.device:
            expected = f"be on {first.device}, as {main} is"
            raise TensorDeviceError(wrong(signature.name, name, expected, tensor.device))


def check_arguments(arguments: Arguments) -> None:
    """Checks the arguments of a registered op, or of its gradient. Shapes follow from the roles of the tensors.

    The argument `dtype` may be None, as in the functions of ops. Then tensors must have floating-point dtypes.

    Raises:
        TypeError, DTypeError, DimensionError, LayoutError: see `check` and `check_scale_mask`.
        ShapeError: a tensor has another shape than its role requires.
        TensorDeviceError: the tensors are on different devices.
    """
    signature, named, main = arguments.signature, arguments.named, arguments.main
    op = signature.name
    check_tensors(signature, **{a.name: named[a.name] for a in signature.arguments if a.role not in (None, "mask")})
    roles = arguments.roles  # after the check of tensors, because a role may depend on a tensor
    tensors = {name: named[name] for name, role in roles.items() if role not in (None, "mask")}
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if "dim" in named:
        for name, tensor in present.items():
            if roles[name] not in ("index", "top_index"):
                check(tensor, named["dim"] if roles[name] == "element" else -1, named["dtype"], op, name)
    if "dims" in named and not 1 <= named["dims"] <= main.dim():
        expected = f"be from 1 to {main.dim()}, the dims of {signature.names[signature.main]}"
        raise DimensionError(wrong(op, "dims", expected, named["dims"]))
    if "zero_masked_rows" in named:
        rows = "zero" if named["zero_masked_rows"] else "nan"
        check_scale_mask(op, main, named["dim"], named["scale"], named["mask"], named["causal"], rows)
    if len(present) < 2:
        return
    for name, tensor in present.items():
        if roles[name] in ("index", "top_index"):
            check_index(op, name, tensor)
        elif roles[name] != "whole":
            check_floating(op, name, tensor)
    # A gradient that is added may have another shape: then it is left out.
    added, first = None if signature.kernel is None else signature.kernel.added, signature.names[signature.main]
    others = {name: tensor for name, tensor in present.items() if name not in (added, first)}
    _check_shapes(op, (first, main), arguments.rows, roles, others, named.get("k", 0))


def _check_shapes(
    op: str, main: tuple[str, torch.Tensor], rows: Rows, roles: Mapping[str, Any], tensors: Mapping[str, torch.Tensor],
    k: int = 0,
) -> None:  # fmt: skip
    """Checks the shapes of tensors with roles. One with a number per row may have any shape with as many elements."""
    name, shape = main[0], main[1].shape
    shapes = rows.shapes(shape, k)
    for key, tensor in tensors.items():
        role = roles[key]
        expected = shapes.get(role)
        if expected is None or tensor.shape == expected:
            continue
        if role not in ("row", "index") or tensor.numel() != math.prod(expected):
            per = {"index": "row", "block": "column and block"}.get(role, role)
            held = "one number for" if role == "number" else f"a number per {per} of"
            held = f"{k} numbers per row of" if role in ("top", "top_index") else held
            where = f"{name}, which has the shape {tuple(shape)} and rows along dim {rows.first}"
            check_shape(op, key, tensor, expected, f"{held} {where}")


def check_shapes(
    kernel: RowKernel, dim: int, tensors: Sequence[torch.Tensor], out: Sequence[torch.Tensor] = ()
) -> None:
    """Checks the shapes of the tensors that a kernel reads along `dim`, in the order of `RowKernel.tensors`.

    `out` are tensors that it writes, in the order of `RowKernel.writes`. Tensors with a number per row may have any
    shape with as many elements, because kernels read them in order.

    Raises:
        ShapeError: a tensor has another shape than its kind requires. A kernel would read memory beyond its end.
    """
    kinds = zip(("element", "element", "row", "index", "top", "top_index", "column"), kernel.tensors[4:], strict=True)
    roles = {name: role for role, names in kinds for name in names}
    given = {n: t for n, t in zip(roles, tensors, strict=True) if n not in kernel.for_all_rows}
    main = next(iter(given.items()))
    _check_shapes(kernel.name, main, Rows(dim, 1), roles, given, kernel.top)
    written = dict(zip(kernel.writes, out, strict=False))
    _check_shapes(kernel.name, main, Rows(dim, 1), dict.fromkeys(written, "element"), written)
