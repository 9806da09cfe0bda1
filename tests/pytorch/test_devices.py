"""`tridal.device`: errors for arguments that are not the name of a device."""

from __future__ import annotations

from collections.abc import Callable
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


def test_backend_that_cannot_be_loaded_is_not_available(install_plugin: Callable[..., None]) -> None:
    install_plugin("broken-plugin", {"broken": "broken_plugin:backend"}, "raise ImportError('no driver')")
    (status,) = (status for status in tridal.backends() if status.name == "broken")
    assert (status.available, status.device_type, status.install) == (False, None, None)
    assert "no driver" in str(status.reason)
