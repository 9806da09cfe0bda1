"""Names that an op and its parameters cannot have: the error is tridal's, not one of torch's schema parser."""

from __future__ import annotations

import keyword
from dataclasses import replace
from typing import Any

import pytest

from third_party_op import UNIT_NORM
from tridal.errors import PluginError
from tridal.ops import Op, number, per_element
from tridal.pytorch.path.function import register


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


@pytest.mark.parametrize("name", [name for name in keyword.kwlist if name.islower()])
def test_keyword_of_python_is_no_name_of_an_op(name: str) -> None:
    message = f"^op {name!r} cannot be used: name: {name!r} is a keyword of Python, so torch.ops cannot have an op"
    with pytest.raises(PluginError, match=message):
        register(named(name))


def test_attribute_of_torch_ops_is_no_name_of_an_op() -> None:
    with pytest.raises(PluginError, match=r"^op 'name' cannot be used: torch.ops.tridal.name already exists$"):
        register(named("name"))


@pytest.mark.parametrize("name", ["Upper", "with space", "9", "a-b", ""])
def test_name_of_other_characters_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match="name: expected lower-case letters, digits and underscores, found"):
        register(named(name))


@pytest.mark.parametrize("name", ["lambda", "EPS", "a b"])
def test_parameter_needs_a_name_in_lower_case(name: str) -> None:
    message = f"parameters: expected names in lower case that are no keywords, found {name!r}"
    assert with_parameter(name).fault() == message


@pytest.mark.parametrize("name", ["input", "dim", "dtype", "stream", "scale", "grad"])
def test_parameter_with_the_name_of_another_argument_is_refused(name: str) -> None:
    message = f"parameters: {name!r} is the name of another argument, so choose another name"
    assert with_parameter(name).fault() == message


@pytest.mark.parametrize("default", ["3", True, None])
def test_default_of_a_parameter_is_a_number(default: Any) -> None:
    message = f"parameters: expected a number as the default of 'cap', found {default!r}"
    assert with_parameter("cap", default).fault() == message
    assert with_parameter("cap", 3).fault() is None
