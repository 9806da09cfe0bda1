"""Tests the blocks of figures of the first pages, which scripts/figures/front_page.py writes."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import tridal

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script() -> Any:
    from figures import front_page

    return front_page


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the folder with the results."""
    ignored = shutil.ignore_patterns("*.svg", "*.md")
    return shutil.copytree(ROOT / "docs" / "benchmarks", tmp_path / "benchmarks", ignore=ignored)


def edit(file: Path, change: Any) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/models.md"])
def test_the_report_is_what_the_first_block_prints(page: str) -> None:
    pytest.importorskip("transformers")
    text = (ROOT / page).read_text()
    block, shown = (re.search(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S) for kind in ("python", "text"))
    assert block is not None
    assert shown is not None
    printed = io.StringIO()
    with tridal.use(device="interpreter"), contextlib.redirect_stdout(printed):
        exec(block[1], {})
    assert printed.getvalue() == shown[1]


def test_readme_and_first_page_have_the_three_tables() -> None:
    for page in ("README.md", "docs/index.md"):
        names = re.findall(r"<!-- figures: (\w+) -->", (ROOT / page).read_text())
        assert names == ["models", "ops", "libraries"], page


def test_a_slower_training_step_changes_the_tables(script: Any, folder: Path) -> None:
    def halve(document: dict[str, Any]) -> None:
        for each in document["results"]:
            if each["provider"] == "kernelize+fused_loss" and each["model"] == "gpt2":
                each["tokens_per_second"] /= 2

    before = script.Results(folder)
    edit(folder / "models" / "models.json", halve)
    after = script.Results(folder)
    assert after.speed("gpt2", "kernelize+fused_loss") == before.speed("gpt2", "kernelize+fused_loss") / 2
    assert script.models(after) != script.models(before)
    assert script.libraries(after) != script.libraries(before)
    assert script.training(after) != script.training(before)
    assert script.decoding(after) == script.decoding(before)


def test_a_faster_peer_becomes_the_best_other_and_lowers_the_count(script: Any, folder: Path) -> None:
    def speed_up(document: dict[str, Any]) -> None:
        for row in document["measurements"]:
            if (row["provider"], row["group"], row["dtype"]) == ("torch", "hidden", "bfloat16"):
                row.update(ms=row["ms"] / 100, share_of_copy=1.25)

    def count(lines: list[str]) -> int:
        (sentence,) = [line for line in lines if line.startswith("tridal is the fastest")]
        found = re.search(r"at (\d+) of", sentence)
        assert found is not None
        return int(found[1])

    before = script.ops(script.Results(folder))
    assert "1.25 torch |" not in "".join(before)
    edit(folder / "rms_norm" / "results.json", speed_up)
    after = script.ops(script.Results(folder))
    assert "".join(after).count("1.25 torch |") == 2
    assert 0 < count(before) - count(after) <= 6


def test_a_provider_that_skipped_a_workload_is_not_the_best_other(script: Any, folder: Path) -> None:
    workload = {"group": "hidden", "dtype": "bfloat16", "direction": "forward"}
    _, best = script.best_other(script.Results(folder), "rms_norm", **workload)

    def skip_one(document: dict[str, Any]) -> None:
        row = next(r for r in document["measurements"] if r["provider"] == best and r["dtype"] == "bfloat16")
        row.update(dict.fromkeys(("ms", "ms_20", "ms_80", "gbps", "share_of_copy")), skipped="not supported")

    edit(folder / "rms_norm" / "results.json", skip_one)
    assert script.best_other(script.Results(folder), "rms_norm", **workload)[1] != best
