"""Tests scripts/make_figures.py: the pictures and pages in docs/ follow from the stored results."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

matplotlib = pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "docs" / "benchmarks"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "make_figures.py"))


@pytest.fixture(scope="module")
def files(script: dict[str, Any]) -> dict[Path, str]:
    made: dict[Path, str] = script["make_files"](script["Results"]())
    return made


def test_pages_and_pictures_are_those_of_the_stored_results(files: dict[Path, str]) -> None:
    """Other versions of matplotlib write other paths, so then only the texts of pictures are compared."""
    for file, text in files.items():
        name, stored = str(file.relative_to(ROOT)), file.read_text()
        if file.suffix == ".svg" and f"Matplotlib v{matplotlib.__version__}," not in stored:
            text, stored = ("\n".join(re.findall(r"<text.*?>(.*?)</text>", one)) for one in (text, stored))
        assert text == stored, f"{name} differs: run `python scripts/make_figures.py`"
    assert {file for pattern in ("*.svg", "*.png") for file in BENCHMARKS.rglob(pattern)} <= files.keys()


def test_every_picture_has_a_dark_version_and_a_description(files: dict[Path, str]) -> None:
    names = {file.with_suffix("") for file in files if file.suffix == ".svg"}
    light = {name for name in names if not name.name.endswith("-dark")}
    assert {name.with_name(f"{name.name}-dark") for name in light} == names - light
    pages = "\n".join(text for file, text in files.items() if file.suffix == ".md")
    for name in light:
        described = re.findall(rf"!\[([^\]]*)\]\((?:[\w/]*/)?{name.name}\.svg\)", pages)
        assert described, f"no page shows {name}"
        assert all("tridal" in text and re.search(r"\d\.\d", text) for text in described)
