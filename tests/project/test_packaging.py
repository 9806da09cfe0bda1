"""Tests that the wheel contains all packages, plugins, type information and settings files."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import processes
from tridal.devices.plugins import GROUP

ROOT = Path(__file__).parents[2]
SHARED = "tridal_accelerator"
BACKENDS = {path.parent.name for path in (ROOT / "backends").glob("*/__init__.py")} - {SHARED}
CONFIGS = {path.name for path in (ROOT / "configs").glob("*.yaml")}


def python(*arguments: str) -> str:
    """Runs Python in a new process and returns its output."""
    result = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel. It is built from the sdist, so the sdist also contains everything that the wheel needs."""
    folder = tmp_path_factory.mktemp("dist")
    output = python("-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    assert "warning" not in output.lower()
    return next(folder.glob("*.whl"))


def test_entry_points_and_settings_are_those_of_the_repository(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        points = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert "tridal = tridal.cli:main" in points
    section = points.partition(f"[{GROUP}]")[2].partition("[")[0]
    assert {line.partition("=")[2].strip() for line in section.splitlines() if line} == {
        f"{package}:backend" for package in BACKENDS
    }
    assert {name.rpartition("/")[2] for name in names if "/data/share/tridal/configs/" in name} == CONFIGS


def test_wheel_contains_all_files_of_the_packages_and_no_others(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name and ".data/" not in name}
    assert files == package_files()
    assert "tridal/py.typed" in files


def package_files() -> set[str]:
    """Returns the files of all packages in the repository, relative to the folder that contains the package."""
    packages = [ROOT / "src" / "tridal", *(ROOT / "backends" / name for name in (*BACKENDS, SHARED))]
    files = {file.relative_to(package.parent) for package in packages for file in package.rglob("*") if file.is_file()}
    return {file.as_posix() for file in files if "__pycache__" not in file.parts}


def test_wheel_requires_torch_but_not_triton(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))))
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert any(line.startswith("torch") for line in required)
    assert not any("triton" in line for line in required), "triton and triton-ascend overwrite each other"


def test_installed_wheel_works_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    python("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path), str(wheel))
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch, tridal\n"
        "from tridal import registry\n"
        f"assert tridal.__file__.startswith({str(tmp_path)!r})\n"
        "for entry in registry.registered(): print(sys.modules[entry.backend.__module__].__file__, entry.fault)\n"
        "with tridal.use(device='interpreter'): print(tridal.softmax(torch.zeros(1, 4)).sum().item())\n"
    )
    result = processes.python("-c", script, cwd=tmp_path)
    assert result.stdout.count(str(tmp_path)) == len(BACKENDS)
    assert result.stdout.split()[-1] == "1.0"
