"""The table of supported models: it is what the script finds for the installed transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

import model_coverage
from model_coverage import KINDS, survey, table, with_table

PAGE = Path(__file__).parents[2] / "docs" / "supported-models.md"


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "t5", "gpt_oss"])
def test_rows_of_a_family_are_on_the_page(family: str) -> None:
    assert table(survey(family))[-1] in PAGE.read_text().splitlines()


@pytest.mark.nightly("the rows of a few families")
def test_page_is_what_the_script_writes() -> None:
    assert with_table(PAGE.read_text(), table(survey())) == PAGE.read_text()


def test_classes_are_found_without_tridal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class counts by its source, whether tridal replaces it or not."""
    monkeypatch.setattr(model_coverage, "find", lambda what, module, kind: "left")
    found = {row.name: row.kind for row in survey("qwen3_next")}
    assert found == {
        "Qwen3NextRMSNormGated": "norms", "Qwen3NextRMSNorm": "norms", "Qwen3NextAttention": "rotary",
        "Qwen3NextMLP": "gated MLPs", "Qwen3NextExperts": "experts", "Qwen3NextTopKRouter": "routers",
        "Qwen3NextForCausalLM": "losses",
    }  # fmt: skip
    assert {*found.values()} == {*KINDS}
