"""Shapes and strides become blocks of rows: every element is found where torch keeps it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tridal.runtime.row_layout import Geometry, contiguous_strides, geometry


def offsets(g: Geometry, strides: tuple[int, int, int]) -> torch.Tensor:
    """Offset of each element by (outer, inner, col)."""
    sizes = (g.outer, g.inner, g.cols)
    axes = [torch.arange(size) * step for size, step in zip(sizes, strides, strict=True)]
    return axes[0][:, None, None] + axes[1][None, :, None] + axes[2][None, None, :]


@st.composite
def strided(draw: st.DrawFn) -> tuple[torch.Tensor, int]:
    """A view, sliced, permuted and expanded, of a tensor that holds its own offsets; and a dim."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    x = torch.arange(torch.Size(shape).numel()).view(shape)
    x = x.permute(draw(st.permutations(range(len(shape)))))
    for axis, size in enumerate(x.shape):
        start, step = draw(st.integers(0, size - 1)), draw(st.integers(1, 2))
        x = x[(slice(None),) * axis + (slice(start, None, step),)]
    if draw(st.booleans()):
        x = x.unsqueeze(0).expand(draw(st.integers(2, 3)), *x.shape)
    return x, draw(st.integers(0, x.dim() - 1))


@given(strided())
def test_walks_every_element(case: tuple[torch.Tensor, int]) -> None:
    x, dim = case
    g = geometry(x.shape, x.stride(), dim)
    if g is None:
        return
    read = offsets(g, g.in_strides) + x.storage_offset()
    written = offsets(g, g.out_strides)
    assert sorted(written.flatten().tolist()) == list(range(x.numel())), "each element is written once"
    out = torch.empty(x.numel(), dtype=x.dtype)
    out[written] = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)[read]
    assert torch.equal(out.view(x.shape), x), "and from where it was read"
    rows = x.movedim(dim, -1).reshape(-1, x.shape[dim])
    walked = out[written].reshape(-1, g.cols)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, walked.tolist())), "along the dim"


@given(strided())
def test_reads_all_that_two_strides_tell(case: tuple[torch.Tensor, int]) -> None:
    x, dim = case
    others = [axis for axis in range(x.dim()) if axis != dim and x.shape[axis] > 1]
    if len(others) <= 2:
        assert geometry(x.shape, x.stride(), dim) is not None


@pytest.mark.parametrize(
    ("shape", "strides", "dim", "sizes", "layout"),
    [
        ((6, 7), (7, 1), 1, (1, 6, 7), "row"),
        ((6, 7), (7, 1), 0, (1, 7, 6), "inner"),
        ((4, 5, 16), (80, 16, 1), 1, (4, 16, 5), "inner"),
        ((4, 5, 16), (80, 16, 1), 2, (1, 20, 16), "row"),
        ((7, 6), (1, 7), 1, (1, 7, 6), "strided"),
        ((100, 5, 2), (10, 2, 1), 1, (2, 100, 5), "strided"),  # two neighbours are too few rows for a tile
        ((4, 6, 7), (100, 7, 1), 2, (4, 6, 7), "row"),  # a slice
        ((4, 6, 7), (0, 0, 1), 2, (1, 24, 7), "row"),  # expanded
        ((9,), (3,), 0, (1, 1, 9), "strided"),
        ((9, 1), (1, 1), 1, (1, 9, 1), "inner"),  # rows of one element are neighbours
        ((1, 1), (5, 3), 0, (1, 1, 1), "strided"),
    ],
)
def test_layout(
    shape: tuple[int, ...], strides: tuple[int, ...], dim: int, sizes: tuple[int, int, int], layout: str
) -> None:
    g = geometry(shape, strides, dim)
    assert g is not None
    assert (g.outer, g.inner, g.cols) == sizes
    assert g.layout == layout


def test_three_strides_are_too_many() -> None:
    x = torch.empty(3, 4, 5, 6, device="meta").to(memory_format=torch.channels_last)
    assert geometry(x.shape, x.stride(), 3) is None
    assert geometry(x.shape, x.stride(), 1) is not None


def test_extent_is_the_last_offset_of_a_tile() -> None:
    g = geometry((70_000, 70_000), (70_000, 1), 0)
    assert g is not None
    assert g.extent(rows=16, cols=1 << 17) == 15 + ((1 << 17) - 1) * 70_000


@given(st.lists(st.integers(1, 9), max_size=6))
def test_contiguous_strides_are_torchs(shape: list[int]) -> None:
    assert contiguous_strides(shape) == torch.empty(shape, device="meta").stride()
