"""The check of a release: the version in the package's files and in the changelog."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

import tridal

ROOT = Path(__file__).parents[2]
faults: Callable[..., list[str]] = runpy.run_path(str(ROOT / "scripts" / "check_release.py"))["faults"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The files of a repository whose version 1.2.3 can be released."""
    (tmp_path / "src" / "tridal").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "tridal"\nversion = "1.2.3"\n')
    (tmp_path / "src" / "tridal" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 - 2026-01-31\n\n## 1.2.2 - 2025-12-24\n")
    return tmp_path


def test_a_version_with_a_date_can_be_released(repository: Path) -> None:
    assert faults("1.2.3", repository) == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("pyproject.toml", "1.2.3", "1.2.4"),
        ("src/tridal/__init__.py", "1.2.3", "1.2.4"),
        ("CHANGELOG.md", "2026-01-31", "unreleased"),
        ("CHANGELOG.md", "## 1.2.3 ", "## 1.3.0 "),
        ("CHANGELOG.md", "## 1", "## Version 1"),
    ],
)
def test_a_fault_names_the_file(repository: Path, file: str, old: str, new: str) -> None:
    path = repository / file
    path.write_text(path.read_text().replace(old, new, 1))
    (fault,) = faults("1.2.3", repository)
    assert fault.startswith(file)


def test_the_version_is_the_same_in_all_files_of_this_repository() -> None:
    assert [fault for fault in faults(tridal.__version__) if not fault.startswith("CHANGELOG.md")] == []
    assert f"\n## {tridal.__version__} - " in (ROOT / "CHANGELOG.md").read_text()
