"""Turns the declaration of a kernel into the packs and the constants of a schedule, see `tridal.runtime.instance`.

An op's function declares only the parameters that it uses. A schedule calls it with its own variables for them. If the
op's module has no function with the name of a term or an output, the schedule uses the variable with this name: for a
term and for an output with a number per element, one of `reads`; for an output with a number per row, one of
`row_reads`, a statistic or `row_value`. A function may declare:

- the op's parameters, and the statistics: all in functions of outputs, the first one in terms of later statistics;
- the tensors that the kernel reads, in terms, `writes` and `column_writes`; in `row_value` and `row_writes`, only those
  of `row_reads`;
- the input `row_index`, in `row_value`, `writes`, `row_writes` and `column_writes`;
- `picked`, in `row_value` and `row_writes`: the element of the first tensor in the column that `row_index` gives;
- `picked_<name>`, in `row_value` and `row_writes`: the number of the first tensor of `column_reads` for that column;
- the kernel's constants, see `RowKernel.bind`;
- `column`, in terms, `writes` and `column_writes`: the column of each element;
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
- `UNNORMALISED`: whether terms may be multiplied by one constant per row;
- `GUARD`: whether all elements of a part of a row may be -inf;
- `ZERO_MASKED_ROWS`: whether a row of -inf gives zeros instead of NaN.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from tridal.errors import PluginError
from tridal.runtime.element_packs import element_packs
from tridal.runtime.function_errors import describe_unhashable
from tridal.runtime.packs import Packs
from tridal.runtime.row_kernel import RowKernel, cached_by_functions

_EDGE = {"column": "edge_column", "in_bounds": "edge_in_bounds", "AXIS": "0"}
"""The variables of a schedule for the heads and tails of rows, for what a function declares."""


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
    for role in ("row_value", "writes", "row_writes", "column_writes"):
        named = getattr(kernel, role) or ()
        yield from (OpFunction(role, name) for name in ((named,) if isinstance(named, str) else named))


def triton_functions(kernel: RowKernel) -> list[Any]:
    """Returns the Triton functions of a kernel.

    Raises:
        PluginError: a function is missing, has an unknown parameter, or cannot be hashed.
    """
    return [found for function in op_functions(kernel) if (found := _triton_function(kernel, function)) is not None]


def fingerprint(kernel: RowKernel) -> str:
    """Returns a hash of the source of the kernel's functions and of what they call, and of their constants."""
    keys = [function.cache_key for function in triton_functions(kernel)]
    return hashlib.sha256(repr((keys, sorted(packs_of(kernel).items()))).encode()).hexdigest()


def statistic_variable(number: int) -> str:
    """Returns the variable of a statistic."""
    return ("first", "second")[number] if number < 2 else f"statistic_{number}"


def _variables(kernel: RowKernel, function: OpFunction, edge: bool) -> dict[str, str]:
    """Returns what a function may declare, and the variable or the expression of a schedule for it.

    `edge`: for the heads and tails of rows.
    """
    role, statistics = function.role, {s.name: statistic_variable(n) for n, s in enumerate(kernel.statistics)}
    first = [s.name for s in kernel.statistics[:1]]
    rows = {name: f"{name}_row" for name in kernel.row_reads}
    tile = {name: f"edge_of_{name}" if edge else f"{name}_tile" for name in kernel.reads}
    tile |= {name: f"edge_of_{name}" if edge else f"{name}_column" for name in kernel.column_reads}
    tile |= rows | {"column": "tile_column", "AXIS": "AXIS", "EXP2_BIAS": "EXP2_BIAS"}
    index = {} if kernel.row_index is None else {kernel.row_index: "index"}
    once = rows | index | {"picked": "picked"} | {f"picked_{name}": "picked_column" for name in kernel.column_reads[:1]}
    value = {} if kernel.row_value is None else {kernel.row_value: "value"}
    same = {name: name for name in ("count", "in_bounds", "part_count", "part_scale", "REFINE", "ZERO_MASKED_ROWS")}
    flags = {"UNNORMALISED": "UNNORMALISED", "GUARD": "GUARD"}

    def given(*names: str) -> dict[str, str]:
        return {name: same[name] for name in names}

    if role == "term":
        known = dict(tile)
        if function.statistic > 0:
            known |= dict.fromkeys(first, "first") | given("count", "in_bounds") | flags | {"GUARD": "TERM_GUARD"}
    elif role == "rebase":
        known = {s.name: statistics[s.name] for s in kernel.statistics[1 : function.statistic + 1]}
        known |= {f"part_{name}": "part_first" for name in first} | dict.fromkeys(first, "first")
        known |= given("count", "part_count") | {"EXP2_BIAS": "REBASE_BIAS"}
    elif role == "row_value":
        known = once | statistics | given("count", "part_scale", "REFINE", "ZERO_MASKED_ROWS")
        known |= {"EXP2_BIAS": "EXP2_BIAS"}
    elif role == "row_writes":
        known = once | statistics | value | given("count")
    else:
        known = tile | index | statistics | value | {f"part_{name}": "part_first" for name in first} | flags
        known |= given("count", "part_scale", "REFINE", "ZERO_MASKED_ROWS")
    known |= {name: f"{name}_number" for name in kernel.parameters}
    for name, constant in kernel.constants:
        known[name] = f"tl.{constant}" if name.endswith("_DTYPE") else _literal(constant)
        known.setdefault(f"picked_{name}", "None")
    return known | {name: variable for name, variable in _EDGE.items() if edge and name in known}


def maths_of(kernel: RowKernel) -> ModuleType:
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
    found: Any = getattr(maths_of(kernel), name, None)
    known = _variables(kernel, function, False)
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


def _call(kernel: RowKernel, function: OpFunction, edge: bool = False) -> str:
    """Returns the source with which a schedule calls a function, or the variable that stands for it."""
    found, known = _triton_function(kernel, function), _variables(kernel, function, edge)
    if found is None:
        return known[function.name]
    return f"maths.{function.name}({', '.join(known[argument] for argument in found.arg_names)})"


def _literal(value: Any) -> str:
    """Returns a constant as source."""
    return f"float({str(value)!r})" if isinstance(value, float) and not math.isfinite(value) else repr(value)


@cached_by_functions
def packs_of(kernel: RowKernel) -> Packs:
    """Returns the packs with which the source of a schedule is expanded for a kernel.

    Raises:
        PluginError: see `triton_functions`.
    """
    functions = [*op_functions(kernel)]
    later = [function for function in functions if function.role == "term" and function.statistic > 0]
    late = [function for function in later if kernel.statistics[function.statistic].rebase is not None]
    early = [function for function in later if function not in late]
    rebased = [function for function in functions if function.role == "rebase"]
    first = [function for function in functions if function.role == "term"][:1]
    columns, first_read = [f"{name}_ptr" for name in kernel.column_reads], f"{kernel.reads[0]}_ptr"
    scored = kernel.reads[: int(kernel.scale_mask)]
    packs: dict[str, list[str]] = {
        "parameter": [f"{name}_number" for name in kernel.parameters],
        "score": [f"{name}_tile" for name in scored], "edge_score": [f"edge_of_{name}" for name in scored],
        "row": [f"{name}_row" for name in kernel.row_reads], "row_ptr": [f"{name}_ptr" for name in kernel.row_reads],
        "column": [f"{name}_column" for name in kernel.column_reads], "column_ptr": columns,
        "edge_column": [f"edge_of_{name}" for name in kernel.column_reads],
        "indexed": [f"{name}_ptr, {first_read}, {(*columns, None)[0]}" for name in (kernel.row_index,) if name],
        "part_first": ["part_first" for _ in first], "rebased": [_call(kernel, function) for function in rebased],
        "exchanged": [_call(kernel, function) for function in rebased if function.statistic == 1] or ["second"],
        "late_name": [repr(function.name) for function in rebased],
        "row_result": [f"{name}_per_row" for name in kernel.row_writes],
        "sums_result": [f"{name}_sums" for name in kernel.column_writes], **element_packs(kernel),
    }  # fmt: skip
    for kind, terms in (("first", first), ("later", later), ("early", early), ("late", late)):
        packs[kind] = [statistic_variable(function.statistic) for function in terms]
        packs[f"{kind}_part"] = [f"part_of_{variable}" for variable in packs[kind]]
        packs[f"edge_{kind}"] = [f"edge_{variable}" for variable in packs[kind]]
        packs[f"{kind}_reduce"] = [repr(kernel.statistics[function.statistic].reduce) for function in terms]
    groups = {"first_term": first, "later_term": later, "early_term": early, "late_term": late}
    groups |= {
        name: [function for function in functions if function.role == role]
        for name, role in (("value", "row_value"), ("row_formula", "row_writes"), ("formula", "writes"),
                           ("sum_term", "column_writes"))
    }  # fmt: skip
    for name, called in groups.items():
        packs[name] = [_call(kernel, function) for function in called]
        packs[f"{name}_name"] = [repr(function.name) for function in called]
        packs[f"edge_{name}"] = [_call(kernel, function, edge=True) for function in called]
    packs["sums"] = [f"sums_of_{name}" for name in kernel.column_writes]
    packs["pointer"] = [*kernel.pointers]
    return {f"each_{name}": tuple(items) for name, items in packs.items()}


@cached_by_functions
def constants_of(kernel: RowKernel) -> dict[str, Any]:
    """Returns the constants of a schedule that follow from a kernel.

    Raises:
        PluginError: as `triton_functions`. Or a term uses a number that is wrong for padding or for a part of a row.
    """
    arguments: dict[OpFunction, list[str]] = {}
    for function in op_functions(kernel):
        found = _triton_function(kernel, function)
        arguments[function] = [function.name] if found is None else found.arg_names
    _check_column_terms(kernel, arguments)
    _check_rebase(kernel, arguments)
    declared = set().union(*arguments.values())
    first, second = [*(statistic.reduce for statistic in kernel.statistics), None, None][:2]
    return {
        "FIRST": first,
        "SECOND": second,
        "HAS_LATE": any(statistic.rebase is not None for statistic in kernel.statistics),
        "HAS_INDEX": kernel.row_index is not None,
        "HAS_COLUMNS": bool(kernel.column_reads),
        "HAS_RESULTS": bool(kernel.writes),
        "HAS_SUMS": bool(kernel.column_writes),
        "PICKS": "picked" in declared,
        "PICKS_COLUMN": any(f"picked_{name}" in declared for name in kernel.column_reads[:1]),
        "COUNTS": not declared.isdisjoint({"count", "part_count"}),
        "PADDING": kernel.padding,
        "NEUTRAL_PADDING": kernel.neutral_padding,
        "MASKS_TERMS": not kernel.neutral_padding or "in_bounds" in declared,
    }


def _check_column_terms(kernel: RowKernel, arguments: dict[OpFunction, list[str]]) -> None:
    """Raises PluginError if an unmasked term uses a number that may not be zero in a row beyond the last one."""
    statistics = [name for statistic in kernel.statistics for name in (statistic.name, f"part_{statistic.name}")]
    unsafe = {*statistics, "part_scale", kernel.row_value, *kernel.column_reads}
    for function, names in arguments.items() if kernel.neutral_padding else ():
        if function.role == "column_writes" and (used := [name for name in names if name in unsafe]):
            raise PluginError(
                f"kernel {kernel.name!r}: {function.name} is the term of a sum over rows and uses {used[0]}, which "
                "may be infinite for a row beyond the last one: set neutral_padding=False"
            )


def _check_rebase(kernel: RowKernel, arguments: dict[OpFunction, list[str]]) -> None:
    """Raises PluginError if a later term uses a number of a part of a row, and no function adapts its sum."""
    for function, names in arguments.items():
        statistic = kernel.statistics[function.statistic] if function.role == "term" and function.statistic else None
        if statistic is None or statistic.rebase is not None:
            continue
        if used := [name for name in names if name in (kernel.statistics[0].name, "count")]:
            raise PluginError(
                f"kernel {kernel.name!r}: {function.name}, the term of {statistic.name!r}, uses {used[0]}, which "
                f"differs between the parts of a row: declare rebase, a function that adapts {statistic.name!r} of a "
                "part"
            )
