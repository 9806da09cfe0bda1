"""Row layouts: shapes and strides become blocks of rows, and every element keeps its place in memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tridal.runtime.row_layout import RowLayout, group_strides, row_layout


def offsets(layout: RowLayout, strides: tuple[int, int, int]) -> torch.Tensor:
    """Returns the offset of each element, by [outer, inner, col]."""
    sizes = (layout.outer, layout.inner, layout.cols)
    axes = [torch.arange(size) * step for size, step in zip(sizes, strides, strict=True)]
    return axes[0][:, None, None] + axes[1][None, :, None] + axes[2][None, None, :]


@st.composite
def views(sample: st.DrawFn) -> tuple[torch.Tensor, int]:
    """A sliced, permuted and expanded view of a tensor that holds its own offsets; and a dim."""
    shape = sample(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    x = torch.arange(torch.Size(shape).numel()).view(shape)
    x = x.permute(sample(st.permutations(range(len(shape)))))
    for axis, size in enumerate(x.shape):
        start, step = sample(st.integers(0, size - 1)), sample(st.integers(1, 2))
        x = x[(slice(None),) * axis + (slice(start, None, step),)]
    if sample(st.booleans()):
        x = x.unsqueeze(0).expand(sample(st.integers(2, 3)), *x.shape)
    return x, sample(st.integers(0, x.dim() - 1))


@given(views())
def test_each_element_is_read_and_written_where_torch_stores_it(case: tuple[torch.Tensor, int]) -> None:
    x, dim = case
    layout = row_layout(x.shape, x.stride(), dim)
    if layout is None:
        return
    read = offsets(layout, layout.groups[0]) + x.storage_offset()
    written = offsets(layout, layout.groups[1])
    assert sorted(written.flatten().tolist()) == list(range(x.numel())), "each element is written once"
    out = torch.empty(x.numel(), dtype=x.dtype)
    out[written] = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)[read]
    assert torch.equal(out.view(x.shape), x), "each element is written to the position that it was read from"
    expected = x.movedim(dim, -1).reshape(-1, x.shape[dim])
    rows = out[written].reshape(-1, layout.cols)
    assert sorted(map(tuple, expected.tolist())) == sorted(map(tuple, rows.tolist())), "rows run along the dim"


@pytest.mark.parametrize(
    ("shape", "strides", "dim", "sizes", "kind"),
    [
        ((6, 7), (7, 1), 1, (1, 6, 7), "row"),
        ((6, 7), (7, 1), 0, (1, 7, 6), "inner"),
        ((4, 5, 16), (80, 16, 1), 2, (1, 20, 16), "row"),
        ((7, 6), (1, 7), 1, (1, 7, 6), "strided"),
        ((100, 5, 2), (10, 2, 1), 1, (2, 100, 5), "strided"),  # two neighboring rows are too few for a tile
        ((4, 6, 7), (100, 7, 1), 2, (4, 6, 7), "row"),  # a slice
        ((4, 6, 7), (0, 0, 1), 2, (1, 24, 7), "row"),  # expanded
        ((9,), (3,), 0, (1, 1, 9), "strided"),
        ((9, 1), (1, 1), 1, (1, 9, 1), "inner"),  # rows of one element are neighbors
    ],
)
def test_layout_and_sizes_follow_from_shape_and_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], dim: int, sizes: tuple[int, int, int], kind: str
) -> None:
    layout = row_layout(shape, strides, dim)
    assert layout is not None
    assert (layout.outer, layout.inner, layout.cols) == sizes
    assert layout.layout == kind


@pytest.mark.parametrize(
    ("shape", "strides", "rows", "sizes"),
    [
        ((32, 5), (5, 1), 16, (2, 80)),
        ((16, 5), (5, 1), 16, (16, 5)),  # one row would be left
        ((40, 5), (5, 1), 16, (40, 5)),  # two and a half
        ((32, 5), (6, 1), 16, (32, 5)),
        ((32, 5), (1, 32), 16, (32, 5)),
        ((4, 16, 5), (100, 5, 1), 16, (16, 5)),  # blocks
    ],
)
def test_contiguous_rows_are_merged(
    shape: tuple[int, ...], strides: tuple[int, ...], rows: int, sizes: tuple[int, int]
) -> None:
    layout = row_layout(shape, strides, len(shape) - 1)
    assert layout is not None
    merged = layout.merged(rows)
    assert (merged.inner, merged.cols) == sizes
    if merged is not layout:
        assert all(group[1:] == (sizes[1], 1) for group in merged.groups)


STRIDES = [(5, 1), (10, 1), (13, 1), (15, 1), (1, 3), (0, 1), (0, 0), (10, 2), None]
"""Strides of tensors of three rows of five elements. None stands for a new tensor, or for an input that is copied."""


@given(*(st.lists(st.sampled_from(STRIDES), max_size=4) for _ in range(2)), st.sampled_from(STRIDES[:-1]))
def test_tensors_have_one_of_three_groups_of_strides_or_are_copied(
    results: list[tuple[int, int] | None], inputs: list[tuple[int, int] | None], first: tuple[int, int]
) -> None:
    groups, contiguous = group_strides((3, 5), first, results, inputs), (5, 1)
    if groups is None:
        copies = [contiguous] * any(strides != first for strides in inputs)
        assert len({first, *(strides or contiguous for strides in results), *copies}) > 3
        return
    assert len(groups.others) in (1, 2)
    for strides, group, copied in zip((*results, *inputs), groups.of_tensors, groups.copied, strict=True):
        assert (first, *groups.others)[group] == (contiguous if copied or strides is None else strides)
    assert not any(groups.copied[: len(results)])
    assert first not in groups.others or not {0, 2} & {*groups.of_tensors}


@pytest.mark.parametrize(
    ("first", "results", "inputs", "others", "of_tensors", "copied"),
    [
        ((5, 1), [None], [(5, 1)], [(5, 1)], "11", "--"),
        ((10, 1), [None], [(10, 1)], [(5, 1)], "10", "--"),  # gate and up are halves of one tensor
        ((5, 1), [(10, 1)] * 2, [(10, 1)] * 2, [(10, 1)], "1111", "----"),  # and so are their gradients
        ((5, 1), [None], [(10, 1)], [(10, 1)], "01", "--"),
        ((5, 1), [None], [(1, 3)], [(5, 1)], "11", "-c"),  # a kernel would read single elements
        ((10, 1), [None], [(13, 1), (0, 1), (5, 1)], [(5, 1), (13, 1)], "1211", "--c-"),
        ((10, 1), [(13, 1)], [(13, 1), (0, 1), None], [(13, 1), (5, 1)], "1122", "--c-"),
        ((10, 1), [], [], [(5, 1)], "", ""),
        ((10, 2), [(10, 2)], [(10, 2), (5, 1)], [(5, 1)], "001", "---"),  # even elements, and a number for each of them
        ((15, 3), [None], [(15, 2)], [(5, 1)], "11", "-c"),
    ],
)
def test_groups_need_few_copies(
    first: tuple[int, int], results: list[Any], inputs: list[Any], others: Any, of_tensors: str, copied: str
) -> None:
    expected = tuple(others), tuple(map(int, of_tensors)), tuple(c == "c" for c in copied)
    assert group_strides((3, 5), first, results, inputs) == expected


@given(st.permutations(range(4)), st.permutations(range(4)), st.lists(st.integers(1, 12), min_size=4, max_size=4))
def test_blocks_with_two_strides_keep_every_element_in_its_place(
    one: list[int], two: list[int], shape: list[int]
) -> None:
    """Tensors of four dims with the rows along the last one, in any order in memory, and broadcast along one dim."""
    one, two = ([*(axis for axis in order if axis != 3), 3] for order in (one, two))
    tensors = []
    for order in (one, two):
        x = torch.arange(math.prod(shape)).view([shape[axis] for axis in order])
        tensors.append(x.permute([order.index(axis) for axis in range(4)]))
    tensors[1] = tensors[1].select(one[1], 0).unsqueeze(one[1]).expand(shape)
    layout = row_layout(shape, tensors[0].stride(), 3, others=[tensors[1].stride()], splits=True)
    assert layout is not None or shape[3] == 1
    if layout is None:
        return
    block = torch.arange(layout.outer)[:, None, None]
    found = []
    for index, strides in enumerate(layout.groups):
        jump = 0 if layout.minor_blocks is None else block // layout.minor_blocks * layout.jumps[index]
        found.append((offsets(layout, strides) + jump).flatten().tolist())
    memory = torch.arange(math.prod(shape))
    wanted = [torch.as_strided(memory, shape, x.stride()).flatten().tolist() for x in tensors]
    assert sorted(zip(*found, strict=True)) == sorted(zip(*wanted, strict=True))
