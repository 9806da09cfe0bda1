"""Covering arrays: rows contain every allowed pair, and no excluded set of values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pairwise import Item, Row, all_pairs, covering_rows, pairs_of

SIZES = st.lists(st.integers(1, 5), min_size=2, max_size=5)
ITEM = st.tuples(st.sampled_from("0123"), st.sampled_from("1234"))


@given(SIZES, st.lists(st.sets(ITEM, min_size=2, max_size=3), max_size=6))
def test_rows_contain_every_allowed_pair_and_no_excluded_set(sizes: list[int], excluded: list[set[Item]]) -> None:
    axes = {str(axis): list(map(str, range(size))) for axis, size in enumerate(sizes)}

    def allowed(row: Row) -> bool:
        """The first values, which are 0, are allowed with every value."""
        return not any(items <= row.items() for items in excluded)

    rows = covering_rows(axes, allowed)
    assert all(row.keys() == axes.keys() and allowed(row) for row in rows)
    assert set().union(*map(pairs_of, rows)) >= set(all_pairs(axes, allowed))


def test_few_rows_contain_all_pairs() -> None:
    axes = {str(axis): list("abcdef") for axis in range(5)}
    assert len(covering_rows(axes, lambda row: True)) <= 2 * 6 * 6
