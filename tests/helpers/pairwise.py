"""Covering arrays: few rows that contain every pair of values of two axes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

Item = tuple[str, str]
"""An axis and one of its values."""
Row = dict[str, str]
"""A value for each axis."""


def pairs_of(row: Mapping[str, str]) -> set[frozenset[Item]]:
    return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


def all_pairs(axes: Mapping[str, Sequence[str]], allowed: Callable[[Row], bool]) -> list[frozenset[Item]]:
    """Returns the allowed pairs of values of different axes, in a fixed order."""
    items = [[(axis, value) for value in values] for axis, values in axes.items()]
    pairs = (pair for one, other in itertools.combinations(items, 2) for pair in itertools.product(one, other))
    return [frozenset(pair) for pair in pairs if allowed(dict(pair))]


def covering_rows(
    axes: Mapping[str, Sequence[str]], allowed: Callable[[Row], bool], through: Item | None = None
) -> list[Row]:
    """Returns allowed rows that contain every allowed pair, or every allowed pair with the value `through`.

    allowed(part of a row) returns whether rows may contain these values.

    A row starts with a pair that no row contains yet. Each other axis gets the value with the most such pairs. If that
    ends at an axis without an allowed value, the next value is tried.
    """
    missing = dict.fromkeys(pair for pair in all_pairs(axes, allowed) if through is None or through in pair)
    rows: list[Row] = []

    def complete(row: Row) -> Row | None:
        axis = next((axis for axis in axes if axis not in row), None)
        if axis is None:
            return row
        fitting = [value for value in axes[axis] if allowed(row | {axis: value})]
        fitting.sort(key=lambda value: -sum(frozenset({item, (axis, value)}) in missing for item in row.items()))
        return next(filter(None, (complete(row | {axis: value}) for value in fitting)), None)

    while missing:
        start = dict(sorted(next(iter(missing))))
        row = complete(start)
        assert row is not None, f"no row contains {start}: exclude this pair"
        rows.append({axis: row[axis] for axis in axes})
        for pair in pairs_of(row):
            missing.pop(pair, None)
    return rows
