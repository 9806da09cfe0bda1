"""The interpreter backend: what it reports about versions, and tridal without the names of Triton that it uses."""

from __future__ import annotations

import importlib
from importlib import metadata

import pytest
import torch

import tridal
from tridal.cli.doctor import examine
from tridal.devices import registry
from tridal.errors import DeviceUnavailableError
from tridal_interpreter import _triton_version

pytest.importorskip("triton")


pytestmark = pytest.mark.usefixtures("no_calls")  # tests pretend other machines


def pretend(monkeypatch: pytest.MonkeyPatch, triton: str, numpy: str) -> None:
    monkeypatch.setattr("tridal_interpreter._triton_version", lambda: triton)
    monkeypatch.setattr(metadata, "version", lambda name: numpy)


@pytest.mark.parametrize(("triton", "numpy"), [("3.2.0", "2.4.0"), ("3.6.0", "2.4.6"), ("3.3.1+git1", "2.10.0rc1")])
def test_versions_that_do_not_work_together_give_the_fix(
    monkeypatch: pytest.MonkeyPatch, triton: str, numpy: str
) -> None:
    pretend(monkeypatch, triton, numpy)
    with pytest.raises(
        DeviceUnavailableError, match=f"Triton {triton} does not work with NumPy {numpy}".replace("+", r"\+")
    ) as error:
        registry.available("interpreter")
    assert "pip install 'numpy<2.4'" in str(error.value)
    (reported,) = [backend for backend in examine()["backends"] if backend["name"] == "interpreter"]
    assert not reported["available"]
    assert "pip install 'numpy<2.4'" in reported["reason"]


def test_version_of_triton_is_found_without_importing_it() -> None:
    assert _triton_version() == importlib.import_module("triton").__version__


PRIVATE_NAMES = [
    "triton.runtime.interpreter._patch_lang",
    "triton.runtime.interpreter.interpreter_builder",
    "triton.runtime.interpreter.TensorHandle",
    "triton.runtime.interpreter.InterpretedFunction",
    "triton.compiler.ASTSource",
    "triton.backends.compiler.GPUTarget",
    "triton.runtime.driver",
]


@pytest.mark.parametrize("path", PRIVATE_NAMES)
def test_doctor_and_softmax_work_without_a_name_of_triton(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    module, _, name = path.rpartition(".")
    owner = importlib.import_module(module)
    if not hasattr(owner, name):
        pytest.skip("this version of Triton does not have it")
    x = torch.randn(3, 5)
    monkeypatch.delattr(owner, name)
    registry.invalidate()
    assert examine()["device"]["usable"]
    torch.testing.assert_close(tridal.softmax(x), torch.softmax(x, -1))
