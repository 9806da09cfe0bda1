"""The packs of a kernel: schedules pass what a function names, and faults and edits of functions are noticed."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tridal.errors import PluginError
from tridal.runtime.op_functions import constants_of, fingerprint, packs_of
from tridal.runtime.row_kernel import RowKernel, Statistic

pytest.importorskip("triton")

SOURCE = """
    import triton
    import triton.language as tl

    @triton.jit
    def helper(x):
        return x * 2

    @triton.jit
    def element(a):
        return helper(a)

    @triton.jit
    def square(eps, b, total, AXIS: tl.constexpr):
        return eps, b, total, AXIS

    @triton.jit
    def counted(a, count):
        return a / count

    @triton.jit
    def bounded(a, total, in_bounds):
        return a, total, in_bounds

    @triton.jit
    def scaled(a, total):
        return a * total

    @triton.jit
    def shift_total(deviation, part_total, total, part_count):
        return deviation, part_total, total, part_count

    @triton.jit
    def shift_without_count(deviation, part_total, total):
        return deviation + part_total - total

    @triton.jit
    def normalise(deviation, a, part_scale, part_total, total, GUARD: tl.constexpr):
        return deviation, a, part_scale, part_total, total, GUARD

    @triton.jit
    def wrong(a, rank, tile):
        return a

    def plain(a):
        return a
"""


@pytest.fixture
def make_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RowKernel]]:
    """Writes the source of an op into a module, and returns a kernel with two tensors, two statistics and `eps`.

    A further source replaces the module, as after an edit.
    """
    module = "op_under_test"
    versions = 0

    def make(source: str = SOURCE, **changes: Any) -> RowKernel:
        nonlocal versions
        folder = tmp_path / str(versions)
        versions += 1
        folder.mkdir()
        (folder / f"{module}.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(folder)
        sys.modules.pop(module, None)
        statistics = (
            Statistic("total", "sum", term="element"),
            Statistic("deviation", "sum", term="square", rebase="shift_total"),
        )
        kernel = RowKernel("norm", module, ("a", "b"), statistics, ("normalise",), parameters=("eps",), padding=1.0)
        return replace(kernel, **changes)

    yield make
    sys.modules.pop(module, None)


def calls(kernel: RowKernel, pack: str) -> tuple[str, ...]:
    """Returns the calls of a kernel's functions in a schedule. Checks the kernel."""
    constants_of(kernel)
    return packs_of(kernel)[f"each_{pack}"]


def test_a_function_gets_the_arguments_that_it_names(make_kernel: Callable[..., RowKernel]) -> None:
    kernel = make_kernel()
    assert calls(kernel, "late_term") == ("maths.square(eps_number, b_tile, first, AXIS)",)
    assert calls(kernel, "edge_late_term") == ("maths.square(eps_number, edge_of_b, first, 0)",)
    assert calls(kernel, "rebased") == ("maths.shift_total(second, part_first, first, part_count)",)
    assert calls(kernel, "formula") == ("maths.normalise(second, a_tile, part_scale, part_first, first, GUARD)",)


def test_constants_say_how_terms_are_reduced_and_padded(make_kernel: Callable[..., RowKernel]) -> None:
    constants = constants_of(make_kernel())
    assert {name: constants[name] for name in ("FIRST", "SECOND", "PADDING", "NEUTRAL_PADDING")} == {
        "FIRST": "sum", "SECOND": "sum", "PADDING": 1.0, "NEUTRAL_PADDING": False,
    }  # fmt: skip


@pytest.mark.parametrize("neutral_padding", [False, True])
@pytest.mark.parametrize("term", ["square", "bounded"])
def test_bounds_mask_terms_if_padding_is_not_neutral_or_a_term_uses_them(
    make_kernel: Callable[..., RowKernel], term: str, neutral_padding: bool
) -> None:
    statistics = (Statistic("total", "sum", "element"), Statistic("deviation", "sum", term, "shift_total"))
    kernel = make_kernel(statistics=statistics, neutral_padding=neutral_padding)
    assert constants_of(kernel)["MASKS_TERMS"] == (term == "bounded" or not neutral_padding)
    if term == "bounded":
        assert calls(kernel, "late_term") == ("maths.bounded(a_tile, first, in_bounds)",)
        assert calls(kernel, "edge_late_term") == ("maths.bounded(edge_of_a, first, edge_in_bounds)",)


def test_a_first_term_gets_no_bounds(make_kernel: Callable[..., RowKernel]) -> None:
    with pytest.raises(PluginError, match="bounded names total, in_bounds; as term of kernel 'norm' it can name"):
        packs_of(make_kernel(statistics=(Statistic("deviation", "sum", term="bounded"),), writes=("element",)))


def test_an_unmasked_sum_over_rows_uses_no_statistic(make_kernel: Callable[..., RowKernel]) -> None:
    kernel = make_kernel(column_writes=("scaled",))
    assert calls(kernel, "sum_term") == ("maths.scaled(a_tile, first)",)
    with pytest.raises(PluginError, match=r"scaled is the term of a sum .* uses total.*neutral_padding=False"):
        constants_of(replace(kernel, neutral_padding=True))
    constants_of(replace(kernel, neutral_padding=True, column_writes=("element",)))


def test_a_function_may_have_the_name_of_an_argument_of_schedules(make_kernel: Callable[..., RowKernel]) -> None:
    source = SOURCE + "\n    @triton.jit\n    def index(a, column):\n        return a, column\n"
    assert calls(make_kernel(source, writes=("index",)), "formula") == ("maths.index(a_tile, tile_column)",)


def test_terms_get_the_column(make_kernel: Callable[..., RowKernel]) -> None:
    source = SOURCE + "\n    @triton.jit\n    def placed(a, column):\n        return a, column\n"
    statistics = (Statistic("total", "sum", "placed"), Statistic("deviation", "sum", "placed"))
    kernel = make_kernel(source, statistics=statistics, writes=("element",))
    assert calls(kernel, "first_term") == calls(kernel, "early_term") == ("maths.placed(a_tile, tile_column)",)
    assert calls(kernel, "edge_first_term") == ("maths.placed(edge_of_a, edge_column)",)


def test_a_kernel_with_one_statistic_has_no_later_term(make_kernel: Callable[..., RowKernel]) -> None:
    kernel = make_kernel(statistics=(Statistic("total", "max", term="element"),), writes=("element",))
    assert calls(kernel, "later_term") == calls(kernel, "rebased") == ()
    assert [constants_of(kernel)[name] for name in ("FIRST", "SECOND", "HAS_LATE")] == ["max", None, False]


def test_each_of_three_statistics_may_use_the_first_one(make_kernel: Callable[..., RowKernel]) -> None:
    source = (
        SOURCE
        + """
    @triton.jit
    def shift_third(third, part_total, total):
        return third + part_total - total

    @triton.jit
    def only_deviation(deviation):
        return deviation
    """
    )
    kernel = make_kernel(source)
    third = Statistic("third", "max", term="scaled", rebase="shift_third")
    kernel = replace(kernel, statistics=(*kernel.statistics, third))
    assert calls(kernel, "late") == ("second", "statistic_2")
    assert calls(kernel, "late_term")[1] == "maths.scaled(a_tile, first)"
    assert calls(kernel, "rebased")[1] == "maths.shift_third(statistic_2, part_first, first)"
    with pytest.raises(PluginError, match=r"only_deviation names deviation; as term of kernel 'norm' it can name"):
        packs_of(replace(kernel, statistics=(*kernel.statistics[:2], replace(third, term="only_deviation"))))


@pytest.mark.parametrize(
    ("term", "rebase", "counts"),
    [
        ("square", "shift_without_count", False),
        ("square", "shift_total", True),
        ("counted", "shift_without_count", True),
        ("element", None, False),
    ],
)
def test_counts_is_set_if_a_function_names_count_or_part_count(
    make_kernel: Callable[..., RowKernel], term: str, rebase: str | None, counts: bool
) -> None:
    statistics = (Statistic("total", "sum", "element"), Statistic("deviation", "sum", term, rebase))
    assert constants_of(make_kernel(statistics=statistics))["COUNTS"] is counts


@pytest.mark.parametrize(("term", "used"), [("square", "total"), ("bounded", "total"), ("counted", "count")])
def test_a_second_term_with_a_number_of_the_part_needs_rebase(
    make_kernel: Callable[..., RowKernel], term: str, used: str
) -> None:
    """Without rebase, results are wrong where a row is divided."""
    statistics = (Statistic("total", "sum", "element"), Statistic("deviation", "sum", term))
    message = f"kernel 'norm': {term}, the term of 'deviation', uses {used}, which differs .*: declare rebase"
    with pytest.raises(PluginError, match=message):
        constants_of(make_kernel(statistics=statistics))


def test_a_function_with_unknown_names_raises_and_lists_what_it_can_name(
    make_kernel: Callable[..., RowKernel],
) -> None:
    kernel = make_kernel(statistics=(Statistic("total", "sum", term="wrong"),))
    expected = (
        rf"{kernel.module}\.wrong names rank, tile; as term of kernel 'norm' it can name "
        "AXIS, EXP2_BIAS, a, b, column, eps$"
    )
    with pytest.raises(PluginError, match=expected):
        constants_of(kernel)


def test_a_function_cannot_name_a_statistic_that_is_not_known_yet(make_kernel: Callable[..., RowKernel]) -> None:
    kernel = make_kernel(statistics=(Statistic("total", "sum", term="square"),))
    with pytest.raises(PluginError, match=r"square names total; as term"):
        constants_of(kernel)


def test_the_name_of_a_tensor_or_a_statistic_stands_for_a_function(make_kernel: Callable[..., RowKernel]) -> None:
    statistics = (Statistic("total", "sum", term="b"), Statistic("deviation", "sum", term="element"))
    kernel = make_kernel(
        statistics=statistics, row_value="counted_total", row_writes=("deviation", "counted_total"), writes=("a",),
        source=SOURCE + "\n    @triton.jit\n    def counted_total(total, count):\n        return total, count\n",
    )  # fmt: skip
    assert calls(kernel, "first_term") == ("b_tile",)
    assert calls(kernel, "formula") == ("a_tile",)
    written = ("second", "maths.counted_total(first, count)")
    assert calls(kernel, "row_formula") == written, "a function is preferred to a variable"


@pytest.mark.parametrize(
    ("changes", "name", "shape"),
    [
        ({"writes": ("total",)}, "total", "element"),
        ({"writes": ("eps",)}, "eps", "element"),
        ({"statistics": (Statistic("total", "sum", term="grad"),), "row_reads": ("grad",)}, "grad", "element"),
        ({"statistics": (Statistic("total", "sum", term="weight"),), "column_reads": ("weight",)}, "weight", "element"),
        ({"row_writes": ("a",)}, "a", "row"),
        ({"row_writes": ("eps",)}, "eps", "row"),
        ({"row_value": "total"}, "total", "element"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_argument_of_another_shape_cannot_stand_for_a_function(
    make_kernel: Callable[..., RowKernel], changes: dict[str, Any], name: str, shape: str
) -> None:
    """A number per row would be broadcast along the wrong axis of a tile."""
    expected = rf"needs a Triton function '{name}' in op_under_test: '{name}' is not a number per {shape}"
    with pytest.raises(PluginError, match=expected):
        constants_of(make_kernel(**changes))


@pytest.mark.parametrize("name", ["missing", "plain"])
def test_a_missing_triton_function_raises_with_its_module(make_kernel: Callable[..., RowKernel], name: str) -> None:
    kernel = make_kernel(writes=(name,))
    expected = rf"kernel 'norm' needs a Triton function '{name}' in {kernel.module}"
    with pytest.raises(PluginError, match=expected):
        packs_of(kernel)


@pytest.mark.parametrize(
    ("old", "new", "equal"),
    [
        ("a / count", "a * count", True),  # not a function of this kernel
        ("return helper(a)", "return helper(a) + 1", False),
        ("x * 2", "x * 3", False),  # called by a function of the kernel
        ("return deviation, part_total, total, part_count", "return deviation, part_total, total, 0", False),
    ],
    ids=["unused", "function", "callee", "rebase"],
)
def test_fingerprint_changes_with_the_source_of_the_op(
    make_kernel: Callable[..., RowKernel], old: str, new: str, equal: bool
) -> None:
    assert old in SOURCE
    hashes = [fingerprint(make_kernel(source)) for source in (SOURCE, SOURCE.replace(old, new))]
    assert (hashes[0] == hashes[1]) is equal
