"""Adapters of an op's functions: they pass what a function names, and their faults and edits are noticed."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tridal.errors import PluginError
from tridal.runtime import compiler
from tridal.runtime.op_functions import CALLS, adapters, fingerprint
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


class PythonFunction:
    """A Triton function as a plain Python function, which needs neither the compiler nor the interpreter."""

    def __init__(self, function: Any) -> None:
        self.fn = getattr(function, "fn", function)
        self.arg_names = inspect.getfullargspec(self.fn).args

    def __call__(self, *arguments: Any) -> Any:
        return self.fn(*arguments)


def python_adapters(kernel: RowKernel) -> dict[str, Any]:
    """Returns the adapters as plain Python functions."""
    return adapters(kernel, PythonFunction)


def call(functions: dict[str, Any], role: str) -> Any:
    """Calls an adapter as a schedule does. The value of each argument is its name."""
    assert tuple(functions[role].arg_names) == CALLS[role]
    return functions[role](*CALLS[role])


def test_a_function_gets_the_arguments_that_it_names(make_kernel: Callable[..., RowKernel]) -> None:
    functions = python_adapters(make_kernel())
    assert call(functions, "second_term") == ("param0", "x2", "first", "AXIS")
    assert call(functions, "rebase") == ("second", "part_first", "first", "part_count")
    assert call(functions, "finish") == ("second", "x", "part_scale", "part_first", "first", "GUARD")


def test_adapters_say_how_terms_are_reduced_and_padded(make_kernel: Callable[..., RowKernel]) -> None:
    constants = python_adapters(make_kernel())
    assert {name: constants[name] for name in ("FIRST", "SECOND", "PADDING", "NEUTRAL_PADDING")} == {
        "FIRST": "sum", "SECOND": "sum", "PADDING": 1.0, "NEUTRAL_PADDING": False,
    }  # fmt: skip


@pytest.mark.parametrize("neutral_padding", [False, True])
@pytest.mark.parametrize("term", ["square", "bounded"])
def test_bounds_mask_terms_if_padding_is_not_neutral_or_a_term_uses_them(
    make_kernel: Callable[..., RowKernel], term: str, neutral_padding: bool
) -> None:
    statistics = (Statistic("total", "sum", "element"), Statistic("deviation", "sum", term, "shift_total"))
    constants = python_adapters(make_kernel(statistics=statistics, neutral_padding=neutral_padding))
    assert constants["MASKS_TERMS"] == (term == "bounded" or not neutral_padding)
    if term == "bounded":
        assert call(constants, "second_term") == ("x", "first", "in_bounds")


def test_a_first_term_gets_no_bounds(make_kernel: Callable[..., RowKernel]) -> None:
    with pytest.raises(PluginError, match="bounded names total, in_bounds; as first_term of kernel 'norm' it can name"):
        python_adapters(make_kernel(statistics=(Statistic("deviation", "sum", term="bounded"),), writes=("element",)))


def test_an_unmasked_sum_over_rows_uses_no_statistic(make_kernel: Callable[..., RowKernel]) -> None:
    kernel = make_kernel(column_writes=("scaled",))
    assert python_adapters(kernel)["column_term"] is not None
    with pytest.raises(PluginError, match=r"scaled is the term of a sum .* uses total.*neutral_padding=False"):
        python_adapters(replace(kernel, neutral_padding=True))
    python_adapters(replace(kernel, neutral_padding=True, column_writes=("element",)))


def test_a_function_may_have_the_name_of_an_argument_of_schedules(make_kernel: Callable[..., RowKernel]) -> None:
    source = SOURCE + "\n    @triton.jit\n    def index(a, column):\n        return a, column\n"
    functions = python_adapters(make_kernel(source, writes=("index",)))
    assert call(functions, "finish") == ("x", "column")


def test_terms_get_the_column(make_kernel: Callable[..., RowKernel]) -> None:
    source = SOURCE + "\n    @triton.jit\n    def placed(a, column):\n        return a, column\n"
    statistics = (Statistic("total", "sum", "placed"), Statistic("deviation", "sum", "placed"))
    functions = python_adapters(make_kernel(source, statistics=statistics, writes=("element",)))
    assert call(functions, "first_term") == call(functions, "second_term") == ("x", "column")


def test_a_kernel_with_one_statistic_has_no_second_term(make_kernel: Callable[..., RowKernel]) -> None:
    kernel = make_kernel(statistics=(Statistic("total", "max", term="element"),), writes=("element",))
    constants = python_adapters(kernel)
    assert [constants[name] for name in ("second_term", "rebase", "SECOND")] == [None] * 3
    assert constants["FIRST"] == "max"


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
    assert python_adapters(make_kernel(statistics=statistics))["COUNTS"] is counts


@pytest.mark.parametrize(("term", "used"), [("square", "total"), ("bounded", "total"), ("counted", "count")])
def test_a_second_term_with_a_number_of_the_part_needs_rebase(
    make_kernel: Callable[..., RowKernel], term: str, used: str
) -> None:
    """Without rebase, results are wrong where a row is divided."""
    statistics = (Statistic("total", "sum", "element"), Statistic("deviation", "sum", term))
    message = f"kernel 'norm': {term}, the term of 'deviation', uses {used}, which differs .*: declare rebase"
    with pytest.raises(PluginError, match=message):
        python_adapters(make_kernel(statistics=statistics))


def test_a_function_with_unknown_names_raises_and_lists_what_it_can_name(
    make_kernel: Callable[..., RowKernel],
) -> None:
    kernel = make_kernel(statistics=(Statistic("total", "sum", term="wrong"),))
    expected = (
        rf"{kernel.module}\.wrong names rank, tile; as first_term of kernel 'norm' it can name "
        "AXIS, EXP2_BIAS, a, b, column, eps$"
    )
    with pytest.raises(PluginError, match=expected):
        python_adapters(kernel)


def test_a_function_cannot_name_a_statistic_that_is_not_known_yet(make_kernel: Callable[..., RowKernel]) -> None:
    kernel = make_kernel(statistics=(Statistic("total", "sum", term="square"),))
    with pytest.raises(PluginError, match=r"square names total; as first_term"):
        python_adapters(kernel)


def test_the_name_of_a_tensor_or_a_statistic_stands_for_a_function(make_kernel: Callable[..., RowKernel]) -> None:
    statistics = (Statistic("total", "sum", term="b"), Statistic("deviation", "sum", term="element"))
    kernel = make_kernel(
        statistics=statistics, row_value="counted_total", row_writes=("deviation", "counted_total"), writes=("a",),
        source=SOURCE + "\n    @triton.jit\n    def counted_total(total, count):\n        return total, count\n",
    )  # fmt: skip
    functions = python_adapters(kernel)
    assert call(functions, "first_term") == "x2"
    assert call(functions, "finish") == "x"
    assert call(functions, "row_write") == "second"
    assert call(functions, "row_write2") == ("first", "count"), "a function is preferred to an argument"


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
        python_adapters(make_kernel(**changes))


@pytest.mark.parametrize("name", ["missing", "plain"])
def test_a_missing_triton_function_raises_with_its_module(make_kernel: Callable[..., RowKernel], name: str) -> None:
    kernel = make_kernel(writes=(name,))
    expected = rf"kernel 'norm' needs a Triton function '{name}' in {kernel.module}"
    with pytest.raises(PluginError, match=expected):
        python_adapters(kernel)
    with pytest.raises(PluginError, match=expected):
        compiler.op_functions(kernel, False)


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
    triton = compiler.import_triton()
    assert old in SOURCE
    hashes = []
    for source in (SOURCE, SOURCE.replace(old, new)):
        hashes.append(fingerprint(adapters(make_kernel(source), compiler._compiled(triton))))
    assert (hashes[0] == hashes[1]) is equal


def test_interpreted_adapters_call_interpreted_functions_only(make_kernel: Callable[..., RowKernel]) -> None:
    from triton.runtime.interpreter import InterpretedFunction

    kernel = make_kernel()
    adapter = compiler.op_functions(kernel, True)["first_term"]
    element = adapter.fn.__globals__["element"]
    helper = element.fn.__globals__["helper"]
    assert [type(function) for function in (adapter, element, helper)] == [InterpretedFunction] * 3


def test_interpreted_adapters_leave_the_functions_of_the_op_compiled(make_kernel: Callable[..., RowKernel]) -> None:
    triton = compiler.import_triton()
    kernel = make_kernel()
    compiler.op_functions(kernel, True)
    element = compiler.op_functions(kernel, False)["first_term"].fn.__globals__["element"]
    assert isinstance(element, triton.JITFunction)
    assert isinstance(element.fn.__globals__["helper"], triton.JITFunction)
