"""The data of a scale and mask: where a kernel reads the mask of each row, and which alignment it may assume."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

from tridal.runtime.row_layout import row_layout
from tridal.runtime.scale_mask import ROW_LIMIT, ScaleMask, locate_mask

FLOAT_MASK = ScaleMask(mask="float32")


def located(
    shape: tuple[int, ...], mask: tuple[int, ...], dim: int = -1, scale_mask: ScaleMask = FLOAT_MASK
) -> ScaleMask | None:
    """Returns `locate_mask` for contiguous scores and a contiguous mask of these shapes."""
    scores = torch.empty(shape, device="meta")
    strides = torch.empty(mask, device="meta").expand(shape).stride()
    return locate_mask(scale_mask, shape, scores.stride(), strides, dim % len(shape))


@st.composite
def masks(sample: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, int, bool]:
    """Scores and a mask with permuted strides, the reduced dim, and whether the masking is causal as well."""
    rank = sample(st.integers(1, 5))
    shape = sample(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    order = sample(st.permutations(range(rank)))
    scores = (
        torch.arange(math.prod(shape)).view([shape[axis] for axis in order]).permute(*map(order.index, range(rank)))
    )
    own = [size if sample(st.booleans()) else 1 for size in shape][sample(st.integers(0, rank - 1)) :]
    order = sample(st.permutations(range(len(own))))
    mask = torch.arange(math.prod(own)).view([own[a] for a in order]).permute(*map(order.index, range(len(own))))
    causal = sample(st.booleans()) and rank > 1
    return scores, mask.expand(shape), rank - 1 if causal else sample(st.integers(0, rank - 1)), causal


@settings(max_examples=200, deadline=None)
@given(case=masks())
def test_the_numbers_of_a_row_lead_to_its_part_of_the_mask(case: tuple[torch.Tensor, torch.Tensor, int, bool]) -> None:
    scores, mask, dim, causal = case
    found = locate_mask(replace(FLOAT_MASK, causal=causal), scores.shape, scores.stride(), mask.stride(), dim)
    if found is None:
        return
    batch, head, query, col = found.strides
    rows = mask.movedim(dim, -1).flatten(0, -2) if mask.dim() > 1 else mask.view(1, -1)
    for row, elements in enumerate(rows.tolist()):
        number = row % found.queries
        start = row // found.queries // found.heads * batch + row // found.queries % found.heads * head
        start += number * query
        assert elements == [start + column * col for column in range(len(elements))]
        if causal:
            assert found.queries == scores.shape[-2], "the number of a row's query is that in its head"
    layout = row_layout(scores.shape, scores.stride(), dim, 0)
    if layout is not None:  # for a kernel, row n is row n % inner of block n // inner
        offsets = [
            block * layout.groups[1][0] + row * layout.groups[1][1]
            for block, row in product(range(layout.outer), range(layout.inner))
        ]
        contiguous = torch.arange(scores.numel()).view(scores.shape).select(dim, 0).flatten()
        assert offsets == contiguous.tolist()


def test_a_mask_with_too_many_strides_or_rows_is_not_placed() -> None:
    assert located((2, 3, 4, 5, 6), (2, 1, 4, 1, 6)) is None
    assert located((2, 3, 4, 5, 6), (2, 1, 4, 5, 6)) is not None
    assert locate_mask(FLOAT_MASK, (ROW_LIMIT, 2), (2, 1), (0, 1), 1) is None
    assert locate_mask(FLOAT_MASK, (ROW_LIMIT - 1, 2), (2, 1), (0, 1), 1) is not None


@settings(max_examples=200, deadline=None)
@given(case=masks(), vector=st.sampled_from([2, 4]), address=st.integers(0, 63), misalignment=st.integers(0, 3))
def test_alignment_holds_for_every_row(
    case: tuple[torch.Tensor, torch.Tensor, int, bool], vector: int, address: int, misalignment: int
) -> None:
    scores, mask, dim, _ = case
    found = locate_mask(ScaleMask(mask="uint8", address=address), scores.shape, scores.stride(), mask.stride(), dim)
    if found is None:
        return
    starts = mask.select(dim, 0).flatten() + address
    if found.alignment(vector, 64, None) > 1:
        assert not (starts % vector).any()
    misalignment %= vector
    if found.alignment(vector, 64, misalignment) > 1:  # then the first vectors of scores and mask coincide
        assert not ((starts - scores.select(dim, 0).flatten() - misalignment) % vector).any()
