"""Declarations, printed kernels and conformance cases are those in `tests/golden`, and a change is described."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import golden_records
from conformance_helpers import INTERPRETER
from tridal.library.softmax.softmax import SOFTMAX


@pytest.mark.slow("specialises 200 kernels")
@pytest.mark.parametrize("name", golden_records.RECORDS)
def test_record_is_that_of_the_file(name: str) -> None:
    if name == "bounds" and (reason := INTERPRETER.unavailable()) is not None:
        pytest.skip(reason)
    made = json.loads(golden_records.text_of(golden_records.RECORDS[name]()))
    found = [*golden_records.differences(golden_records.read(name), made)]
    if found:
        shown = "\n".join(line[:300] for line in found[:8])
        pytest.fail(f"{len(found)} entries changed; if meant: {golden_records.COMMAND}\n{shown}", pytrace=False)


def test_a_difference_names_its_place() -> None:
    old = {"a": {"b": [1], "c": 2}, "d": 3}
    assert [*golden_records.differences(old, {"a": {"b": [2], "c": 2}, "e": None})] == [
        "/a/b: [1] -> [2]",
        "/d: 3 -> null",
    ]


def test_data_of_a_declaration_has_what_differs_from_the_defaults_with_the_names_of_functions() -> None:
    found = golden_records.data(replace(SOFTMAX, autocast=False))
    assert found["reference"] == "reference"
    assert found["arguments"] == [{"name": "input", "role": "element", "differentiable": True}]
    assert "autocast" not in found
    assert "steps" not in found
