"""`tridal.device`: errors for arguments that are not the name of a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tridal


@pytest.mark.parametrize("name", [0, True, b"cpu", torch.device("cpu")], ids=repr)
def test_name_that_is_no_string_is_a_type_error(name: Any) -> None:
    with pytest.raises(TypeError, match=r"^name must be the name of a device as text, for example 'cpu', got "):
        tridal.device(name)


def test_name_may_have_an_index() -> None:
    assert tridal.device("cpu:0") == torch.device("cpu", 0)
    assert tridal.device("meta") == torch.device("meta")
