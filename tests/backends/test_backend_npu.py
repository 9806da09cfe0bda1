"""The NPU backend without an NPU: its options, the stream, and the messages about what is missing."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
import torch

from tridal_npu import backend
from tridal_npu.architectures import unified_buffer_of


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
PRESENT = TORCH_NPU.format(present=True)


@pytest.mark.skipif(importlib.util.find_spec("torch_npu") is not None, reason="torch_npu is installed here")
def test_unavailable_without_torch_npu():
    assert backend.unavailable() == "torch_npu is not installed"
    assert "pip install 'tridal[npu]'" in backend.install
    assert "CANN" in backend.install


@pytest.mark.parametrize(
    ("sources", "ascend", "missing", "parts"),
    [
        (
            {"torch_npu": "raise ImportError('libhccl.so: cannot open')"}, False, None,
            ("libhccl.so", "set_env.sh", "TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
        ),
        ({"torch_npu": ""}, False, None, ("sees no NPU",)),
        ({"torch_npu": TORCH_NPU.format(present=False)}, False, None, ("sees no NPU", "npu-smi")),
        ({"torch_npu": PRESENT, "triton": ""}, False, None, ("not triton-ascend", "pip uninstall triton")),
        ({"torch_npu": PRESENT, "triton": ""}, True, "pybind11", ("pip install pybind11",)),
        ({"torch_npu": PRESENT}, False, "triton", ("triton-ascend is not installed",)),
        ({"torch_npu": PRESENT, "triton": "", "pybind11": ""}, True, None, None),
    ],
    ids=["CANN", "device", "board", "triton of the community", "pybind11", "no triton", "nothing"],
)  # fmt: skip
def test_what_is_missing_is_named_with_the_remedy(packages, monkeypatch, sources, ascend, missing, parts):
    monkeypatch.setattr(torch, "npu", None, raising=False)  # monkeypatch then restores it
    folder, find = packages(**sources), importlib.util.find_spec
    if ascend:
        (folder / "triton" / "backends" / "ascend").mkdir(parents=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == missing else find(name, *_))
    reason = backend.unavailable()
    assert reason is None if parts is None else all(part in reason for part in parts)
