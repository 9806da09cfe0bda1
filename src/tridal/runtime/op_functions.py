"""Makes an op's Triton functions callable by a schedule, which passes all arguments by position.

An op's function declares only the parameters that it uses. For each function, this module generates an adapter: a
Triton function that takes all arguments in `CALLS` and passes on the declared ones. If the op's module has no function
with the name of a term or an output, the adapter returns the argument with this name: for a term and for an output with
a number per element, one of `reads`; for an output with a number per row, one of `row_reads`, a statistic or
`row_value`. A function may declare:

- the op's parameters, and the statistics that are known when the function is called;
- the tensors that the kernel reads, in terms, `writes` and `column_writes`; in `row_value` and `row_writes`, only those
  of `row_reads`;
- the input `row_index`, in `row_value`, `writes`, `row_writes` and `column_writes`;
- `picked`, in `row_value` and `row_writes`: the element of the first tensor in the column that `row_index` gives;
- `picked_<name>`, in `row_value` and `row_writes`: the number of the first tensor of `column_reads` for that column;
- the kernel's constants, see `RowKernel.bind`;
- `column`, in terms, `writes` and `column_writes`: the column of each element;
- `in_bounds`, in the second term: whether each element is one of the tensor, and not beyond the end of a row or beyond
  the last row. Kernels with `neutral_padding` need it if a term of padding is not zero;
- `count`: the number of elements that the statistics cover; `part_count`, in `rebase`: the number that a part covers;
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

import functools
import hashlib
import importlib
import inspect
import linecache
import math
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from tridal.errors import PluginError
from tridal.runtime.function_errors import describe_unhashable
from tridal.runtime.row_kernel import RowKernel

_TENSORS = ("x", "x2", "per_row", "per_row2", "per_column", "per_column2")
_NUMBERS = ("per_row", "per_row2", "index", "picked", "picked_column", "param0", "param1")
_FINISH = (
    *_TENSORS, "index", "column", "param0", "param1", "part_first", "part_scale", "first", "second", "row_value",
    "count", "AXIS", "EXP2_BIAS", "UNNORMALISED", "GUARD", "REFINE", "ZERO_MASKED_ROWS",
)  # fmt: skip
_ROW_WRITE = (*_NUMBERS, "first", "second", "row_value", "count")

CALLS: Mapping[str, tuple[str, ...]] = {
    "first_term": (*_TENSORS, "column", "param0", "param1", "AXIS", "EXP2_BIAS"),
    "second_term": (
        *_TENSORS, "column", "param0", "param1", "first", "count", "in_bounds", "AXIS", "EXP2_BIAS", "UNNORMALISED",
        "GUARD",
    ),
    "rebase": ("second", "part_first", "first", "part_count", "count", "param0", "param1", "EXP2_BIAS"),
    "row_value": (
        *_NUMBERS, "part_scale", "first", "second", "count", "EXP2_BIAS", "REFINE", "ZERO_MASKED_ROWS",
    ),
    "finish": _FINISH,
    "finish2": _FINISH,
    "row_write": _ROW_WRITE,
    "row_write2": _ROW_WRITE,
    "column_term": _FINISH,
    "column_term2": _FINISH,
}  # fmt: skip
"""The arguments that the schedules pass, in order, for each role of an op's function."""
_PER_ROW = ("per_row", "per_row2", "first", "second", "row_value")
_RETURNED = {role: _PER_ROW if role.startswith("row_write") else ("x", "x2") for role in CALLS} | {
    "rebase": (),
    "row_value": (),
}
"""The arguments that an adapter may return without a function, for each role."""


def function_names(kernel: RowKernel) -> dict[str, str]:
    """Returns the name of the op's function for each role that it has."""
    first, second = [*kernel.statistics, None, None][:2]
    names: list[Any] = [first and first.term, second and second.term, second and second.rebase, kernel.row_value]
    for written in (kernel.writes, kernel.row_writes, kernel.column_writes):
        names += (*written, None, None)[:2]
    return {role: name for role, name in zip(CALLS, names, strict=True) if name}


def adapters(kernel: RowKernel, wrap: Callable[[Any], Any]) -> dict[str, Any]:
    """Returns the constants of a schedule that define the op: an adapter for each role, the reductions, the padding.

    `wrap` turns a Python or Triton function into one that the kernel can call: compiled or interpreted.
    """
    named = function_names(kernel)
    functions = {role: _function(kernel, role, name) for role, name in named.items()}
    arguments = {role: _arguments(name, functions[role]) for role, name in named.items()}
    _check_column_terms(kernel, {named[r]: arguments[r] for r in ("column_term", "column_term2") if r in named})
    _check_rebase(kernel, arguments.get("second_term", []))
    declared = set().union(*arguments.values())
    made = {role: _adapter(kernel, role, name, functions[role], wrap) for role, name in named.items()}
    first, second = [*kernel.statistics, None, None][:2]
    return {
        **{role: made.get(role) for role in CALLS},
        "FIRST": first and first.reduce,
        "SECOND": second and second.reduce,
        "PICKS": "picked" in declared,
        "PICKS_COLUMN": any(f"picked_{name}" in declared for name in kernel.column_reads[:1]),
        "COUNTS": not declared.isdisjoint({"count", "part_count"}),
        "PADDING": kernel.padding,
        "NEUTRAL_PADDING": kernel.neutral_padding,
        "MASKS_TERMS": not kernel.neutral_padding or "in_bounds" in declared,
    }


def _arguments(name: str, function: Any) -> list[str]:
    """Returns the names of a function's parameters, or the name of the argument that stands for a function."""
    return [name] if function is None else function.arg_names


def _check_column_terms(kernel: RowKernel, terms: Mapping[str, list[str]]) -> None:
    """Raises PluginError if an unmasked term uses a number that may not be zero in a row beyond the last one."""
    statistics = [name for statistic in kernel.statistics for name in (statistic.name, f"part_{statistic.name}")]
    unsafe = {*statistics, "part_scale", kernel.row_value, *kernel.column_reads}
    for term, arguments in terms.items() if kernel.neutral_padding else ():
        if used := [name for name in arguments if name in unsafe]:
            raise PluginError(
                f"kernel {kernel.name!r}: {term} is the term of a sum over rows and uses {used[0]}, which "
                "may be infinite for a row beyond the last one: set neutral_padding=False"
            )


def _check_rebase(kernel: RowKernel, second_term: list[str]) -> None:
    """Raises PluginError if the second term uses a number of a part of a row, and no function adapts its sum."""
    if len(kernel.statistics) == 2 and kernel.statistics[1].rebase is None:
        first, second = kernel.statistics
        if used := [name for name in second_term if name in (first.name, "count")]:
            raise PluginError(
                f"kernel {kernel.name!r}: {second.term}, the term of {second.name!r}, uses {used[0]}, which differs "
                f"between the parts of a row: declare rebase, a function that adapts {second.name!r} of a part"
            )


def _function(kernel: RowKernel, role: str, name: str) -> Any:
    """Returns the Triton function of the op's module with this name; None if the name is that of an argument instead.

    Raises:
        PluginError: there is neither, or Triton cannot hash the function.
    """
    function = getattr(importlib.import_module(kernel.module), name, None)
    if hasattr(function, "arg_names"):
        if (fault := describe_unhashable((function,))) is not None:
            raise PluginError(f"kernel {kernel.name!r}: Triton cannot compile {fault}")
        return function
    if kernel.arguments.get(name) not in _RETURNED[role]:
        shape = "row" if role.startswith("row_write") else "element"
        hint = f": {name!r} is not a number per {shape}" if name in kernel.arguments else ""
        raise PluginError(f"kernel {kernel.name!r} needs a Triton function {name!r} in {kernel.module}{hint}")
    return None


@functools.lru_cache(maxsize=1024)
def _adapter(kernel: RowKernel, role: str, name: str, function: Any, wrap: Callable[[Any], Any]) -> Any:
    """Generates the adapter of an op's function for a role, which is a key of `CALLS`. None returns the argument."""
    own, given = kernel.arguments, CALLS[role]
    same = ("count", "in_bounds", "part_count", "part_scale", "column", "picked")
    known = {argument: argument for argument in given if argument.isupper() or argument in same}
    known |= {own_name: argument for own_name, argument in own.items() if argument in given}
    for constant, value in kernel.constants:
        known[constant] = f"tl.{value}" if constant.endswith("_DTYPE") else _literal(value)
        known.setdefault(f"picked_{constant}", "None")
    declared = _arguments(name, function)
    if unknown := [argument for argument in declared if argument not in known]:
        raise PluginError(
            f"{kernel.module}.{name} names {', '.join(unknown)}; "
            f"as {role} of kernel {kernel.name!r} it can name {', '.join(sorted(known))}"
        )
    passed = ", ".join(known[argument] for argument in declared)
    parameters = ", ".join(f"{argument}: tl.constexpr" if argument.isupper() else argument for argument in given)
    adapter, called = f"{name}_as_{role}", f"{name}_of_op" if name in given else name
    source = f"def {adapter}({parameters}):\n    return {passed if function is None else f'{called}({passed})'}\n"
    # Triton reads the source of a function with inspect, which looks up the file name in the line cache.
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    file = f"<tridal {kernel.module}.{name} {digest}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    import triton
    import triton.language as tl

    scope: dict[str, Any] = {"__name__": f"{kernel.module}.{role}", "triton": triton, "tl": tl}
    if function is not None:
        scope[called] = wrap(function)
    exec(compile(source, file, "exec"), scope)
    adapted = scope[adapter]
    assert isinstance(adapted, FunctionType)
    assert inspect.getsource(adapted) == source
    return wrap(adapted)


def _literal(value: Any) -> str:
    """Returns a constant as source."""
    return f"float({str(value)!r})" if isinstance(value, float) and not math.isfinite(value) else repr(value)


def fingerprint(functions: Mapping[str, Any]) -> str:
    """Returns a hash of the source of compiled functions. Triton 3.2 does not hash functions among the constants."""
    keys = [f"{role} {function.cache_key}" for role, function in functions.items() if hasattr(function, "cache_key")]
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]
