"""What pip installs is complete: the wheel and an editable install hold packages, plugins, types and settings files."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tridal.devices.plugins import GROUP

ROOT = Path(__file__).parents[1]
BACKENDS = {path.name for path in (ROOT / "backends").iterdir() if (path / "__init__.py").exists()}
CONFIGS = {path.name for path in (ROOT / "configs").glob("*.yaml")}


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by way of the sdist, as `python -m build` does: so that holds all that the wheel needs, too."""
    folder = tmp_path_factory.mktemp("dist")
    python("-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("editable")
    python("-c", f"import hatchling.build; hatchling.build.build_editable({str(folder)!r})")
    return next(folder.glob("*.whl"))


@pytest.mark.parametrize("built", ["wheel", "editable"])
def test_names_its_plugins_and_its_command(built: str, request: pytest.FixtureRequest) -> None:
    with zipfile.ZipFile(request.getfixturevalue(built)) as archive:
        points = archive.read(next(name for name in archive.namelist() if name.endswith("entry_points.txt"))).decode()
    assert "tridal = tridal.cli:main" in points
    section = points.partition(f"[{GROUP}]")[2].partition("[")[0]
    assert {line.partition("=")[2].strip() for line in section.splitlines() if line} == {
        f"{package}:backend" for package in BACKENDS
    }


@pytest.mark.parametrize("built", ["wheel", "editable"])
def test_brings_the_settings_files(built: str, request: pytest.FixtureRequest) -> None:
    with zipfile.ZipFile(request.getfixturevalue(built)) as archive:
        shared = {name.rpartition("/")[2] for name in archive.namelist() if "/data/share/tridal/configs/" in name}
    assert shared == CONFIGS


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name and ".data/" not in name}
    assert held == package_files()
    assert "tridal/py.typed" in held


def package_files() -> set[str]:
    """Of all packages in the tree, each by its path from where the package is imported."""
    packages = [ROOT / "src" / "tridal", *(ROOT / "backends" / name for name in BACKENDS)]
    files = {file.relative_to(package.parent) for package in packages for file in package.rglob("*") if file.is_file()}
    return {file.as_posix() for file in files if "__pycache__" not in file.parts}


def test_asks_for_torch_and_for_no_triton(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))))
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert any(line.startswith("torch") for line in needed)
    assert not any("triton" in line for line in needed), "triton and triton-ascend overwrite each other"


def test_installs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """`pip install .` with what it needs in place already; it runs from there, without this checkout."""
    python("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path), str(wheel))
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch, tridal\n"
        "from tridal import registry\n"
        f"assert tridal.__file__.startswith({str(tmp_path)!r})\n"
        "for entry in registry.registered(): print(sys.modules[entry.backend.__module__].__file__, entry.problem)\n"
        "with tridal.use(device='interpreter'): print(tridal.softmax(torch.zeros(1, 4)).sum().item())\n"
    )
    told = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count(str(tmp_path)) == len(BACKENDS)
    assert told.stdout.split()[-1] == "1.0"
