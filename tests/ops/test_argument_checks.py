"""Checks of arguments: what is a number, and the errors."""

from __future__ import annotations

from typing import Any

import pytest

from tridal.ops.argument_checks import check_number


@pytest.mark.parametrize("value", [True, False, "1", None, 1j, [1]], ids=repr)
def test_what_is_no_number_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="factor must be a number, got "):
        check_number("scaled", "factor", value)


def test_a_number_that_is_not_valid_is_the_error_of_the_caller() -> None:
    for value in (1, 0.5):
        check_number("scaled", "factor", value, valid=lambda number: number > 0)
    with pytest.raises(RuntimeError, match="factor must be positive, got -1"):
        check_number("scaled", "factor", -1, "be positive", lambda number: number > 0, RuntimeError)
