"""The figures of the benchmark pages: they are those of the results, and a page with another figure is found."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "benchmark_pages.py"


@pytest.fixture
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def documents(script: dict[str, Any]) -> dict[str, Any]:
    return {op: script["load"](file) for op, file in script["RESULTS"].items()}


def test_pages_have_the_figures_of_the_results(script: dict[str, Any]) -> None:
    results = documents(script)
    pages = [ROOT / "docs" / "benchmarks.md", *(ROOT / "docs" / "benchmarks" / f"{op}.md" for op in results)]
    for page in pages:
        text = page.read_text()
        assert script["BLOCK"].search(text), f"{page} has no figures"
        assert script["with_figures"](text, results) == text, f"{page}: run python scripts/benchmark_pages.py"


def test_check_finds_a_page_with_another_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.png", "*.svg"))
    (tmp_path / "scripts").mkdir()
    copy = shutil.copy(SCRIPT, tmp_path / "scripts")
    monkeypatch.setattr(sys, "argv", [str(copy), "--check"])
    runpy.run_path(copy, run_name="__main__")
    page = tmp_path / "docs" / "benchmarks" / "softmax.md"
    text = page.read_text()
    page.write_text(text.replace("of 188 workloads", "of 189 workloads"))
    with pytest.raises(SystemExit, match=r"softmax\.md differs from the results"):
        runpy.run_path(copy, run_name="__main__")
    monkeypatch.setattr(sys, "argv", [str(copy)])
    runpy.run_path(copy, run_name="__main__")
    assert page.read_text() == text


def test_a_workload_that_another_library_computes_faster_is_listed(script: dict[str, Any]) -> None:
    row = {
        "op": "softmax", "group": "small", "dtype": "float32", "direction": "forward", "shape": "4096x256",
        "provider": "tridal", "ms": 1.0, "share_of_copy": 0.9, "share_noisy": True,
    }  # fmt: skip
    faster = {**row, "provider": "quack", "ms": 0.9, "share_of_copy": 1.0, "share_noisy": False}
    equal = {**row, "provider": "torch", "ms": 0.99}
    blocks = script["BLOCKS"]
    document = {"op": "softmax", "measurements": [row, equal], "aims": {"small": {"forward": 0.95}}}
    assert blocks["slower"](document)[2:] == []
    assert blocks["result"](document) == ["tridal is the fastest, or within 2% of the fastest, for 1 of 1 workloads."]
    assert blocks["aims"](document) == ["0 of 1 workloads reach the aim of their class of shapes."]
    document["measurements"] = [row, equal, faster]
    assert blocks["slower"](document)[2:] == ["| 4096x256, float32 forward | ~0.90 | quack 1.00 | 11% |"]
    assert blocks["result"](document)[0].endswith("quack is 11% faster for 4096x256, float32 forward.")
    assert blocks["shapes"](document)[-1] == "| 4096x256 | ~0.90 (1.00) |"


def test_an_unknown_block_names_the_known_ones(script: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="no figures are called 'sharse'; known: overview, faster_elsewhere"):
        script["with_figures"]("<!-- figures: sharse softmax -->\n<!-- end of figures -->\n", {})
