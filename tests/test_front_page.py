"""Tests scripts/front_page.py: the figures of the pages are those of the results."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tridal

ROOT = Path(__file__).parents[1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import front_page

    return front_page


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Path]:
    """A copy of the folder with the results."""
    return shutil.copytree(ROOT / "docs" / "benchmarks", tmp_path / "benchmarks")


def edit(file: Path, change: Any) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def test_pages_show_the_figures_of_the_results(script: Any) -> None:
    found = script.Results(script.RESULTS)
    for page in script.PAGES:
        assert script.updated(page, found) == page.read_text(), "run python scripts/front_page.py"


def test_readme_and_first_page_have_the_three_tables(script: Any) -> None:
    for page in script.PAGES[:2]:
        names = [block["name"] for block in script.BLOCK.finditer(page.read_text())]
        assert names == ["models", "ops", "libraries"], page


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


def test_a_slower_training_step_changes_the_table(script: Any, results: Path) -> None:
    def halve(document: dict[str, Any]) -> None:
        for each in document["results"]:
            if each["provider"] == "kernelize+fused_loss" and each["model"] == "gpt2":
                each["tokens_per_second"] /= 2

    before = script.Results(results)
    edit(results / "models" / "models.json", halve)
    after = script.Results(results)
    assert after.speed("gpt2", "kernelize+fused_loss") == before.speed("gpt2", "kernelize+fused_loss") / 2
    assert script.models(after) != script.models(before)
    assert script.libraries(after) != script.libraries(before)


def test_a_faster_peer_becomes_the_best_other_and_lowers_the_count(script: Any, results: Path) -> None:
    def speed_up(document: dict[str, Any]) -> None:
        for row in document["measurements"]:
            if (row["provider"], row["group"], row["dtype"]) == ("torch", "hidden", "bfloat16"):
                row.update(ms=row["ms"] / 100, share_of_copy=1.25)

    before = script.Results(results)
    assert "1.25 torch |" not in script.ops(before)
    edit(results / "rms_norm" / "results.json", speed_up)
    after = script.Results(results)
    assert script.ops(after).count("1.25 torch |") == 2
    lost = sum(rank > script.EQUAL for rank in after.ranks()) - sum(rank > script.EQUAL for rank in before.ranks())
    assert 0 < lost <= 6


def test_a_provider_that_skipped_a_workload_is_not_the_best_other(script: Any, results: Path) -> None:
    workload = {"group": "hidden", "dtype": "bfloat16", "direction": "forward"}
    _, best = script.Results(results).best_other("rms_norm", **workload)

    def skip_one(document: dict[str, Any]) -> None:
        row = next(r for r in document["measurements"] if r["provider"] == best and r["dtype"] == "bfloat16")
        row.update(ms=None, share_of_copy=None, skipped="not supported")

    edit(results / "rms_norm" / "results.json", skip_one)
    assert script.Results(results).best_other("rms_norm", **workload)[1] != best


def test_check_reports_a_page_that_would_change(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: ops -->\nold\n<!-- figures: end -->\n")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "PAGES", (page,))
    for arguments, code, text in ((["--check"], 1, "old"), ([], 0, "softmax"), (["--check"], 0, "softmax")):
        monkeypatch.setattr(sys, "argv", ["front_page.py", *arguments])
        with pytest.raises(SystemExit) as exit:
            script.main()
        assert exit.value.code == code
        assert text in page.read_text()
    assert "page.md: the figures are not those of the results" in capsys.readouterr().out
