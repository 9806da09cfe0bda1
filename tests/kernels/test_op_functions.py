"""The functions of an op: schedules pass what a function names, and faults and edits of functions are noticed."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from call_helpers import kernel_call, written
from tridal.devices.types import KernelConfig
from tridal.errors import PluginError
from tridal.kernels.op_functions import constants_of
from tridal.kernels.row_kernel import RowKernel, Statistic

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


PEELED = KernelConfig("cooperative", 1, 128, programs_per_row=3, peel=True)


def text(kernel: RowKernel, config: KernelConfig = PEELED, **tensors: Any) -> str:
    """Returns the kernel that is written for a call of 64 rows of 257 columns, in one line."""
    number = len(kernel.pointers)
    call = kernel_call((64, 257), kernel=kernel, dtypes=("float32",) * number, parameters=(1e-3,))
    return " ".join(written(call, config).text.split())


def test_a_function_gets_the_arguments_that_it_names(make_kernel: Callable[..., RowKernel]) -> None:
    source = text(make_kernel())
    assert "maths.square(eps_number, b, total, AXIS=1)" in source
    assert "maths.square(eps_number, b_edge, total, AXIS=0)" in source
    assert "return maths.shift_total(second, part_first, first, part_count)" in source
    assert "maths.normalise(deviation, a, part_scale, part_total, total, GUARD=True)" in source
    alone = text(make_kernel(), KernelConfig("whole_row", 1, 512))
    assert "maths.normalise(deviation, a, 1.0, total, total, GUARD=False)" in alone, "no other program has a part"


@pytest.mark.parametrize("neutral_padding", [False, True])
@pytest.mark.parametrize("term", ["square", "bounded"])
def test_bounds_mask_terms_if_padding_is_not_neutral_or_a_term_uses_them(
    make_kernel: Callable[..., RowKernel], term: str, neutral_padding: bool
) -> None:
    statistics = (Statistic("total", "sum", "element"), Statistic("deviation", "sum", term, "shift_total"))
    kernel = make_kernel(statistics=statistics, neutral_padding=neutral_padding)
    assert constants_of(kernel)["MASKS_TERMS"] == (term == "bounded" or not neutral_padding)
    if term == "bounded":
        assert "maths.bounded(a, total, in_bounds)" in text(kernel)
        assert "maths.bounded(a_edge, total, in_bounds_edge)" in text(kernel)


def test_an_unmasked_sum_over_rows_uses_no_statistic(make_kernel: Callable[..., RowKernel]) -> None:
    kernel = make_kernel(column_writes=("scaled",))
    assert "maths.scaled(a, total)" in text(kernel, KernelConfig("whole_row", 1, 512))
    with pytest.raises(PluginError, match=r"scaled is the term of a sum .* uses total.*neutral_padding=False"):
        constants_of(replace(kernel, neutral_padding=True))
    constants_of(replace(kernel, neutral_padding=True, column_writes=("element",)))


@pytest.mark.parametrize("name", ["rank", "a"])
def test_a_function_may_have_the_name_of_a_variable(make_kernel: Callable[..., RowKernel], name: str) -> None:
    function = f"\n    @triton.jit\n    def {name}(a, column):\n        return a, column\n"
    assert f"{name}_value = maths.{name}(a, column)" in text(make_kernel(SOURCE + function, writes=(name,)))


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
    loop = text(kernel, KernelConfig("column_loop", 1, 128))
    assert "third = maths.shift_third(third, part_total, total)" in loop
    assert loop.index("deviation = maths.shift_total(") < loop.index("third = maths.shift_third(")
    with pytest.raises(PluginError, match=r"only_deviation names deviation; as term of kernel 'norm' it can name"):
        constants_of(replace(kernel, statistics=(*kernel.statistics[:2], replace(third, term="only_deviation"))))


@pytest.mark.parametrize(("term", "used"), [("square", "total"), ("counted", "count")])
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


def test_the_name_of_a_tensor_or_a_statistic_stands_for_a_function(make_kernel: Callable[..., RowKernel]) -> None:
    statistics = (Statistic("total", "sum", term="b"), Statistic("deviation", "sum", term="element"))
    kernel = make_kernel(
        statistics=statistics, row_value="counted_total", row_writes=("deviation", "counted_total"), writes=("a",),
        source=SOURCE + "\n    @triton.jit\n    def counted_total(total, count):\n        return total, count\n",
    )  # fmt: skip
    source = text(kernel, KernelConfig("whole_row", 1, 512))
    assert "total = tl.sum(tl.where(in_bounds, b, 0.0), 1)" in source
    assert "tl.store(a_at, a, mask=in_bounds)" in source
    assert "tl.store(deviation_per_row + row_at + row_index, deviation)" in source
    assert "counted_total = maths.counted_total(total, count)" in source
    assert "tl.store(counted_total_per_row + row_at + row_index, counted_total)" in source


@pytest.mark.parametrize(
    ("changes", "name", "shape"),
    [
        ({"writes": ("total",)}, "total", "element"),
        ({"statistics": (Statistic("total", "sum", term="grad"),), "row_reads": ("grad",)}, "grad", "element"),
        ({"row_writes": ("a",)}, "a", "row"),
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
        constants_of(kernel)
