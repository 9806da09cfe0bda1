"""What a case of the suite is: one call of an op's function, and what an op adds to its declaration. Data only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch

from tridal.ops.arguments import Argument
from tridal.ops.op import Op
from tridal.testing.roundings import Formulas

Direction: TypeAlias = Literal["forward", "backward", "double"]
Layout: TypeAlias = Literal["contiguous", "transposed", "expanded", "sliced", "stepped", "channels_last", "permuted"]
Values: TypeAlias = Literal[
    "normal",
    "small",
    "subnormal",
    "shifted",
    "constant",
    "dominant",
    "largest",
    "some -inf",
    "row of -inf",
    "some +inf",
    "some nan",
]
Mask: TypeAlias = Literal[
    "boolean", "boolean sliced", "boolean keys", "boolean batches", "added", "added halves", "added keys"
]
"""The kind of a mask: boolean, or added to the scores. "keys" and "batches" are broadcast. "halves" is float16."""

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Case:
    """One call of an op's function: its arguments, and where and how it runs."""

    op: str
    direction: Direction
    shape: tuple[int, ...]
    dim: int = -1
    dtype: str = "float32"
    """The input's dtype."""
    cast: str | None = None
    """The argument `dtype`; None if it is not given."""
    layout: Layout = "contiguous"
    layouts: tuple[tuple[str, Layout], ...] = ()
    """Names and memory layouts of the tensors that do not have the input's layout."""
    grad_layout: Layout = "contiguous"
    """The memory layout of the output's gradient."""
    values: Values = "normal"
    """The values of the input, see `tridal.testing.inputs.make_values`."""
    scale: float | None = None
    mask: Mask | None = None
    causal: bool = False
    masked_rows: Literal["nan", "zero"] = "nan"
    plan: str = "planned"
    """A key of `tridal.testing.PLAN_OVERRIDES`."""
    stream: bool = False
    """Whether the device's current stream is passed as an argument."""
    last_device: bool = False
    """Whether the tensors are on the last device while another device is current."""
    dims: int = 1
    """Number of last dims that a row has, if the op has such an argument instead of `dim`."""
    absent: tuple[str, ...] = ()
    """The optional tensors that are not given."""
    dtypes: tuple[tuple[str, str], ...] = ()
    """Names and dtypes of the tensors that do not have the input's dtype."""
    numbers: tuple[tuple[str, Any], ...] = ()
    """Names and values of the numbers and choices that are given. The others have the value of `ordinary`."""
    block_dims: int | None = None
    """The number of first dims whose indices are those of a block of rows, if tensors that may have a number per column
    and block have such numbers."""

    @property
    def out_dtype(self) -> str:
        """The input's dtype in the op."""
        return self.cast or self.dtype

    @property
    def modified(self) -> bool:
        """Whether the input is scaled or masked before the op."""
        return self.scale is not None or self.mask is not None or self.causal or self.masked_rows != "nan"

    @property
    def name(self) -> str:
        """One line that identifies the case."""
        shape = "x".join(map(str, self.shape)) or "0-d"
        parts = [self.op, self.direction, shape, f"dim={self.dim}" if self.dims == 1 else f"dims={self.dims}"]
        parts += [self.dtype, *([f"to {self.cast}"] if self.cast else [])]
        parts += [f"without {name}" for name in self.absent]
        parts += [f"{name} {value}" for name, value in (*self.dtypes, *self.layouts, *self.numbers)]
        parts += [self.layout] if self.layout != "contiguous" else []
        parts += [f"{self.grad_layout} gradient"] if self.grad_layout != "contiguous" else []
        parts += [self.values] if self.values != "normal" else []
        parts += [f"scale {self.scale:g}"] if self.scale is not None else []
        parts += [f"mask {self.mask}"] if self.mask is not None else []
        parts += ["causal"] * self.causal + ["zero rows"] * (self.masked_rows == "zero")
        parts += [f"plan {self.plan}"] if self.plan != "planned" else []
        parts += [f"{self.block_dims} dims of blocks"] if self.block_dims is not None else []
        parts += ["stream"] * self.stream + ["last device"] * self.last_device
        return " ".join(parts)


TUTORIAL_SHAPE = (1823, 781)
"""The shape of the unit test in Triton's tutorials. No power of two divides its rows or columns."""


@dataclass(frozen=True)
class OpCases:
    """What the cases of an op need beyond the roles of its tensors. `Op.cases` names it.

    Attributes:
        tensors: tensors(case) returns tensors by name that differ from those that follow from the roles, also if they
            are absent in the case: on the CPU, with numbers in float64, or indices.
        is_defined: is_defined(case) tells whether the op is defined for a case of the suite.
        options: arguments of the function that the registered op does not have.
        formulas: operations of torch in the op's math, by name, in smaller operations whose results kernels round.
    """

    tensors: Callable[[Case], Mapping[str, torch.Tensor]] = lambda case: {}
    is_defined: Callable[[Case], bool] = lambda case: True
    options: tuple[Argument, ...] = ()
    formulas: Formulas = field(default_factory=dict)


def op_cases(op: Op) -> OpCases:
    """What `Op.cases` of an op names, or the defaults."""
    return OpCases() if op.cases is None else op.load("cases")


def ordinary(argument: Argument) -> Any:
    """Returns the value of a number that a case does not give: the default, or the first choice or the last number."""
    known = argument.neutral if argument.default is None else argument.default
    if known is not None or argument.range is None or argument.optional:
        return known
    return argument.range[0 if is_choice(argument) else -1]


def is_choice(argument: Argument) -> bool:
    """Returns whether the range of an argument has all of its values."""
    return argument.range is not None and isinstance(argument.range[0], (str, bool))


def optional_tensors(op: Op) -> tuple[str, ...]:
    """The names of the tensors that may be absent."""
    return tuple(argument.name for argument in op.arguments if argument.type == "Tensor" and argument.optional)
