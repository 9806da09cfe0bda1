"""Finds the range of row counts for which a plan holds, by recording what a planning function reads of the rows.

For a problem of one row, it finds the range of columns.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Concatenate, ParamSpec

from tridal.devices.kernel_config import KernelConfig
from tridal.devices.plans import MAX_PROGRAMS, LaunchPlan
from tridal.devices.problem import MAX_RANGE_ROWS, Problem

_P = ParamSpec("_P")
_CONFIG_FIELDS = tuple(field.name for field in fields(KernelConfig))


def with_row_range(
    plan: Callable[Concatenate[Problem, _P], LaunchPlan],
) -> Callable[Concatenate[Problem, _P], LaunchPlan]:
    """Decorates a planning function plan(problem, ...), so that its plans have a `row_range` and `tiles_per_group`.

    The function must not read the number of rows in another way than by `problem`. `problem.inner` is a `RowCount`. If
    there is one row, `problem.cols` is one instead, and the plan has a `column_range`.
    Problems with several blocks, and those with the layout "inner", are planned as they are, and get no range.

    Example:
        >>> from tridal.types import KernelConfig, LaunchPlan, Problem, next_power_of_2, with_row_range
        >>> @with_row_range
        ... def plan(problem):
        ...     rows = next_power_of_2(problem.inner, 16)
        ...     return LaunchPlan(KernelConfig("whole_row", rows, 1024), problem.tiles(rows), "a program per tile")
        >>> plan(Problem(cols=1000, inner=50)).row_range
        (9, 268435456)
    """

    @functools.wraps(plan)
    def planned_for_range(problem: Problem, /, *args: _P.args, **kwargs: _P.kwargs) -> LaunchPlan:
        one_row = problem.inner == 1
        size = problem.cols if one_row else problem.inner
        if problem.outer > 1 or problem.layout == "inner" or size > MAX_RANGE_ROWS:
            return plan(problem, *args, **kwargs)
        rows = _Range(size)
        counted: Any = RowCount(rows)
        own, problem = problem, replace(problem, cols=counted) if one_row else replace(problem, inner=counted)
        others: Any = [_reading_configs(value) for value in args]
        planned = plan(problem, *others, **{name: _reading_configs(value) for name, value in kwargs.items()})
        planned = replace(planned, config=_read_config(planned.config), occupancy=_read(planned.occupancy))
        programs: Any = planned.programs
        if one_row:
            return replace(planned, programs=_read(programs), column_range=(rows.first, rows.last))
        if isinstance(programs, RowCount):
            divisors = [number for step, number in programs._steps if step is operator.floordiv]
            for tiles in (1, *divisors):
                rule = replace(planned, tiles_per_group=tiles)
                if programs._steps == getattr(rule.programs_for(problem, counted), "_steps", None):
                    planned, programs = rule, programs.at(rows.own)
                    break
        programs = _read(programs)  # narrows the range if no rule gives the programs
        rows.ask(lambda number: planned.programs_for(own, number) <= MAX_PROGRAMS)
        return replace(planned, programs=programs, row_range=(rows.first, rows.last))

    return planned_for_range


def _read_config(config: KernelConfig) -> KernelConfig:
    """Returns the configuration with numbers instead of `RowCount` objects."""
    counts = {name: value for name in _CONFIG_FIELDS if isinstance(value := getattr(config, name), RowCount)}
    return replace(config, **{name: _read(value) for name, value in counts.items()}) if counts else config


def _reading_configs(value: Any) -> Any:
    """Returns a probe that reads the configurations it is given, and other arguments of a planning function as is."""
    return (lambda config: value(_read_config(config))) if callable(value) else value


class _Range:
    """The rows around `own` that give the same answer to everything that was asked."""

    def __init__(self, own: int) -> None:
        self.own, self.first, self.last = own, 1, MAX_RANGE_ROWS

    def ask(self, question: Callable[[int], Any]) -> Any:
        """Returns question(own). Narrows the range to the rows with this answer, which have to be neighbours."""
        answer = question(self.own)
        self.first, self.last = (self._limit(end, question, answer) for end in (self.first, self.last))
        return answer

    def _limit(self, end: int, question: Callable[[int], Any], answer: Any) -> int:
        """Returns the last of the rows from `own` to `end` that have this answer."""
        if question(end) == answer:
            return end
        same, other = self.own, end
        while abs(other - same) > 1:
            middle = (same + other) // 2
            same, other = (middle, other) if question(middle) == answer else (same, middle)
        return same


class RowCount:
    """Stands for the number of rows, or of the columns of one row, or a monotone function of it, while a plan is made.

    Sums, products and quotients with numbers are functions of the rows too. Each comparison narrows the range to the
    rows for which it has the same result. Everything else reads the value, and narrows the range to the rows with this
    value. Formatting does not narrow it, because a reason is text for users.
    """

    __slots__ = ("_range", "_steps")

    def __init__(self, rows: _Range, steps: tuple[tuple[Callable[[Any, Any], Any], Any], ...] = ()) -> None:
        self._range, self._steps = rows, steps

    def at(self, rows: int) -> Any:
        """Returns the value for a number of rows. Does not narrow the range."""
        value: Any = rows
        for step, number in self._steps:
            value = step(value, number)
        return value

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """Returns question(value), and narrows the range to the rows with this answer, which have to be neighbours."""
        return self._range.ask(lambda rows: question(self.at(rows)))

    def _then(self, step: Callable[[Any, Any], Any], number: Any) -> RowCount:
        number = _read(number)
        unchanged = type(number) is int and (step, number) in ((operator.mul, 1), (operator.floordiv, 1))
        return self if unchanged else RowCount(self._range, (*self._steps, (step, number)))

    def __eq__(self, other: object) -> bool:
        number: Any = _read(other)
        if not isinstance(number, (int, float)):
            return NotImplemented
        return bool(self._ask(lambda value: (value > number) - (value < number)) == 0)

    def __neg__(self) -> RowCount:
        return self._then(operator.mul, -1)

    def __rsub__(self, other: Any) -> RowCount:
        return (-self)._then(operator.add, other)

    def bit_length(self) -> Any:
        """Returns the bits of the value. Narrows the range to the rows whose values have as many bits."""
        negative = self._ask(lambda value: value < 0)
        return abs(_read(self)).bit_length() if negative else self._ask(lambda value: value.bit_length())

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        return hash(_read(self))

    def __str__(self) -> str:
        return str(self.at(self._range.own))

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self.at(self._range.own), spec)

    def __deepcopy__(self, memo: Any) -> RowCount:
        return self  # `dataclasses.asdict` copies fields, and all copies narrow one range


def _stepping(step: Callable[[Any, Any], Any]) -> Callable[[RowCount, Any], RowCount]:
    return lambda count, number: count._then(step, number)


def _comparing(compare: Callable[[Any, Any], Any]) -> Callable[[RowCount, Any], bool]:
    def method(count: RowCount, other: Any) -> bool:
        number = _read(other)
        return bool(count._ask(lambda value: compare(value, number)))

    return method


def _reading(name: str) -> Callable[..., Any]:
    return lambda count, *others: getattr(_read(count), name)(*map(_read, others))


_OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: _stepping(getattr(operator, name)) for name in ("add", "sub", "mul", "floordiv", "truediv")},
    "radd": _stepping(operator.add),
    "rmul": _stepping(operator.mul),
    **{name: _comparing(getattr(operator, name)) for name in ("lt", "le", "gt", "ge")},
}
# Operators that are not monotone for all numbers, and some that are rarely used.
for _name in (
    *("mod", "rmod", "rfloordiv", "rtruediv", "divmod", "pow", "rpow", "lshift", "rlshift", "rshift", "rrshift"),
    *("and", "rand", "or", "ror", "xor", "rxor", "abs", "round", "trunc", "floor", "ceil", "int", "float", "index"),
):
    _OPERATORS[_name] = _reading(f"__{_name}__")
for _name, _method in _OPERATORS.items():
    setattr(RowCount, f"__{_name}__", _method)


def _read(number: Any) -> Any:
    """Returns the value of a `RowCount`, and narrows the range to the rows with this value. Returns others as is."""
    return number._ask(lambda value: value) if isinstance(number, RowCount) else number
