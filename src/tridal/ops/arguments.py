"""The arguments and the results of an op: tensors with a role, and numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from tridal.ops.row_reduce import accumulator

Role: TypeAlias = Literal[
    "element", "row", "column", "block", "index", "top", "top_index", "number", "mask", "whole"
]  # fmt: skip
"""What a tensor holds: a number per element, per row, per column, per column and block of rows, a column index per row,
k numbers or column indices per row, where k is an argument of the op, one number of all rows, a mask that is broadcast
to the elements, or something else ("whole")."""
Named: TypeAlias = Mapping[str, Any]
"""The arguments of a call by name."""
RoleOf: TypeAlias = Role | Callable[[Named], Role]
"""A role, or a function that returns the role in a call."""

_TYPES: Mapping[type, str] = {bool: "bool", int: "int", float: "float", str: "str"}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a registered op. `per_element`, `number` and others make one.

    Attributes:
        name: the name, which is that of the function's argument and, for a number, of the kernels' parameter.
        type: the type in torch's schema, without "?".
        role: what a tensor holds, see `Role`, or a function of the arguments by name; None for other types.
        optional: whether the argument may be None.
        differentiable: whether the op's gradient kernel computes a gradient of the tensor.
        default: the value of a number that the caller leaves out. None means that it is required.
        neutral: the value of a number that changes nothing, so that a kernel is compiled without the number.
        range: the smallest and the largest value that tests draw for a number, or all values of a string.
        per_block: whether a tensor with a number per element may have the role "block" in a call, see `per_element`.
    """

    name: str
    type: str = "Tensor"
    role: RoleOf | None = None
    optional: bool = False
    differentiable: bool = False
    default: Any = None
    neutral: float | None = None
    range: tuple[Any, ...] | None = None
    per_block: bool = False

    @property
    def schema(self) -> str:
        """The argument in torch's schema."""
        default = "" if self.default is None else f"={self.default!r}"
        return f"{self.type}{'?' * self.optional} {self.name}{'=None' if self.role == 'mask' else default}"


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a registered op.

    Attributes:
        name: the name, by which the op's `saves` can name it.
        role: what it holds, see `Role`, or a function of the arguments by name.
        dtype: the dtype, or dtype(arguments by name). By default, numbers per element have the argument `dtype`, or
            else the promoted dtype of the inputs with a number per element, and all others have the dtype of sums.
        needs: the argument without which there is no such result, or needs(arguments by name), which tells if there is
            one.
        new: new(arguments by name) returns an empty tensor like the result. It gives the shape of a result with the
            role "whole", and the strides of a result that is not contiguous.
        gradient: the name of its gradient among the arguments of the op's gradient; None if it has none.
        returned: whether the op's function returns it. The others come last.
        depends_on: names of the differentiable arguments on which it depends; empty for all.
        per_block: the argument with whose role "block" the result has this role, too; it is then a sum over rows.
    """

    name: str
    role: RoleOf
    dtype: torch.dtype | Callable[[Named], torch.dtype] | None = None
    needs: str | Callable[[Named], bool] | None = None
    new: Callable[[Named], torch.Tensor] | None = None
    gradient: str | None = None
    returned: bool = True
    depends_on: tuple[str, ...] = ()
    per_block: str | None = None


def per_element(
    name: str, *, optional: bool = False, differentiable: bool = True, or_per_block: bool = False
) -> Argument:
    """Declares a tensor with a number per element.

    With `or_per_block`, its last sizes before those of a row may be 1 instead: [batch, 1, columns] for an input of the
    shape [batch, tokens, columns]. Then it has a number per column for each block of consecutive rows, and its gradient
    is a sum over the rows of a block. All such tensors of a call have one shape, and rows run along the last dims.

    Example:
        >>> tridal.ops.per_element("input").schema
        'Tensor input'
    """
    return Argument(name, role="element", optional=optional, differentiable=differentiable, per_block=or_per_block)


def per_row(name: str, *, optional: bool = False) -> Argument:
    """Declares a tensor with a number per row. It has no gradient.

    Example:
        >>> tridal.ops.per_row("scale", optional=True).schema
        'Tensor? scale'
    """
    return Argument(name, role="row", optional=optional)


def per_column(name: str, *, optional: bool = False, differentiable: bool = True) -> Argument:
    """Declares a tensor with a number per column.

    Example:
        >>> tridal.ops.per_column("bias", optional=True).schema
        'Tensor? bias'
    """
    return Argument(name, role="column", optional=optional, differentiable=differentiable)


def index_per_row(name: str, *, or_per_element: bool = False) -> Argument:
    """Declares an int64 tensor with a column index per row.

    With `or_per_element`, it may also be a floating-point tensor with a number per element, which has a gradient.

    Example:
        >>> tridal.ops.index_per_row("target").role
        'index'
    """
    if or_per_element:
        return Argument(name, role=functools.partial(_index_or_element, name), differentiable=True)
    return Argument(name, role="index")


def _index_or_element(name: str, named: Named) -> Role:
    return "element" if named[name].is_floating_point() else "index"


def whole(name: str, *, optional: bool = False, differentiable: bool = False) -> Argument:
    """Declares a tensor of another shape and dtype, which the op's steps check.

    The reference gets it as it is, without a cast to `dtype`, and each rank of a DTensor holds all of it.

    Example:
        >>> tridal.ops.whole("linear_weight", differentiable=True).role
        'whole'
    """
    return Argument(name, role="whole", optional=optional, differentiable=differentiable)


def number(
    name: str, default: float | str | None = None, *, type: str | None = None, neutral: float | None = None,
    range: tuple[Any, ...] | None = None, optional: bool = False,
) -> Argument:  # fmt: skip
    """Declares an argument that is not a tensor. Its type in torch's schema follows from the default.

    The range of a bool is (False, True).

    Example:
        >>> tridal.ops.number("eps", 1e-6, range=(1e-8, 1.0)).schema
        'float eps=1e-06'
        >>> tridal.ops.number("casting", "", range=("", "llama")).schema
        "str casting=''"
    """
    if type is None:
        type = "float" if default is None else _TYPES[default.__class__]
    if type == "bool" and range is None:
        range = (False, True)
    return Argument(name, type, optional=optional, default=default, neutral=neutral, range=range)


DIM = Argument("dim", "int")
DTYPE = Argument("dtype", "ScalarType")
SCALE_MASK = (
    Argument("mask", role="mask", optional=True), number("scale", 1.0, neutral=1.0), number("causal", False),
    number("zero_masked_rows", False),
)  # fmt: skip
"""The arguments of an op whose kernel can scale and mask its first tensor."""


def element_dtype(arguments: Sequence[Argument], tensors: Sequence[Any]) -> torch.dtype:
    """Promotes the dtypes of the tensors with a number per element. `tensors` begins as `arguments` does."""
    first = arguments[: len(tensors)]  # torch.compile of torch 2.7 cannot zip sequences of different lengths
    given = [t.dtype for a, t in zip(first, tensors, strict=True) if a.role == "element" and t is not None]
    return functools.reduce(torch.promote_types, given)  # type: ignore[no-any-return]


def sum_dtype(named: Named) -> torch.dtype:
    """Returns the dtype of sums and statistics of a call.

    Example:
        >>> tridal.ops.sum_dtype({"input": torch.ones(2, dtype=torch.bfloat16), "eps": 1e-6})
        torch.float32
    """
    return accumulator(*(value for value in named.values() if isinstance(value, torch.Tensor)))
