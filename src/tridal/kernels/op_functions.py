"""The functions of an op: which ones a kernel has, what each may declare, and what a schedule has to know of them.

An op's function declares only the parameters that it uses. A schedule passes its variables for them. If the
op's module has no function with the name of a term or an output, the schedule uses the variable with this name: for a
term and for an output with a number per element, one of `reads`; for an output with a number per row, one of
`row_reads`, a statistic or `row_value`. A function may declare:

- the op's parameters, and the statistics: all in functions of outputs, the first one in terms of later statistics;
- the tensors that the kernel reads, in terms, `writes` and `column_writes`; in `row_value` and `row_writes`, only those
  of `row_reads`;
- the input `row_index`, in `row_value`, `writes`, `row_writes` and `column_writes`;
- the tensors of `top_reads`, and the position in `top_index`, in terms, `writes` and `column_writes`;
- all earlier statistics, in terms of kernels that choose elements. A program of such a kernel has whole rows, so that
  these terms may reduce rows themselves;
- `picked`, in `row_value` and `row_writes`: the element of the first tensor in the column that `row_index` gives;
- `picked_<name>`, in `row_value` and `row_writes`: the number of the first tensor of `column_reads` for that column;
- the kernel's constants, see `RowKernel.bind`;
- `column`, in terms, `writes`, `column_writes` and `top_writes`: the column of each element;
- `in_bounds`, in terms of later statistics: whether each element is one of the tensor, and not beyond the end of a row
  or beyond the last row. Kernels with `neutral_padding` need it if a term of padding is not zero;
- `count`: the number of elements that the statistics cover; `part_count`, in `rebase`: the number that a part covers;
- in `rebase`, also the statistics between the first and its own: those of the part, after their `rebase`;
- `part_<first statistic>`, in `rebase`, `writes` and `column_writes`: the first statistic of the part of a row that a
  program computes;
- `part_scale`, in `row_value`, `writes` and `column_writes`: the factor that `rebase` applies to the terms of the part;
- the name of the function `row_value`, in `writes`, `row_writes` and `column_writes`: its result;
- `AXIS`: the axis of a tile along which a row runs, to expand a number per row: `tl.expand_dims(row_max, AXIS)`;
- `EXP2_BIAS`, `REFINE`: see `tridal.kernels.numerics`;
- `UNNORMALIZED`: whether terms may be multiplied by one constant per row;
- `GUARD`: whether all elements of a part of a row may be -inf;
- `ZERO_MASKED_ROWS`: whether a row of -inf gives zeros instead of NaN.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from tridal.errors import PluginError
from tridal.kernels.function_caches import cached_by_functions
from tridal.kernels.function_errors import describe_unhashable
from tridal.kernels.row_kernel import RowKernel


class OpFunction(NamedTuple):
    """A function of an op, or the name of a variable that stands for one."""

    role: str
    """The field of `RowKernel` or `Statistic` that names it."""
    name: str
    statistic: int = 0
    """The number of the statistic, for a term and for `rebase`."""


def op_functions(kernel: RowKernel) -> Iterator[OpFunction]:
    """Yields the functions of a kernel."""
    for number, statistic in enumerate(kernel.statistics):
        yield OpFunction("term", statistic.term, number)
        if statistic.rebase is not None:
            yield OpFunction("rebase", statistic.rebase, number)
    for role in ("row_value", "writes", "row_writes", "top_writes", "column_writes"):
        yield from (OpFunction(role, name) for name in kernel.named(role))


@cached_by_functions
def declared_by(kernel: RowKernel) -> dict[OpFunction, Any]:
    """Returns the Triton function of each function of a kernel, or None where a variable stands for it.

    Raises:
        PluginError: a function is missing, has an unknown parameter, or cannot be hashed.
    """
    return {function: _triton_function(kernel, function) for function in op_functions(kernel)}


def triton_functions(kernel: RowKernel) -> list[Any]:
    """Returns the Triton functions of a kernel as they are now. Raises PluginError as `declared_by`."""
    functions = (_triton_function(kernel, function) for function in op_functions(kernel))
    return [found for found in functions if found is not None]


def parameters_of(kernel: RowKernel, function: OpFunction) -> set[str]:
    """Names what a function may declare."""
    role = function.role
    statistics = [statistic.name for statistic in kernel.statistics if statistic.reduce != "top"]
    first, parts = statistics[:1], [f"part_{name}" for name in statistics[:1]]
    index, value = kernel.named("row_index"), kernel.named("row_value")
    picked = ["picked", *(f"picked_{name}" for name in kernel.column_reads[:1])]
    element = [*kernel.reads, *kernel.column_reads, *kernel.row_reads, "column", "AXIS", "EXP2_BIAS"]
    element += [*kernel.top_reads, *kernel.named("top_index")]
    of_row = [*kernel.row_reads, *index, *picked, *statistics, "count"]
    if role == "term":
        earlier = [s.name for s in kernel.statistics[: function.statistic]] if kernel.whole_rows else first
        later = [*earlier, "count", "in_bounds", "UNNORMALIZED", "GUARD"] if function.statistic else []
        known = [*element, *later]
    elif role == "rebase":
        known = [*statistics[: function.statistic + 1], *parts, "count", "part_count", "EXP2_BIAS"]
    elif role == "row_value":
        known = [*of_row, "part_scale", "REFINE", "ZERO_MASKED_ROWS", "EXP2_BIAS"]
    elif role == "row_writes":
        known = [*of_row, *value]
    else:
        known = [*element, *index, *statistics, *value, *parts, "UNNORMALIZED", "GUARD"]
        known += ["count", "part_scale", "REFINE", "ZERO_MASKED_ROWS"]
    constants = [name for name, _ in kernel.constants]
    return {*known, *kernel.parameters, *constants, *(f"picked_{name}" for name in constants)}


def op_math_of(kernel: RowKernel) -> ModuleType:
    """Returns the module of a kernel's Triton functions.

    Raises:
        PluginError: there is no such module, or it ends the process.
    """
    cause: BaseException
    try:
        return importlib.import_module(kernel.module)
    except ModuleNotFoundError as error:
        if not f"{kernel.module}.".startswith(f"{error.name}."):  # the module imports a package that is not installed
            raise
        cause, reason = error, f"there is no module {error.name!r}"
    except SystemExit as error:
        cause, reason = error, f"it raised SystemExit: {error}"
    expected = f"expected the module of its Triton functions, found {kernel.module!r}"
    raise PluginError(f"kernel {kernel.name!r}: module: {expected}: {reason}") from cause


def _triton_function(kernel: RowKernel, function: OpFunction) -> Any:
    """Returns the Triton function of the op's module with this name; None if the name is that of a variable instead.

    Raises:
        PluginError: there is neither, the function has an unknown parameter, or Triton cannot hash it.
    """
    role, name = function.role, function.name
    found: Any = getattr(op_math_of(kernel), name, None)
    known = parameters_of(kernel, function)
    if hasattr(found, "arg_names"):
        if (fault := describe_unhashable((found,))) is not None:
            raise PluginError(f"kernel {kernel.name!r}: Triton cannot compile {fault}")
        if unknown := [argument for argument in found.arg_names if argument not in known]:
            raise PluginError(
                f"{kernel.module}.{name} names {', '.join(unknown)}; "
                f"as {role} of kernel {kernel.name!r} it can name {', '.join(sorted(known))}"
            )
        return found
    per_row = {*kernel.row_reads, *(statistic.name for statistic in kernel.statistics), kernel.row_value}
    variables = {"row_writes": per_row, "rebase": (), "row_value": ()}.get(role, kernel.reads)
    if name not in variables:
        shape = "row" if role == "row_writes" else "element"
        hint = f": {name!r} is not a number per {shape}" if name in kernel.names else ""
        raise PluginError(f"kernel {kernel.name!r} needs a Triton function {name!r} in {kernel.module}{hint}")
    return None


@cached_by_functions
def constants_of(kernel: RowKernel) -> dict[str, Any]:
    """Returns the constants of a schedule that follow from the functions of a kernel.

    Raises:
        PluginError: as `triton_functions`. Or a term uses a number that is wrong for padding or for a part of a row.
    """
    arguments = {
        function: [function.name] if found is None else found.arg_names
        for function, found in declared_by(kernel).items()
    }
    _check_column_terms(kernel, arguments)
    _check_rebase(kernel, arguments)
    declared = set().union(*arguments.values())
    of_sums = set().union(*(names for function, names in arguments.items() if function.role == "column_writes"))
    first, second = [*(statistic.reduce for statistic in kernel.statistics), None, None][:2]
    return {
        "FIRST": first,
        "SECOND": second,
        "PICKS": "picked" in declared,
        "PICKS_COLUMN": any(f"picked_{name}" in declared for name in kernel.column_reads[:1]),
        "COUNTS": not declared.isdisjoint({"count", "part_count"}),
        "PADDING": kernel.padding,
        "NEUTRAL_PADDING": kernel.neutral_padding,
        "MASKS_TERMS": not kernel.neutral_padding
        or "in_bounds" in declared
        or kernel.whole_rows
        or not of_sums.isdisjoint(kernel.column_reads),
    }


def _check_column_terms(kernel: RowKernel, arguments: dict[OpFunction, list[str]]) -> None:
    """Raises PluginError if an unmasked term uses a number that may not be zero in a row beyond the last one."""
    statistics = [name for statistic in kernel.statistics for name in (statistic.name, f"part_{statistic.name}")]
    unsafe = {*statistics, "part_scale", kernel.row_value}
    for function, names in arguments.items() if kernel.neutral_padding else ():
        if function.role == "column_writes" and (used := [name for name in names if name in unsafe]):
            raise PluginError(
                f"kernel {kernel.name!r}: {function.name} is the term of a sum over rows and uses {used[0]}, which "
                "may be infinite for a row beyond the last one: set neutral_padding=False"
            )


def _check_rebase(kernel: RowKernel, arguments: dict[OpFunction, list[str]]) -> None:
    """Raises PluginError if a later term uses a number of a part of a row, and no function adapts its sum."""
    for function, names in arguments.items() if not kernel.whole_rows else ():  # else, rows have no parts
        statistic = kernel.statistics[function.statistic] if function.role == "term" and function.statistic else None
        if statistic is None or statistic.rebase is not None:
            continue
        if used := [name for name in names if name in (kernel.statistics[0].name, "count")]:
            raise PluginError(
                f"kernel {kernel.name!r}: {function.name}, the term of {statistic.name!r}, uses {used[0]}, which "
                f"differs between the parts of a row: declare rebase, a function that adapts {statistic.name!r} of a "
                "part"
            )
