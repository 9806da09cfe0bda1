"""Plan checks of ranges: a wrong range of rows, or a wrong rule for the programs, is an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from test_plan_check import COOPERATIVE, PROBLEM, WHOLE_ROW, changed, check, problem_of
from tridal.devices.types import LaunchPlan

RANGED = replace(WHOLE_ROW, row_range=(80, 100_000))
SMALL = replace(WHOLE_ROW, programs=456, row_range=(1, 4000), tiles_per_group=1)
EACH_TILE = replace(changed(WHOLE_ROW, persistent=False, programs=456), row_range=(1, 2**31 - 1))


@pytest.mark.parametrize("plan", [RANGED, SMALL, EACH_TILE], ids=["same_programs", "group_per_tile", "not_persistent"])
def test_correct_range_passes(plan: LaunchPlan) -> None:
    check(plan)


@pytest.mark.parametrize(
    ("plan", "fields", "expected"),
    [
        (RANGED, {"row_range": [80, 100_000]}, "row_range = [80, 100000], expected the first and the last number of r"),
        (RANGED, {"row_range": (80, 9.5)}, "row_range = (80, 9.5), expected the first and the last number of rows, fr"),
        (RANGED, {"row_range": (80,)}, "row_range = (80,), expected the first and the last number of rows, from 1 to"),
        (RANGED, {"row_range": (80, 1822)}, "row_range = (80, 1822), expected the first and the last number of rows,"),
        (RANGED, {"row_range": (1824, 9000)}, "row_range = (1824, 9000), expected the first and the last number of"),
        (RANGED, {"row_range": (0, 9000)}, "row_range = (0, 9000), expected the first and the last number of rows, f"),
        (RANGED, {"row_range": (1, 2**31)}, "row_range = (1, 2147483648), expected the first and the last number of"),
        (WHOLE_ROW, {"tiles_per_group": 1}, "tiles_per_group = 1, expected None"),
        (SMALL, {"tiles_per_group": 0}, "tiles_per_group = 0, expected a positive integer or None"),
        (SMALL, {"tiles_per_group": 1.0}, "tiles_per_group = 1.0, expected a positive integer or None"),
        (SMALL, {"tiles_per_group": 2}, "tiles_per_group = 2, expected the rule that gives programs = 456, not 228"),
        (
            replace(SMALL, programs=114, tiles_per_group=4),
            {},
            "row_range = (1, 4000), expected rows for which programs are right: 0 for 1 rows, expected an integer",
        ),
        (
            replace(WHOLE_ROW, programs=70_000, row_range=(1, 10**7)),
            {},
            "programs = 70000, expected at most 65536, because there are 456 tiles",
        ),
        (
            replace(COOPERATIVE, row_range=(9, 100_000)),
            {},
            "row_range = (9, 100000), expected rows for which programs are right: 40 for 9 rows, expected at most 3",
        ),
        (
            replace(COOPERATIVE, programs=40, row_range=(1, 4000), tiles_per_group=182),
            {},
            "row_range = (1, 4000), expected rows for which programs are right: 0 for 1 rows",
        ),
    ],
)
def test_wrong_range_is_refused(plan: LaunchPlan, fields: dict[str, Any], expected: str) -> None:
    assert problem_of(replace(plan, **fields)).startswith(expected)


def test_programs_that_wait_for_each_other_are_resident_at_the_end_of_the_range() -> None:
    few = replace(PROBLEM, inner=10)
    check(replace(COOPERATIVE, row_range=(1, 40), tiles_per_group=1), problem=few)
    message = problem_of(replace(COOPERATIVE, row_range=(1, 41), tiles_per_group=1), problem=few)
    assert message.startswith("programs = 164, expected at most 160, which are resident at the same time")


@pytest.mark.parametrize("traits", [{"outer": 2}, {"layout": "inner"}])
def test_blocks_and_inner_rows_have_no_range(traits: dict[str, Any]) -> None:
    message = problem_of(RANGED, problem=replace(PROBLEM, **traits))
    assert message.startswith("row_range = (80, 100000), expected None, because only problems with outer = 1")
