"""Printed kernels, parameters of public functions and numbers of cases are those in `tests/golden`."""

from __future__ import annotations

import difflib

import pytest

import golden_plans
import golden_records


@pytest.mark.parametrize("name", golden_records.RECORDS)
def test_record_is_that_of_the_file(name: str) -> None:
    made, known = (
        text.splitlines() for text in (golden_records.text_of(name), (golden_plans.FOLDER / name).read_text())
    )
    if made != known:
        shown = "\n".join([*difflib.unified_diff(known, made, "tests/golden", "now", lineterm="", n=1)][:60])
        pytest.fail(f"if the change is meant, run {golden_records.COMMAND}\n{shown}", pytrace=False)
