"""Where a kernel finds a row's part of a mask, element for element, and what it is promised of its alignment."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from tridal.runtime.row_layout import geometry
from tridal.runtime.scale_mask import MOST_ROWS, Weighing, place_mask

ADDED = Weighing(mask="float32")


def placed(shape: tuple[int, ...], mask: tuple[int, ...], dim: int = -1, weighing: Weighing = ADDED) -> Weighing | None:
    """Where a contiguous mask of a shape lies for contiguous scores."""
    scores = torch.empty(shape, device="meta")
    strides = torch.empty(mask, device="meta").expand(shape).stride()
    return place_mask(weighing, shape, scores.stride(), strides, dim % len(shape))


@st.composite
def masks(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, int, bool]:
    """Scores and a mask that lie anyhow, a dim, and whether softmax is causal."""
    rank = draw(st.integers(1, 5))
    shape = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    order = draw(st.permutations(range(rank)))
    scores = (
        torch.arange(math.prod(shape)).view([shape[axis] for axis in order]).permute(*map(order.index, range(rank)))
    )
    own = [size if draw(st.booleans()) else 1 for size in shape][draw(st.integers(0, rank - 1)) :]
    order = draw(st.permutations(range(len(own))))
    mask = torch.arange(math.prod(own)).view([own[a] for a in order]).permute(*map(order.index, range(len(own))))
    causal = draw(st.booleans()) and rank > 1
    return scores, mask.expand(shape), rank - 1 if causal else draw(st.integers(0, rank - 1)), causal


@settings(max_examples=400, deadline=None)
@given(case=masks())
def test_every_element_is_found(case: tuple[torch.Tensor, torch.Tensor, int, bool]) -> None:
    scores, mask, dim, causal = case
    found = place_mask(replace(ADDED, causal=causal), scores.shape, scores.stride(), mask.stride(), dim)
    if found is None:
        return
    batch, head, query, col = found.strides
    rows = mask.movedim(dim, -1).flatten(0, -2) if mask.dim() > 1 else mask.view(1, -1)
    for row, elements in enumerate(rows.tolist()):
        at = row % found.queries
        start = row // found.queries // found.heads * batch + row // found.queries % found.heads * head + at * query
        assert elements == [start + column * col for column in range(len(elements))]
        if causal:
            assert found.queries == scores.shape[-2], "which of a head's queries a row is"
    where = geometry(scores.shape, scores.stride(), dim, 0)
    if where is not None:  # a kernel takes row n to be row n % inner of block n // inner
        offsets = [block * where.out_strides[0] + row * where.out_strides[1] for block, row in
                   product(range(where.outer), range(where.inner))]  # fmt: skip
        contiguous = torch.arange(scores.numel()).view(scores.shape).select(dim, 0).flatten()
        assert offsets == contiguous.tolist()


@pytest.mark.parametrize(
    ("mask", "queries", "heads", "strides"),
    [
        ((2, 3, 5, 7), 1, 1, (7, 0, 0, 1)),
        ((7,), 1, 1, (0, 0, 0, 1)),
        ((1,), 1, 1, (0, 0, 0, 0)),
        ((5, 7), 1, 5, (0, 7, 0, 1)),
        ((2, 1, 1, 7), 1, 15, (7, 0, 0, 1)),
        ((2, 1, 5, 7), 5, 3, (35, 0, 7, 1)),
        ((3, 5, 1), 1, 15, (0, 1, 0, 0)),
    ],
    ids=str,
)
def test_as_few_numbers_as_do(
    mask: tuple[int, ...], queries: int, heads: int, strides: tuple[int, int, int, int]
) -> None:
    found = placed((2, 3, 5, 7), mask)
    assert found == replace(ADDED, queries=queries, heads=heads, strides=strides, apart=found.apart if found else 0)


def test_queries_keep_a_dimension_of_their_own_where_causality_counts_them() -> None:
    found = placed((2, 3, 5, 7), (2, 3, 5, 7), weighing=replace(ADDED, causal=True))
    assert found is not None
    assert (found.queries, found.strides) == (5, (35, 0, 7, 1))
    one = placed((4, 1, 7), (7,), weighing=replace(ADDED, causal=True))
    assert one is not None
    assert one.queries == 1


def test_what_takes_too_many_strides_or_rows() -> None:
    assert placed((2, 3, 4, 5, 6), (2, 1, 4, 1, 6)) is None
    assert placed((2, 3, 4, 5, 6), (2, 1, 4, 5, 6)) is not None
    assert place_mask(ADDED, (MOST_ROWS, 2), (2, 1), (0, 1), 1) is None
    assert place_mask(ADDED, (MOST_ROWS - 1, 2), (2, 1), (0, 1), 1) is not None


@pytest.mark.parametrize(
    ("weighing", "vector", "cols", "shift", "expected"),
    [
        (replace(ADDED, strides=(1024, 0, 0, 1)), 4, 64, None, 16),
        (replace(ADDED, strides=(1024, 0, 0, 1), mask="uint8"), 8, 64, None, 8),
        (replace(ADDED, strides=(1001, 0, 0, 1)), 4, 64, None, 1),
        (replace(ADDED, strides=(1024, 64, 6, 1)), 4, 64, None, 1),
        (replace(ADDED, strides=(1024, 0, 0, 1), address=8), 4, 64, None, 1),
        (replace(ADDED, strides=(1024, 0, 0, 2)), 4, 64, None, 1),
        (replace(ADDED, strides=(1024, 0, 0, 1)), 4, 2, None, 1),
        (Weighing(0.5), 4, 64, None, 1),
        (replace(ADDED, strides=(1001, 0, 0, 1), apart=0), 4, 64, 0, 16),
        (replace(ADDED, strides=(1001, 0, 0, 1), apart=4), 4, 64, 0, 16),
        (replace(ADDED, strides=(1001, 0, 0, 1), apart=2), 4, 64, 0, 1),
        (replace(ADDED, strides=(1001, 0, 0, 1), address=12), 4, 64, 3, 16),
        (replace(ADDED, strides=(1001, 0, 0, 1), address=12), 4, 64, 0, 1),
        (replace(ADDED, strides=(1001, 0, 0, 1), mask="uint8", address=3), 4, 64, 3, 4),
    ],
)
def test_what_is_promised(weighing: Weighing, vector: int, cols: int, shift: int | None, expected: int) -> None:
    assert weighing.boundary(vector, cols, shift) == expected


@settings(max_examples=200, deadline=None)
@given(case=masks(), vector=st.sampled_from([2, 4]), address=st.integers(0, 63), shift=st.integers(0, 3))
def test_a_promise_holds_for_every_row(
    case: tuple[torch.Tensor, torch.Tensor, int, bool], vector: int, address: int, shift: int
) -> None:
    scores, mask, dim, _ = case
    found = place_mask(Weighing(mask="uint8", address=address), scores.shape, scores.stride(), mask.stride(), dim)
    if found is None:
        return
    starts = mask.select(dim, 0).flatten() + address
    if found.boundary(vector, 64, None) > 1:
        assert not (starts % vector).any()
    shift %= vector
    if found.boundary(vector, 64, shift) > 1:  # where a row's first whole vector is, the mask's is
        assert not ((starts - scores.select(dim, 0).flatten() - shift) % vector).any()
