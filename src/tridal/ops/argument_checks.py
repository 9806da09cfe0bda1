"""Checks of single arguments. All ops use them, so that errors have the same words.

A message is "OP: ARGUMENT must EXPECTED, got VALUE", for example "f: dim must be an int, got 1.0". It may end with a
hint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import torch

from tridal.errors import DTypeError, LayoutError, ShapeError

INTEGERS: tuple[type, ...] = (int, torch.SymInt, Integral)
NUMBERS: tuple[type, ...] = (int, float, torch.SymFloat, torch.SymInt, Real)


def wrong(op: str, argument: str, expected: str, got: object, hint: str = "") -> str:
    """Writes the message for a wrong argument. `expected` continues "must", for example "be an int".

    Example:
        >>> tridal.ops.wrong("norm", "eps", "be a number", "None", "leave it out for the default")
        'norm: eps must be a number, got None: leave it out for the default'
    """
    return f"{op}: {argument} must {expected}, got {got}{hint and f': {hint}'}"


def check_tensor(op: str, name: str, value: Any, optional: bool = False) -> None:
    """Raises TypeError if an argument is not a tensor, and LayoutError if it is nested or sparse.

    Example:
        >>> tridal.ops.check_tensor("norm", "input", [1.0])
        Traceback (most recent call last):
        TypeError: norm: input must be a torch.Tensor, got list
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(wrong(op, name, f"be a torch.Tensor{' or None' * optional}", type(value).__name__))
    if value.is_nested:
        raise LayoutError(wrong(op, name, "be a dense tensor", "a nested one", f"use {name}.to_padded_tensor(0.0)"))
    if value.layout is not torch.strided:
        hint = f"use {name}.to_dense()"
        if hasattr(torch.sparse, op) and str(value.layout).startswith("torch.sparse_"):  # mkldnn is not sparse
            coordinates = name if value.layout is torch.sparse_coo else f"{name}.to_sparse()"
            hint += f" or torch.sparse.{op}({coordinates}, dim), where absent elements are -inf"
        raise LayoutError(wrong(op, name, "be a dense tensor", f"the layout {value.layout}", hint))


def check_shape(op: str, name: str, tensor: torch.Tensor, expected: Sequence[int], hint: str = "") -> None:
    """Raises ShapeError if a tensor has a different shape.

    Example:
        >>> tridal.ops.check_shape("norm", "weight", torch.ones(3), (4,))
        Traceback (most recent call last):
        tridal.errors.ShapeError: norm: weight must have the shape (4,), got (3,)
    """
    if tensor.shape != tuple(expected):
        raise ShapeError(wrong(op, name, f"have the shape {tuple(expected)}", tuple(tensor.shape), hint))


def check_floating(op: str, name: str, tensor: torch.Tensor, hint: str = "") -> None:
    """Raises DTypeError if the dtype of a tensor is not floating-point.

    Example:
        >>> tridal.ops.check_floating("norm", "input", torch.tensor([1]))
        Traceback (most recent call last):
        tridal.errors.DTypeError: norm: input must have a floating-point dtype, got torch.int64
    """
    if not tensor.is_floating_point():
        raise DTypeError(wrong(op, name, "have a floating-point dtype", tensor.dtype, hint))


def check_index(op: str, name: str, tensor: torch.Tensor) -> None:
    """Raises DTypeError if a tensor of indices is neither int64 nor uint8.

    Example:
        >>> tridal.ops.check_index("loss", "target", torch.tensor([1.0]))
        Traceback (most recent call last):
        tridal.errors.DTypeError: loss: target must have the dtype torch.int64 or torch.uint8, got torch.float32...
    """
    if tensor.dtype not in (torch.int64, torch.uint8):
        expected = "have the dtype torch.int64 or torch.uint8"
        raise DTypeError(wrong(op, name, expected, tensor.dtype, f"use {name}.long()"))


def check_dtype(op: str, name: str, value: Any) -> None:
    """Raises DTypeError, which is a TypeError, if an argument is neither a floating-point dtype nor None.

    Example:
        >>> tridal.ops.check_dtype("softmax", "dtype", torch.int64)
        Traceback (most recent call last):
        tridal.errors.DTypeError: softmax: dtype must be a floating-point torch.dtype or None, got torch.int64
    """
    if value is not None and not (isinstance(value, torch.dtype) and value.is_floating_point):
        raise DTypeError(wrong(op, name, "be a floating-point torch.dtype or None", repr(value)))


def check_number(
    op: str, name: str, value: Any, expected: str = "be a number", valid: Callable[[Any], bool] | None = None,
    error: type[Exception] = ValueError, types: tuple[type, ...] = NUMBERS,
) -> None:  # fmt: skip
    """Raises TypeError if an argument is not a number, and `error` if it is not `valid`.

    Example:
        >>> tridal.ops.check_number("norm", "eps", -1.0, "be at least 0", lambda eps: eps >= 0)
        Traceback (most recent call last):
        ValueError: norm: eps must be at least 0, got -1.0
    """
    if isinstance(value, bool) or not isinstance(value, types):
        raise TypeError(wrong(op, name, expected, repr(value)))
    if valid is not None and not valid(value):
        raise error(wrong(op, name, expected, repr(value)))


def check_bool(op: str, name: str, value: object) -> None:
    """Raises TypeError if an argument is not a bool. It rejects numbers and strings, because even "no" is true.

    Example:
        >>> tridal.ops.check_bool("softmax", "causal", "no")
        Traceback (most recent call last):
        TypeError: softmax: causal must be a bool, got 'no'
    """
    if not isinstance(value, bool):
        raise TypeError(wrong(op, name, "be a bool", repr(value)))


def check_choice(op: str, name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raises ValueError if an argument is not one of the choices. A choice of 1 does not match True or 1.0.

    Example:
        >>> tridal.ops.check_choice("norm", "casting", "bert", (None, "llama"))
        Traceback (most recent call last):
        ValueError: norm: casting must be None or 'llama', got 'bert'
    """
    types = [INTEGERS if type(choice) is int else type(choice) for choice in choices]
    equal = (isinstance(value, kind) and value == choice for kind, choice in zip(types, choices, strict=True))
    if isinstance(value, bool) or not any(equal):
        *others, last = map(repr, choices)
        raise ValueError(wrong(op, name, f"be {', '.join(others)} or {last}", repr(value)))
