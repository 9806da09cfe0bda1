"""The tables of CUDA plans. If a plan changes, one test shows the old plan and how to measure its problem."""

from __future__ import annotations

import json
from importlib import metadata, util
from typing import Any

import pytest

import cuda_plan_table
import golden_plans
from cuda_problems import QUESTIONS

TABLES = {file.stem: json.loads(file.read_text()) for file in cuda_plan_table.files()}
TABLE = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
INSTALLED = metadata.version("triton") if util.find_spec("triton") else None


@TABLE
def test_plans_are_those_of_the_table(table: dict[str, Any]) -> None:
    changed = list(cuda_plan_table.changes(table))
    if changed or table["constants"] != cuda_plan_table.constants():
        pytest.fail(cuda_plan_table.report(table, changed), pytrace=False)


@TABLE
def test_the_table_has_all_problems_and_the_published_shares_of_copy(table: dict[str, Any]) -> None:
    assert table["plans"].keys() == set(map(str, QUESTIONS)), f"write the table again: {golden_plans.COMMAND}"
    shares = cuda_plan_table.published_shares()
    in_table = {question: row["share_of_copy"] for question, row in table["plans"].items()}
    assert in_table == {question: shares.get(question, cuda_plan_table.NOT_MEASURED) for question in in_table}
    assert sum(share != cuda_plan_table.NOT_MEASURED for share in in_table.values()) >= 60
    for arch in {question.arch for question in QUESTIONS}:
        assert sum(question.arch == arch for question in QUESTIONS) >= 60


def test_the_installed_compiler_reports_the_resources_in_its_table(request: pytest.FixtureRequest) -> None:
    """Fails if a kernel changes. Then its plans may change, too."""
    table = TABLES.get(f"plans-cuda-triton-{INSTALLED}")
    if table is None:
        pytest.skip(f"there is no table of Triton {INSTALLED}; `{golden_plans.COMMAND}` writes it")
    every = 5 if request.config.getoption("--matrix") else len(QUESTIONS) // 6
    different = {}
    for question in QUESTIONS[::every]:
        row = table["plans"][str(question)]
        made = cuda_plan_table.make_plan(question, cuda_plan_table.compiling(question))
        if made._asdict() != {"plan": row["plan"], "compiled": row["compiled"]}:
            different[str(question)] = f"old {row['plan']} {row['compiled']}, new {made}"
    assert not different, f"review the plans, then write the table again: {golden_plans.COMMAND}"
