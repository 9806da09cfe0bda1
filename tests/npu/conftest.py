"""Set-up of the tests of the Ascend backend without an NPU. `make test-npu` creates the environment that they need.

The tests are collected only if triton-ascend is installed, which replaces triton, and torch_npu is not. With torch_npu,
`pytest --backend npu` runs the other tests on the real device.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROW_OP_PACKAGE = HERE.with_name("row_op_package")


def _triton_is_ascend() -> bool:
    triton = importlib.util.find_spec("triton")
    folders = () if triton is None else triton.submodule_search_locations or ()
    return any(Path(folder, "backends", "ascend").is_dir() for folder in folders)


READY = _triton_is_ascend() and importlib.util.find_spec("torch_npu") is None
collect_ignore_glob = [] if READY else ["test_*.py"]

if READY:
    sys.path.insert(0, str(HERE.parents[1] / "verify"))


def pytest_configure(config: pytest.Config) -> None:
    """Installs the emulated device, its driver and a third-party op, before a test asks for backends or ops."""
    if not READY:
        return
    import torch

    from offboard import compiler, device, driver, native

    torch.set_num_threads(1)  # tensors are small, and there are other test processes
    if "OFFBOARD_CACHE" in os.environ:
        native.set_cache(Path(os.environ["OFFBOARD_CACHE"]))
    folder = tempfile.TemporaryDirectory(prefix="offboard-")  # a new one, so that every run compiles with triton-ascend
    config.add_cleanup(folder.cleanup)
    compiler.stop_at_linalg(Path(folder.name, "triton"))
    device.install()
    driver.install()
    install_row_op_package(Path(folder.name, "packages"))


def install_row_op_package(folder: Path) -> None:
    """Puts the package in `tests/row_op_package` and its entry point on the path, as if it were installed."""
    text = (ROW_OP_PACKAGE / "pyproject.toml").read_text()
    entry_point = re.search(r'\[project\.entry-points\."tridal\.ops"\]\n(\w+) = "([\w.:]+)"', text)
    assert entry_point is not None
    name, target = entry_point.groups()
    metadata = folder / "tridal_l2norm-1.0.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tridal-l2norm\nVersion: 1.0.0\n")
    (metadata / "entry_points.txt").write_text(f"[tridal.ops]\n{name} = {target}\n")
    sys.path[:0] = [str(ROW_OP_PACKAGE), str(folder)]


@pytest.fixture
def default_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Removes the settings of the environment and of files. A test can then make its own."""
    from tridal.devices import settings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TRIDAL_DEVICE", raising=False)
    settings.reload()
    yield
    monkeypatch.undo()
    settings.reload()


def pytest_terminal_summary(terminalreporter) -> None:
    """Says how the kernels ran."""
    if terminalreporter.getreports("passed"):
        terminalreporter.section("Ascend without an NPU")
        terminalreporter.write_line("triton-ascend compiled the kernels to linalg, without CANN. They ran on the CPU.")
