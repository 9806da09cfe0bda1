"""The NPU backend without an NPU: its options, the stream, and the messages about what is missing."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from tridal_npu import backend
from tridal_npu.architectures import unified_buffer_of


def test_num_programs_is_a_positive_integer_or_cores():
    values = (1, 65_535, "cores", 0, -1, 65_536, True, 32.0, "all", None)
    assert [v for v in values if backend.options["num_programs"].accepts(v)] == [1, 65_535, "cores"]


def test_the_unified_buffer_is_found_by_the_name_of_the_device():
    assert unified_buffer_of("Ascend910B2C") == 196_608
    assert unified_buffer_of("Ascend910_9382") == 196_608
    assert unified_buffer_of("Ascend910_9589") == unified_buffer_of("Ascend950PR_958b") == 253_952
    assert unified_buffer_of("Ascend310P3") == 196_608, "the smallest size for an unknown name"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Makes packages with the given sources importable. They hide installed packages of the same name."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(**sources):
        for name, source in sources.items():
            folder = tmp_path / name
            folder.mkdir()
            (folder / "__init__.py").write_text(source)
            monkeypatch.setitem(sys.modules, name, ModuleType(name))  # monkeypatch then restores what was there
            del sys.modules[name]
        importlib.invalidate_caches()
        return tmp_path

    return make


TORCH_NPU = "import torch, types; torch.npu = types.SimpleNamespace(is_available=lambda: {present})"


@pytest.fixture
def _restore_torch_npu(monkeypatch):
    import torch

    monkeypatch.setattr(torch, "npu", None, raising=False)  # monkeypatch then restores it


@pytest.mark.skipif(importlib.util.find_spec("torch_npu") is not None, reason="torch_npu is installed here")
def test_unavailable_without_torch_npu():
    assert backend.unavailable() == "torch_npu is not installed"
    assert "pip install 'tridal[npu]'" in backend.install
    assert "CANN" in backend.install


def test_unavailable_without_cann_gives_the_import_error_and_the_remedy(packages):
    packages(torch_npu="raise ImportError('libhccl.so: cannot open shared object file')")
    reason = backend.unavailable()
    assert "libhccl.so" in reason
    assert "set_env.sh" in reason
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in reason


def test_unavailable_if_torch_npu_does_not_register_its_device(packages):
    packages(torch_npu="")
    assert "sees no NPU" in backend.unavailable()


@pytest.mark.usefixtures("_restore_torch_npu")
def test_unavailable_without_a_board(packages):
    packages(torch_npu=TORCH_NPU.format(present=False))
    reason = backend.unavailable()
    assert "sees no NPU" in reason
    assert "npu-smi" in reason


@pytest.mark.usefixtures("_restore_torch_npu")
def test_unavailable_with_the_community_triton(packages):
    packages(torch_npu=TORCH_NPU.format(present=True), triton="")
    reason = backend.unavailable()
    assert "not triton-ascend" in reason
    assert "pip uninstall triton" in reason


@pytest.mark.usefixtures("_restore_torch_npu")
def test_unavailable_without_pybind11(packages, monkeypatch):
    folder = packages(torch_npu=TORCH_NPU.format(present=True), triton="")
    (folder / "triton" / "backends" / "ascend").mkdir(parents=True)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pybind11" else find(name))
    assert "pip install pybind11" in backend.unavailable()


@pytest.mark.usefixtures("_restore_torch_npu")
def test_available_with_all_requirements(packages):
    folder = packages(torch_npu=TORCH_NPU.format(present=True), triton="", pybind11="")
    (folder / "triton" / "backends" / "ascend").mkdir(parents=True)
    assert backend.unavailable() is None


@pytest.mark.usefixtures("_restore_torch_npu")
def test_unavailable_without_triton(packages, monkeypatch):
    packages(torch_npu=TORCH_NPU.format(present=True))
    monkeypatch.setattr("tridal_npu.triton_has", lambda backend: None)
    assert backend.unavailable() == "triton-ascend is not installed"
