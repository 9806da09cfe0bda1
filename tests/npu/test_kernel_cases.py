"""The stored list of cases has kernels for Ascend, whose linalg IR two commits are compared by."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import triton

SCRIPTS = Path(__file__).parents[2] / "scripts"
CASES = [json.loads(line) for line in (SCRIPTS / "kernel_cases.jsonl").read_text().splitlines()]
KINDS = {(case["call"], *sorted(case)): case for case in reversed(CASES) if case["arch"] == "ascend910b"}


@pytest.mark.parametrize("case", list(KINDS.values())[::4], ids=lambda case: " ".join([*case.values()][1:3]))
def test_a_case_has_kernels_with_normalised_linalg(case, monkeypatch, count):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setattr(triton.runtime.driver, "active", triton.runtime.driver.active)
    normalised = importlib.import_module("dump_kernels").normalised_linalg
    kernels = importlib.import_module("record_kernels").record(case)
    assert len(kernels) >= 1 + ("grad" in case and "linear_weight" not in case)
    for kernel in kernels:
        linalg = kernel.asm["ttadapter"]
        function = linalg.partition("@")[2].partition("(")[0]
        assert normalised(linalg) == normalised(linalg.replace(function, "renamed"))
        assert "%arg" not in normalised(linalg)
    count("kernels compiled", len(kernels))
