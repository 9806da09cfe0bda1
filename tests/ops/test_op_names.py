"""Names in a declaration that Python, functions, schedules or torch use for something else: each is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import tridal
from third_party_op import UNIT_NORM
from tridal.errors import PluginError
from tridal.ops import Op, RowKernel, Statistic, index_per_row, number, per_column, per_element
from tridal.pytorch import op_function, register

pytest.importorskip("triton")
from several_results import BY_SUM, MINUS_PICKED, WEIGH

FORWARD = WEIGH.forward
RESERVED = (
    "count", "part_count", "column", "in_bounds", "picked", "part_scale", "AXIS", "EXP2_BIAS", "REFINE", "UNNORMALISED",
    "GUARD", "ZERO_MASKED_ROWS",
)  # fmt: skip


def fault(kernel: RowKernel, op: Op = WEIGH) -> str:
    """Returns the fault of an op with another kernel."""
    return replace(op, kernels=(kernel, *op.kernels[1:])).fault() or ""


@pytest.mark.parametrize("name", RESERVED)
def test_no_tensor_number_statistic_or_constant_has_the_name_of_a_parameter_of_all_functions(name: str) -> None:
    refused = f"the functions of all kernels get {name!r}: choose another name"
    statistic = Statistic(name, "sum", term="weighted")
    for changes in (
        {"reads": (name,)}, {"column_reads": (name,)}, {"statistics": (statistic, FORWARD.statistics[1])},
        {"row_value": name}, {"constants": ((name, 1),)}, {"parameters": (name,)},
    ):  # fmt: skip
        assert refused in fault(replace(FORWARD, **changes)), changes
    assert refused in fault(replace(WEIGH.backward, row_reads=(name,)), WEIGH)
    assert refused in fault(replace(MINUS_PICKED.forward, row_index=name), MINUS_PICKED)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (replace(FORWARD, reads=("part_total",)), "the functions of all kernels get 'part_total'"),
        (replace(FORWARD, reads=("tile",)), "schedules have another variable 'tile': rename 'tile'"),
        (replace(FORWARD, column_reads=("head",)), "schedules have another variable 'head': rename 'head'"),
        (replace(FORWARD, reads=("weighted_at",)), "schedules have another variable 'weighted_at': rename"),
        (replace(FORWARD, column_reads=("W",)), "names in capitals are constants: rename 'W'"),
        (replace(FORWARD, reads=("lambda",)), "expected a name of Python's syntax, found 'lambda'"),
    ],
)
def test_no_name_is_that_of_a_variable_of_schedules(kernel: RowKernel, message: str) -> None:
    assert message in fault(kernel)


@pytest.mark.parametrize("name", ["dim", "scale", "output_mask"])
def test_no_argument_has_the_name_of_another_one(name: str) -> None:
    refused = f"parameters: {name!r} is the name of another argument, so choose another name"
    for argument in (per_element(name), per_column(name), index_per_row(name), number(name, 1.0)):
        assert replace(WEIGH, arguments=(WEIGH.arguments[0], argument)).fault() == refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"results": (replace(WEIGH.results[0], name="input"), *WEIGH.results[1:])}, "results: expected other names"),
        ({"results": (WEIGH.results[0], replace(WEIGH.results[1], name="output"), WEIGH.results[2])}, "other names"),
        ({"saves": (("dy", "input"), "weight")}, "gradient: expected other names for saved tensors and gradients"),
        ({"saves": (("an x", "input"), "weight")}, "gradient: expected other names for saved tensors and gradients"),
    ],
)
def test_results_gradients_and_saved_tensors_have_names_of_their_own(changes: dict[str, Any], message: str) -> None:
    assert message in (replace(WEIGH, **changes).fault() or "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": lambda x, reduce: x}, "reference: it gets (input, weight, reduce), but too many positional"),
        ({"reference": lambda x, weight, reduce, eps: x}, "reference: it gets (input, weight, reduce), but missing"),
        ({"gradient": lambda dy, x, reduce: x}, "gradient: it gets (dy, dtotal, input, weight, reduce), but too many"),
        ({"constants": lambda *, named: {}}, "constants: it gets (named), but too many"),
        ({"unsupported": lambda named: None}, "unsupported: it gets (named, dtypes), but too many"),
    ],
)
def test_functions_take_what_they_get(changes: dict[str, Any], message: str) -> None:
    assert (replace(WEIGH, **changes).fault() or "").startswith(message)
    choice = replace(BY_SUM, reference=lambda x, reduce: x)
    message = "reference: it gets (input, reduce, divides=...), but got an unexpected keyword argument 'divides'"
    assert choice.fault() == message


@pytest.mark.parametrize("changes", [{"dim": -1}, {"arguments": (*WEIGH.arguments, number("dims", type="int"))}])
def test_row_function_refuses_an_op_without_the_arguments_dim_and_dtype(changes: dict[str, Any]) -> None:
    found = "dim=-1" if "dim" in changes else "argument dims"
    with pytest.raises(PluginError, match=re.escape(f"op 'weigh' has the field {found}".replace("field a", "a"))):
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


def named(name: str) -> Op:
    """Returns the op with another name."""
    forward, backward = UNIT_NORM.forward, UNIT_NORM.backward
    return replace(
        UNIT_NORM, name=name, kernels=(replace(forward, name=name), replace(backward, name=f"{name}_backward"))
    )


def with_parameter(name: str, default: Any = 1.0) -> Op:
    """Returns the op with another parameter."""
    forward, backward = UNIT_NORM.forward, UNIT_NORM.backward
    kernels = (replace(forward, parameters=(name,)), replace(backward, parameters=(name,)))
    arguments = (per_element("input"), number(name, default, type="float"))
    maths: Any = {"reference": lambda x, reduce, **numbers: x, "gradient": lambda dy, x, reduce, **numbers: dy}
    return replace(UNIT_NORM, arguments=arguments, kernels=kernels, **maths)


@pytest.mark.parametrize("name", ["lambda", "class"])
def test_keyword_of_python_is_no_name_of_an_op(name: str) -> None:
    message = f"^op {name!r} cannot be used: name: {name!r} is a keyword of Python, so torch.ops cannot have an op"
    with pytest.raises(PluginError, match=message):
        register(named(name))


def test_attribute_of_torch_ops_is_no_name_of_an_op() -> None:
    with pytest.raises(PluginError, match=r"^op 'name' cannot be used: torch.ops.tridal.name already exists$"):
        register(named("name"))


@pytest.mark.parametrize("name", ["Upper", "9", ""])
def test_name_of_other_characters_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match="name: expected lower-case letters, digits and underscores, found"):
        register(named(name))


@pytest.mark.parametrize("name", ["lambda", "EPS"])
def test_parameter_needs_a_name_in_lower_case(name: str) -> None:
    message = f"parameters: expected names in lower case that are no keywords, found {name!r}"
    assert with_parameter(name).fault() == message


@pytest.mark.parametrize("name", ["input", "dtype"])
def test_parameter_with_the_name_of_another_argument_is_refused(name: str) -> None:
    message = f"parameters: {name!r} is the name of another argument, so choose another name"
    assert with_parameter(name).fault() == message


@pytest.mark.parametrize("default", ["3", True, None])
def test_default_of_a_parameter_is_a_number(default: Any) -> None:
    message = f"parameters: expected a number as the default of 'cap', found {default!r}"
    assert with_parameter("cap", default).fault() == message
    assert with_parameter("cap", 3).fault() is None
