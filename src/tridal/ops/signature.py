"""The signature of a registered op, and its arguments in a call with the rows, roles and dtypes of the tensors."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tridal.kernels.row_kernel import RowKernel
from tridal.ops.arguments import Argument, Named, Result, Role, RoleOf, element_dtype
from tridal.ops.row_reduce import accumulator

Tensor = torch.Tensor
MAX_BLOCKS = 1 << 15
"""The largest number of blocks of rows with numbers of their own. A launch has a program for each block, and
triton-ascend rejects 65,536 programs."""
_ROW_ARGUMENTS = {"dim", "dims", "dtype", "scale", "causal", "zero_masked_rows", "output_mask"}
"""Arguments that are not passed to an op in torch's ops. A gradient gets `scale`."""


class Rows(NamedTuple):
    """Where the rows of a tensor with a number per element are."""

    first: int
    """The first dim of a row."""
    dims: int
    """How many dims a row has. Several dims are the last ones, and a row is contiguous in them."""

    def of_row(self, dim: int) -> bool:
        """Tells whether rows run along a dim."""
        return self.first <= dim < self.first + self.dims

    def flat(self, tensor: Tensor) -> Tensor:
        """Joins the dims of a row. A tensor without dims gets one."""
        return tensor.flatten(self.first) if self.dims > 1 or not tensor.dim() else tensor

    def per_column(self, shape: torch.Size) -> tuple[int, ...]:
        """Returns the shape of a tensor with a number per column."""
        return tuple(shape[self.first : self.first + self.dims])

    def shapes(self, shape: torch.Size, k: int = 0) -> dict[Any, tuple[int, ...]]:
        """Returns the shapes of tensors by role, from that of a tensor with a number per element.

        Tensors with k numbers per row have them in the last dim.
        """
        per_row = (*shape[: self.first], *shape[self.first + self.dims :])
        return {
            "element": tuple(shape),
            "row": per_row,
            "index": per_row,
            "top": (*per_row, k),
            "top_index": (*per_row, k),
            "column": self.per_column(shape),
            "number": (),
        }


@dataclass(frozen=True, eq=False)
class Signature:
    """The arguments and the results of `torch.ops.tridal.<name>`, and the kernel that computes it."""

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    kernel: RowKernel | None
    """The kernel with all of its tensors; None if the call has steps, or if there is none."""
    main: int
    """The position of the tensor whose shape is that of all tensors with a number per element."""
    dim: int | None = None
    """The dim of rows if no argument gives it, see `Op.dim`."""
    steps: Callable[..., Any] | None = None
    """The steps of a call, see `Op.steps`."""
    any_rows: bool = True
    """Whether calls of any number of rows are alike. If not, calls with other numbers of rows have other steps."""
    casts: bool = False
    """Whether tensors with a number per element are cast to the argument `dtype`. Those of a gradient are not."""

    @functools.cached_property
    def schema(self) -> str:
        """The arguments and the results in torch's schema."""
        results = ", ".join(["Tensor"] * len(self.results))
        returned = results if len(self.results) == 1 else f"({results})"
        return f"({', '.join(argument.schema for argument in self.arguments)}) -> {returned}"

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return tuple(argument.name for argument in self.arguments)

    @functools.cached_property
    def tensors(self) -> tuple[int, ...]:
        """The positions of the tensors."""
        return tuple(index for index, argument in enumerate(self.arguments) if argument.type == "Tensor")

    @functools.cached_property
    def numbers(self) -> tuple[int, ...]:
        """The positions of the arguments that are no tensors."""
        return tuple(index for index in range(len(self.arguments)) if index not in self.tensors)

    @functools.cached_property
    def function_tensors(self) -> tuple[str, ...]:
        """The names of the tensors that the op in torch's ops gets. A tensor that is added to a result is none."""
        added = None if self.kernel is None else self.kernel.added
        return tuple(a.name for a in self.arguments if a.role not in (None, "mask") and a.name != added)

    @functools.cached_property
    def function_numbers(self) -> tuple[str, ...]:
        """The names of the numbers that the op in torch's ops gets."""
        given = [argument.name for argument in self.arguments if argument.role is None]
        return tuple(name for name in given if name not in _ROW_ARGUMENTS or (name == "scale" and not self.casts))

    @functools.cached_property
    def optional(self) -> frozenset[str]:
        """The names of the arguments that may be None."""
        return frozenset(argument.name for argument in self.arguments if argument.optional)

    @functools.cached_property
    def per_block(self) -> tuple[int, ...]:
        """The positions of the tensors that may have the role "block"."""
        return tuple(index for index in self.tensors if self.arguments[index].per_block)

    def with_role(self, *roles: str) -> tuple[int, ...]:
        """Returns the positions of the tensors with one of the roles in every call."""
        return tuple(index for index in self.tensors if self.arguments[index].role in roles)

    def parameters(self, named: Mapping[str, Any], names: Sequence[str]) -> tuple[float | None, ...]:
        """Returns the values of a kernel's parameters. A value that changes nothing becomes None."""
        neutral = {argument.name: argument.neutral for argument in self.arguments}
        return tuple(None if named[name] == neutral[name] else named[name] for name in names)


def block_dims(shape: Sequence[int], first: int) -> int:
    """Returns how many of the dims before the dim `first` are those of blocks of rows. The others have the size 1."""
    return max([0, *(dim + 1 for dim, size in enumerate(shape[:first]) if size != 1)])


def is_block_shape(shape: Sequence[int], main: Sequence[int], dims: int) -> bool:
    """Returns whether a shape is another one, `main`, in which the last sizes before the `dims` of a row are 1.

    A tensor of this shape has a number per column for each block of consecutive rows. False for more than 32,768
    blocks, for which a launch would have too many programs on some devices.

    Example:
        >>> [tridal.ops.is_block_shape(shape, (4, 5, 8), 1) for shape in ((4, 1, 8), (1, 1, 8), (1, 5, 8))]
        [True, True, False]
    """
    first = len(main) - dims
    blocks = block_dims(shape, first)
    alike = (*shape,) == (*main[:blocks], *[1] * (first - blocks), *main[first:])
    return alike and (*shape,) != (*main,) and math.prod(shape[:blocks]) <= MAX_BLOCKS


def role_in(role: RoleOf | None, named: Named) -> Role | None:
    """Resolves a role that depends on the arguments of the call."""
    return role(named) if callable(role) else role


class Arguments:
    """The arguments of a registered op in a call, and what follows from the roles of its tensors.

    Attributes:
        signature: that of the op, or of its gradient.
        values: the arguments in order. Those at the end that are not given have their defaults, because the dispatcher
            leaves them out.
        main: the tensor whose shape is that of all tensors with a number per element.
    """

    _named: dict[str, Any] | None = None

    def __init__(self, signature: Signature, values: Sequence[Any]) -> None:
        self.signature = signature
        self.values = (*values, *(argument.default for argument in signature.arguments[len(values) :]))
        self.main: Any = self.values[signature.main]

    @property
    def named(self) -> dict[str, Any]:
        """The arguments by name."""
        if self._named is None:  # a call whose key is known does not need it
            self._named = dict(zip(self.signature.names, self.values, strict=True))
        return self._named

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The tensors, or None for those that are absent."""
        return tuple(self.values[index] for index in self.signature.tensors)

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The arguments that are not tensors."""
        return tuple(self.values[index] for index in self.signature.numbers)

    @property
    def roles(self) -> dict[str, Role | None]:
        """The role of each argument by name."""
        roles = {argument.name: role_in(argument.role, self.named) for argument in self.signature.arguments}
        return roles | dict.fromkeys(self.blocks, "block")

    @property
    def blocks(self) -> list[str]:
        """The names of the tensors with a number per column and block of rows."""
        names = [self.signature.names[index] for index in self.signature.per_block]
        if not names:  # the other arguments may not be checked yet
            return []
        given = [(name, self.named[name]) for name in names if self.named[name] is not None]
        shape, rows = self.main.shape, self.rows
        is_last = rows.first + rows.dims == len(shape)
        return [name for name, tensor in given if is_last and is_block_shape(tensor.shape, shape, rows.dims)]

    @property
    def block_shape(self) -> tuple[int, ...] | None:
        """The shape of the tensors with a number per column and block, or None if the call has no such tensor."""
        blocks = self.blocks
        return tuple(self.named[blocks[0]].shape) if blocks else None

    @property
    def result_roles(self) -> tuple[Role | None, ...]:
        """The role of each result, or None for those that are absent."""
        roles = (self._result_role(result) for result in self.signature.results)
        return tuple(None if self.lacks(index) else role for index, role in enumerate(roles))

    def _result_role(self, result: Result) -> Role | None:
        return "block" if result.per_block in self.blocks else role_in(result.role, self.named)

    @property
    def rows(self) -> Rows:
        """Where the rows are."""
        rank, dim = max(self.main.dim(), 1), self.signature.dim
        if "dims" in self.named:
            return Rows(rank - self.named["dims"], self.named["dims"])
        return Rows(operator.index(self.named["dim"] if dim is None else dim) % rank, 1)

    @property
    def shapes(self) -> dict[Any, tuple[int, ...]]:
        """The shapes of tensors by role."""
        block = self.block_shape
        shapes = self.rows.shapes(self.main.shape, self.named.get("k", 0))
        return shapes if block is None else {**shapes, "block": block}  # torch.compile of torch 2.7 traces no `|`

    @property
    def cast(self) -> torch.dtype | None:
        """The dtype to which tensors with a number per element are cast, or None."""
        return self.named["dtype"] if self.signature.casts else None

    @property
    def sum_dtype(self) -> torch.dtype:
        """The dtype of sums and statistics of the tensors, which have been cast."""
        cast = self.cast
        tensors = [(role, self.named[name]) for name, role in self.roles.items() if role not in (None, "mask")]
        return accumulator(*(cast if cast is not None and role == "element" else t for role, t in tensors))

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtype of each result."""
        return tuple(self._dtype(index, result) for index, result in enumerate(self.signature.results))

    def _dtype(self, index: int, result: Result) -> torch.dtype:
        if self._result_role(result) == "block":
            return self.sum_dtype
        if result.dtype is not None:
            return result.dtype if isinstance(result.dtype, torch.dtype) else result.dtype(self.named)
        if result.role == "top_index":
            return torch.int64
        if result.role == "whole" and result.new is not None and not self.lacks(index):
            return result.new(self.named).dtype
        if result.role != "element":
            return self.sum_dtype
        return self.named["dtype"] if "dtype" in self.named else element_dtype(self.signature.arguments, self.values)

    def lacks(self, index: int) -> bool:
        """Tells whether the call has no result with this index."""
        needs, named = self.signature.results[index].needs, self.named
        if needs is not None and not (needs(named) if callable(needs) else named[needs] is not None):
            return True
        return "output_mask" in named and not named["output_mask"][index]

    def new_results(self) -> tuple[Tensor | None, ...]:
        """Allocates tensors with the shapes and dtypes of the results."""
        shapes, given = self.shapes, zip(self.signature.results, self.result_roles, self.dtypes, strict=True)
        return tuple(
            None
            if role is None
            else self.main.new_empty(shapes[role], dtype=dtype)
            if result.new is None
            else result.new(self.named)
            for result, role, dtype in given
        )

    @classmethod
    def of(cls, signature: Signature, tensors: Sequence[Any], numbers: Sequence[Any]) -> Arguments:
        """Joins tensors and numbers to the arguments, in the order of both."""
        both = dict(zip((*signature.tensors, *signature.numbers), (*tensors, *numbers), strict=True))
        return cls(signature, [both[index] for index in range(len(both))])
