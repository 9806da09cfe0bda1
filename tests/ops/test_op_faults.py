"""Each fault of a declaration has a message that names it and says what was expected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tridal import library
from tridal.ops import Op, Result, number, per_column, per_row

pytest.importorskip("triton")
from several_results import BY_SUM, WEIGH

X, WEIGHT = WEIGH.arguments
OUTPUT, TOTAL, SQUARES = WEIGH.results
BACKWARD = WEIGH.backward


def fault(op: Op, **changes: Any) -> str | None:
    """Returns the fault of the op with other fields."""
    return replace(op, **changes).fault()


@pytest.mark.parametrize("op", [*library.OPS, WEIGH, BY_SUM], ids=str)
def test_correct_declarations_have_no_fault(op: Op) -> None:
    assert op.fault() is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arguments": ()}, "arguments: expected a tuple of Arguments, found ()"),
        ({"arguments": (WEIGHT, X)}, "arguments: expected a tensor with a number per element as the first argument"),
        ({"arguments": (X, number("eps", 1.0), WEIGHT)}, "arguments: expected the tensors before the numbers"),
        ({"arguments": (X, X, WEIGHT)}, "arguments: expected a name for each, found input, input, weight"),
        (
            {"arguments": (X, WEIGHT, per_column("bias"))},
            "kernel 'weigh' reads weight with a number per column: expected 2 tensor(s): weight,bias",
        ),
        (
            {"arguments": (X, WEIGHT, per_row("scales"))},
            "kernel 'weigh' reads nothing with a number per row: expected 1 tensor(s): scales",
        ),
        (
            {"results": (OUTPUT, TOTAL)},
            "kernel 'weigh' writes total, squares with a number per row: expected 1 tensor(s): total",
        ),
        (
            {"saves": ("input",)},
            "kernel 'weigh_backward' reads weight with a number per column: expected 0 tensor(s)",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else ", ".join(value),
)
def test_tensors(changes: dict[str, Any], message: str) -> None:
    assert fault(WEIGH, **changes) == message


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (number("eps"), "parameters: expected a number as the default of 'eps', found None"),
        (
            number("eps", 1.0, range=(3.0, 2.0)),
            "parameters: expected (smallest, largest) as the range of 'eps', found (3.0, 2.0)",
        ),
        (
            number("eps", 4.0, range=(2.0, 3.0)),
            "parameters: the default of 'eps' is 4.0, outside of its range (2.0, 3.0)",
        ),
        (number("eps", 1.0), "parameters: no kernel uses 'eps': add it to a kernel's parameters"),
        (number("fast", True), "parameters: no kernel uses 'fast': kernels get it by the function `constants`"),
    ],
    ids=str,
)
def test_numbers(choice: Any, message: str) -> None:
    assert fault(WEIGH, arguments=(X, WEIGHT, choice)) == message


def test_a_parameter_of_a_kernel_is_an_argument() -> None:
    forward = replace(WEIGH.forward, parameters=("eps",))
    assert fault(WEIGH, kernels=(forward, BACKWARD)) == "kernel 'weigh' has unknown parameters: eps"


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ((SQUARES, OUTPUT, TOTAL), "results: expected those with a gradient first, found squares, output, total"),
        (
            (OUTPUT, replace(TOTAL, returned=False), SQUARES),
            "results: expected those that are returned first, found output, total, squares",
        ),
        (
            (OUTPUT, replace(TOTAL, gradient=None, needs="weight"), SQUARES),
            "results: expected those that every call has first, found output, total, squares",
        ),
        (
            (OUTPUT, TOTAL, replace(SQUARES, needs="weight")),
            "results: 'squares' needs 'weight': expected the name of an optional tensor",
        ),
        (
            tuple(replace(result, gradient=None) for result in WEIGH.results),
            "results: no result has a gradient: name it with gradient=..., as the kernel of the gradient does",
        ),
    ],
)
def test_results(results: tuple[Result, ...], message: str) -> None:
    assert fault(WEIGH, results=results) == message


def test_results_that_a_call_may_not_have() -> None:
    optional = (X, per_column("weight", optional=True), per_column("bias", optional=True))
    results = (OUTPUT, replace(TOTAL, needs="weight"), replace(SQUARES, needs="bias"))
    message = "results: expected one optional tensor that returned results need, found several"
    assert fault(WEIGH, arguments=optional, results=results) == message
    results = (OUTPUT, replace(TOTAL, needs="weight"), replace(SQUARES, returned=False))
    message = "results: the gradient of 'total' may be absent: expected it in `added` of the gradient's kernel"
    assert fault(WEIGH, arguments=optional[:2], results=results) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradient": 3}, "gradient: expected a function made of torch's ops, found 3"),
        (
            {"gradient": None},
            "kernel 'weigh_backward' needs the same maths in torch's ops: declare the function `gradient`",
        ),
        (
            {"kernels": WEIGH.kernels[:1]},
            "gradient: expected a kernel 'weigh_backward', or no gradient: autograd differentiates `reference`",
        ),
        ({"reference": None}, "it has no reference: expected a function made of torch's ops, found None"),
        ({"saves": "input"}, "saves: expected a tuple of names, found 'input': write ('input',)"),
        (
            {"saves": ("input", ("h",))},
            "saves: expected names, or (name, other names, ...), found ('h',)",
        ),
        (
            {"saves": ("input", "mean")},
            "saves: expected names of arguments and results, found 'mean' "
            "(known: input, output, squares, total, weight)",
        ),
        ({"gradients": (("input",), ("bias",))}, "gradients: expected the name of each tensor once, found 'bias'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ", ".join(value),
)
def test_gradient(changes: dict[str, Any], message: str) -> None:
    assert fault(WEIGH, **changes) == message


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        ((), "its kernels are called nothing: expected 'weigh', and 'weigh_backward' if any"),
        ((None,), "expected a RowKernel, found None"),
    ],
)
def test_kernels(kernels: Any, message: str) -> None:
    assert fault(WEIGH, kernels=kernels) == message
