"""The table of supported models: it is what the script finds for the installed transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import diffusers_coverage
import model_coverage
from extras import of_trainers
from model_coverage import KINDS, survey, table, with_table

PAGE = Path(__file__).parents[2] / "docs" / "supported-models.md"


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "t5", "gpt_oss"])
def test_rows_of_a_family_are_on_the_page(family: str) -> None:
    assert table(survey(family))[-1] in PAGE.read_text().splitlines()


@pytest.mark.nightly("the rows of a few families")
def test_page_is_what_the_script_writes() -> None:
    assert with_table(PAGE.read_text(), table(survey())) == PAGE.read_text()


@pytest.mark.nightly("the test of a forward")
def test_table_of_diffusers_is_what_the_script_writes() -> None:
    of_trainers("diffusers")
    assert diffusers_coverage.with_table(PAGE.read_text()) == PAGE.read_text()


def test_modulations_of_a_forward_are_counted() -> None:
    def forward(self: Any, x: Any, scale: Any) -> Any:
        y = self.norm(x) * (1 + scale[:, None])
        if self.size + 1 > 2:
            y = self.norm2(x).float() * (1.0 + scale)
        return y

    assert diffusers_coverage.modulations(forward) == (2, 1)


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
