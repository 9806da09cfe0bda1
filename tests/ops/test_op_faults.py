"""Each fault of a declaration has a message that names it and says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import tridal
from third_party_op import UNIT_NORM
from tridal import library
from tridal.errors import PluginError
from tridal.ops import Op, RowKernel, Statistic, index_per_row, number, per_column, per_element, per_row
from tridal.pytorch import op_function, register

pytest.importorskip("triton")
from several_results import BY_SUM, MINUS_PICKED, WEIGH

X, WEIGHT = WEIGH.arguments
OUTPUT, TOTAL, SQUARES = WEIGH.results
FORWARD, BACKWARD = WEIGH.kernels
OPTIONAL = X, per_column("weight", optional=True), per_column("bias", optional=True)


def kernels(**changes: Any) -> dict[str, Any]:
    """The change of the forward kernel's fields."""
    return {"kernels": (replace(FORWARD, **changes), BACKWARD)}


@pytest.mark.parametrize("op", [*library.OPS, WEIGH, BY_SUM], ids=str)
def test_a_correct_declaration_has_no_fault(op: Op) -> None:
    assert op.fault() is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # arguments
        ({"arguments": ()}, "arguments: expected a tuple of Arguments, found ()"),
        ({"arguments": (WEIGHT, X)}, "arguments: expected a tensor with a number per element as the first argument"),
        ({"arguments": (X, number("eps", 1.0), WEIGHT)}, "arguments: expected the tensors before the numbers"),
        ({"arguments": (X, X, WEIGHT)}, "arguments: expected a name for each, found input, input, weight"),
        ({"arguments": (X, WEIGHT, per_row("scales"))},
         "kernel 'weigh' reads nothing with a number per row: expected 1 tensor(s): scales"),
        # numbers
        ({"arguments": (X, WEIGHT, number("eps"))},
         "parameters: expected a number as the default of 'eps', found None"),
        ({"arguments": (X, WEIGHT, number("eps", 1.0, range=(3.0, 2.0)))},
         "parameters: expected (smallest, largest) as the range of 'eps', found (3.0, 2.0)"),
        ({"arguments": (X, WEIGHT, number("eps", 4.0, range=(2.0, 3.0)))},
         "parameters: the default of 'eps' is 4.0, outside of its range (2.0, 3.0)"),
        ({"arguments": (X, WEIGHT, number("eps", 1.0))},
         "parameters: no kernel uses 'eps': add it to a kernel's parameters"),
        ({"arguments": (X, WEIGHT, number("fast", True))},
         "parameters: no kernel uses 'fast': kernels get it by the function `constants`"),
        ({"arguments": (X, WEIGHT, number("EPS", 1.0))},
         "parameters: expected names in lower case that are no keywords, found 'EPS'"),
        (kernels(parameters=("eps",)), "kernel 'weigh' has unknown parameters: eps"),
        (kernels(statistics=(FORWARD.statistics[0],) * 2), "uses one name for two things: "),
        # results
        ({"results": (OUTPUT, TOTAL)},
         "kernel 'weigh' writes total, squares with a number per row: expected 1 tensor(s): total"),
        ({"results": (SQUARES, OUTPUT, TOTAL)},
         "results: expected those with a gradient first, found squares, output, total"),
        ({"results": (OUTPUT, replace(TOTAL, returned=False), SQUARES)},
         "results: expected those that are returned first, found output, total, squares"),
        ({"results": (OUTPUT, replace(TOTAL, gradient=None, needs="weight"), SQUARES)},
         "results: expected those that every call has first, found output, total, squares"),
        ({"results": (OUTPUT, TOTAL, replace(SQUARES, needs="weight"))},
         "results: 'squares' needs 'weight': expected the name of an optional tensor"),
        ({"results": tuple(replace(result, gradient=None) for result in WEIGH.results)},
         "results: no result has a gradient: name it with gradient=..., as the kernel of the gradient does"),
        ({"arguments": OPTIONAL, "results": (OUTPUT, replace(TOTAL, needs="weight"), replace(SQUARES, needs="bias"))},
         "results: expected one optional tensor that returned results need, found several"),
        ({"results": (replace(OUTPUT, role="top"), TOTAL, SQUARES)},
         "results: 'output' has k numbers per row: expected dim=-1 and an argument 'k'"),
        (
            {
                "arguments": OPTIONAL[:2],
                "results": (OUTPUT, replace(TOTAL, needs="weight"), replace(SQUARES, returned=False)),
            },
            "results: the gradient of 'total' may be absent: expected it in `added` of the gradient's kernel",
        ),
        # the gradient and saved tensors
        ({"gradient": 3}, "gradient: expected a function made of torch's ops, found 3"),
        ({"gradient": None},
         "kernel 'weigh_backward' needs the same math in torch's ops: declare the function `gradient`"),
        ({"kernels": WEIGH.kernels[:1]},
         "gradient: expected a kernel 'weigh_backward', or no gradient: autograd differentiates `reference`"),
        ({"reference": None}, "it has no reference: expected a function made of torch's ops, found None"),
        ({"saves": "input"}, "saves: expected a tuple of names, found 'input': write ('input',)"),
        ({"saves": ("input", ("h",))}, "saves: expected names, or (name, other names, ...), found ('h',)"),
        (
            {"saves": ("input", "mean")},
            "saves: expected names of arguments and results, found 'mean' "
            "(known: input, output, squares, total, weight)",
        ),
        ({"gradients": (("input",), ("bias",))}, "gradients: expected the name of each tensor once, found 'bias'"),
        # kernels
        ({"kernels": ()}, "its kernels are called nothing: expected 'weigh', and 'weigh_backward' if any"),
        ({"kernels": (None,)}, "expected a RowKernel, found None"),
        # names, and what functions get
        (kernels(reads=("part_total",)), "the functions of all kernels get 'part_total'"),
        (kernels(reads=("tile",)), "schedules have another variable 'tile': rename 'tile'"),
        (kernels(reads=("weighted_at",)), "schedules have another variable 'weighted_at': rename"),
        (kernels(column_reads=("W",)), "names in capitals are constants: rename 'W'"),
        (kernels(reads=("lambda",)), "expected a name of Python's syntax, found 'lambda'"),
        ({"results": (replace(OUTPUT, name="input"), TOTAL, SQUARES)}, "results: expected other names"),
        ({"saves": (("dy", "input"), "weight")}, "gradient: expected other names for saved tensors and gradients"),
        ({"reference": lambda x, reduce: x}, "reference: it gets (input, weight, reduce), but too many positional"),
        ({"gradient": lambda dy, x, reduce: x}, "gradient: it gets (dy, dtotal, input, weight, reduce), but too many"),
        ({"constants": lambda *, named: {}}, "constants: it gets (named), but too many"),
        ({"unsupported": lambda named: None}, "unsupported: it gets (named, dtypes), but too many"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_fault_is_named(changes: dict[str, Any], message: str) -> None:
    assert message in (replace(WEIGH, **changes).fault() or "")


@pytest.mark.parametrize("name", ["count", "part_count", "column", "in_bounds", "picked", "AXIS", "EXP2_BIAS", "GUARD"])
def test_no_tensor_number_statistic_or_constant_has_the_name_of_a_parameter_of_all_functions(name: str) -> None:
    refused = f"the functions of all kernels get {name!r}: choose another name"
    statistic = Statistic(name, "sum", term="weighted")
    for changes in (
        {"reads": (name,)}, {"column_reads": (name,)}, {"statistics": (statistic, FORWARD.statistics[1])},
        {"row_value": name}, {"constants": ((name, 1),)}, {"parameters": (name,)},
    ):  # fmt: skip
        assert refused in (replace(WEIGH, **kernels(**changes)).fault() or ""), changes
    picking = replace(MINUS_PICKED, kernels=(replace(MINUS_PICKED.forward, row_index=name),))
    assert refused in (picking.fault() or "")


@pytest.mark.parametrize("name", ["dim", "scale", "output_mask", "dtype"])
@pytest.mark.parametrize("make", [per_element, per_column, index_per_row, lambda name: number(name, 1.0)])
def test_no_argument_has_the_name_of_another_one(name: str, make: Callable[[str], Any]) -> None:
    refused = f"parameters: {name!r} is the name of another argument, so choose another name"
    assert replace(WEIGH, arguments=(X, make(name))).fault() == refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"dim": -1}, "field dim=-1"), ({"arguments": (*WEIGH.arguments, number("dims", type="int"))}, "argument dims")],
)
def test_row_function_refuses_an_op_without_the_arguments_dim_and_dtype(changes: Any, message: str) -> None:
    with pytest.raises(PluginError, match=f"op 'weigh' has the {message}"):
        tridal.row_function(replace(WEIGH, **changes))


def test_a_function_may_have_parameters_with_any_names_but_those_of_what_it_calls() -> None:
    kernel = RowKernel("halved_of_a_test", "no_module", ("x",), (), ("halved",))
    op = Op(kernel.name, (per_element("input"),), (kernel,), reference=lambda input, reduce: input / 2)
    for names in ("rows, shape", "sizes, call_key", "cols, recording", "function, enter"):
        found = list[tuple[float, float]]()
        scope: dict[str, Any] = {"found": found}
        exec(
            f"def f(call, input, {names}):\n    found.append(({names}))\n    return call(input, -1, input.dtype)", scope
        )
        function: Any = op_function(op)(scope["f"])
        for first in (1.0, 2.0, 1.0):
            torch.testing.assert_close(function(torch.ones(2, 4), first, 0.5), torch.full((2, 4), 0.5))
        assert found == [(1.0, 0.5), (2.0, 0.5)], "the body runs once for each key"
    with pytest.raises(PluginError, match="parameters: functions have a variable 'autocast': choose another name"):
        op_function(op)(lambda call, input, autocast: call(input, -1, input.dtype))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lambda", "name: 'lambda' is a keyword of Python, so torch.ops cannot have an op"),
        ("name", "torch.ops.tridal.name already exists$"),
        ("Upper", "name: expected lower-case letters, digits and underscores, found"),
        ("", "name: expected lower-case letters, digits and underscores, found"),
    ],
)
def test_the_name_of_an_op_is_one_that_torch_can_register(name: str, message: str) -> None:
    kernels = tuple(replace(k, name=k.name.replace("unit_norm", name)) for k in UNIT_NORM.kernels)
    with pytest.raises(PluginError, match=f"^op {name!r} cannot be used: {message}"):
        register(replace(UNIT_NORM, name=name, kernels=kernels))
