"""The signature of a registered op: its arguments and results, and the rows of the tensors of a call."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tridal.kernels.row_kernel import RowKernel
from tridal.ops.arguments import Argument, Named, Result, Role, RoleOf, element_dtype
from tridal.ops.row_reduce import accumulator

Tensor = torch.Tensor
_ROW_ARGUMENTS = {"dim", "dims", "dtype", "scale", "causal", "zero_masked_rows", "output_mask"}
"""Arguments that are not passed to an op in torch's ops. A gradient gets `scale`."""


class Rows(NamedTuple):
    """Where the rows of a tensor with a number per element are."""

    first: int
    """The first dim of a row."""
    dims: int
    """How many dims a row has. Several dims are the last ones, and a row is contiguous in them."""

    def of_row(self, dim: int) -> bool:
        """Returns whether rows run along a dim."""
        return self.first <= dim < self.first + self.dims

    def flat(self, tensor: Tensor) -> Tensor:
        """Returns the tensor with the dims of a row as one. A tensor without dims gets one."""
        return tensor.flatten(self.first) if self.dims > 1 or not tensor.dim() else tensor

    def per_column(self, shape: torch.Size) -> tuple[int, ...]:
        """Returns the shape of a tensor with a number per column."""
        return tuple(shape[self.first : self.first + self.dims])

    def shapes(self, shape: torch.Size) -> dict[Any, tuple[int, ...]]:
        """Returns the shapes of tensors by role, from that of a tensor with a number per element."""
        per_row = (*shape[: self.first], *shape[self.first + self.dims :])
        return {
            "element": tuple(shape),
            "row": per_row,
            "index": per_row,
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

    def complete(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the arguments with the defaults of those at the end that the dispatcher has left out."""
        return (*arguments, *(argument.default for argument in self.arguments[len(arguments) :]))

    def named(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """Returns the arguments by name."""
        return dict(zip(self.names, arguments, strict=True))

    def tensors_of(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the tensors among the arguments, or None for those that are absent."""
        return tuple(arguments[index] for index in self.tensors)

    def numbers_of(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the arguments that are no tensors."""
        return tuple(arguments[index] for index in self.numbers)

    def joined(self, tensors: tuple[Any, ...], numbers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns all arguments in order, from the tensors and the others."""
        both = dict(zip((*self.tensors, *self.numbers), (*tensors, *numbers), strict=True))
        return tuple(both[index] for index in range(len(both)))

    def with_role(self, *roles: str) -> tuple[int, ...]:
        """Returns the positions of the tensors with one of the roles in every call."""
        return tuple(index for index in self.tensors if self.arguments[index].role in roles)

    def roles(self, named: Named) -> tuple[Role | None, ...]:
        """Returns the role of each argument in a call."""
        return tuple(role_in(argument.role, named) for argument in self.arguments)

    def result_roles(self, named: Named) -> tuple[Role | None, ...]:
        """Returns the role of each result in a call, or None for those that are absent."""
        roles = (role_in(result.role, named) for result in self.results)
        return tuple(None if self.is_absent(index, named) else role for index, role in enumerate(roles))

    def rows(self, arguments: tuple[Any, ...]) -> Rows:
        """Returns where the rows of a call are."""
        rank = max(arguments[self.main].dim(), 1)
        if "dims" in self.names:
            dims = arguments[self.names.index("dims")]
            return Rows(rank - dims, dims)
        dim = arguments[self.names.index("dim")] if self.dim is None else self.dim
        return Rows(operator.index(dim) % rank, 1)

    def cast(self, named: Named) -> torch.dtype | None:
        """Returns the dtype to which a call casts tensors with a number per element, or None."""
        return named["dtype"] if self.casts else None

    def sum_dtype(self, named: Named) -> torch.dtype:
        """Returns the dtype of sums and statistics of a call, whose tensors have been cast."""
        cast, roles = self.cast(named), zip(self.names, self.roles(named), strict=True)
        tensors = [(role, named[name]) for name, role in roles if role not in (None, "mask")]
        return accumulator(*(cast if cast is not None and role == "element" else t for role, t in tensors))

    def dtypes(self, named: Mapping[str, Any]) -> tuple[torch.dtype, ...]:
        """Returns the dtype of each result."""
        dtypes: list[torch.dtype] = []
        for index, result in enumerate(self.results):
            if isinstance(result.dtype, torch.dtype):
                dtypes.append(result.dtype)
            elif result.dtype is not None:
                dtypes.append(result.dtype(named))
            elif result.role == "whole" and result.new is not None and not self.is_absent(index, named):
                dtypes.append(result.new(named).dtype)
            elif result.role != "element":
                dtypes.append(self.sum_dtype(named))
            else:
                dtypes.append(named["dtype"] if "dtype" in named else element_dtype(self.arguments, [*named.values()]))
        return tuple(dtypes)

    def new_results(self, arguments: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        """Returns empty tensors with the shapes and dtypes of the results."""
        named, main = self.named(arguments), arguments[self.main]
        shapes = self.rows(arguments).shapes(main.shape)
        given = zip(self.results, self.result_roles(named), self.dtypes(named), strict=True)
        return tuple(
            None
            if role is None
            else main.new_empty(shapes[role], dtype=dtype)
            if result.new is None
            else result.new(named)
            for result, role, dtype in given
        )

    def parameters(self, named: Mapping[str, Any], names: Sequence[str] | None = None) -> tuple[float | None, ...]:
        """Returns the values of a kernel's parameters, by default of all. A value that changes nothing becomes None."""
        neutral = {argument.name: argument.neutral for argument in self.arguments}
        if names is None:
            names = () if self.kernel is None else self.kernel.parameters
        return tuple(None if named[name] == neutral[name] else named[name] for name in names)

    def is_absent(self, index: int, named: Mapping[str, Any]) -> bool:
        """Returns whether a call has no such result."""
        needs = self.results[index].needs
        if needs is not None and not (needs(named) if callable(needs) else named[needs] is not None):
            return True
        return "output_mask" in named and not named["output_mask"][index]


def role_in(role: RoleOf | None, named: Named) -> Role | None:
    """Returns a role in a call."""
    return role(named) if callable(role) else role
