"""Tests scripts/make_figures.py: the pictures and pages in docs/ follow from the stored results."""

from __future__ import annotations

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

matplotlib = pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "docs" / "benchmarks"
RENDERED = ("front.svg", "models/training.svg", "suite-bfloat16-forward.svg")
"""The pictures whose text is compared. The others are drawn in the same way."""


def test_pages_and_pictures_are_those_of_the_stored_results() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_figures.py"))
    pictures, results = script["pictures"], script["Results"]()
    with script["plot_style"].style():
        drawn = pictures.all_pictures(results)
        files = {
            file: text
            for name in RENDERED
            for file, text in pictures.texts(BENCHMARKS / name, drawn[BENCHMARKS / name]).items()
        }
    pages = script["make_pages"](results, {file: picture.description for file, picture in drawn.items()})
    for file, text in (files | pages).items():
        stored = file.read_text()
        if file.suffix == ".svg" and f"Matplotlib v{matplotlib.__version__}," not in stored:
            # Other versions of matplotlib write other paths, so then only the texts are compared.
            text, stored = ("\n".join(re.findall(r"<text.*?>(.*?)</text>", one)) for one in (text, stored))
        assert text == stored, f"{file.relative_to(ROOT)} differs: run `python scripts/make_figures.py`"
    assert {file for file in BENCHMARKS.rglob("*.svg") if not file.stem.endswith("-dark")} == set(drawn)
    shown = "\n".join(pages.values())
    assert [file for file in drawn if not re.search(rf'{re.escape(file.name)}[)"]', shown)] == [], "no page shows them"


def test_figures_in_sentences_are_those_of_the_stored_results() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_figures.py"))
    assert script["claims"].faults(script["Results"]()) == []


def test_a_claim_about_the_faster_one_is_checked_in_the_results() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_figures.py"))
    results = script["Results"]()
    results.models = {key: dict(step) for key, step in results.models.items()}
    results.models["qwen3", "training", "compile"]["tokens_per_second"] *= 2
    results.models["llama", "training", "liger"]["peak_gib"] = 13.37
    faults = script["claims"].faults(results)
    assert "docs/models.md: compile is faster" in faults
    assert "docs/getting-started.md: the results give 13.4" in faults


def test_a_new_op_gets_a_row_of_its_own_without_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_figures.py"))
    devices, results = script["device_table"], script["Results"]()
    before = devices.op_devices(results)
    monkeypatch.setattr(devices, "OPS", (*devices.OPS, dataclasses.replace(devices.OPS[0], name="new_op")))
    *others, row = devices.op_devices(results)
    assert others == before
    assert row == "| `new_op` | compiled | compiled | compiled | executed on a CPU | executed on a CPU | run |"
