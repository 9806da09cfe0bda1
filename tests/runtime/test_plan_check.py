"""Plan checks: each wrong field of a plan is an error with the allowed values."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from tridal.devices.types import FEATURES, SCHEDULES, DeviceProperties, KernelConfig, LaunchPlan, Problem, Resources
from tridal.errors import PlanError
from tridal.runtime.plan_check import check_plan

DEVICE = DeviceProperties(
    "device", "dev1", cores=10, warp_size=32, registers=65_536, shared_memory=100_000, max_threads=2048, max_programs=16
)
PROBLEM = Problem(cols=781, inner=1823)
INNER, FEW = replace(PROBLEM, layout="inner"), replace(PROBLEM, inner=10)
NUMBERS = replace(PROBLEM, writes=(), row_writes=("float32",))
TOP = replace(PROBLEM, whole_rows=True)
WHOLE_ROW = LaunchPlan(KernelConfig("whole_row", 4, 1024), 20, "because")
WITH_REST = LaunchPlan(KernelConfig("whole_row", 1, 512, rest_cols=512), 20, "because")
COLUMN_LOOP = LaunchPlan(KernelConfig("column_loop", 1, 256), 20, "because")
LOOPS = LaunchPlan(KernelConfig("column_loop", 1, 256, programs_per_row=2), 40, "because")
COOPERATIVE = LaunchPlan(KernelConfig("cooperative", 1, 256, programs_per_row=4), 40, "because")
ONE_EACH = replace(WHOLE_ROW, config=replace(WHOLE_ROW.config, persistent=False), programs=None)
ONE_SHOT = replace(COOPERATIVE, config=replace(COOPERATIVE.config, persistent=False), programs=None)
ALL = frozenset({*SCHEDULES, *FEATURES})


def check(
    plan: LaunchPlan,
    problem: Problem = PROBLEM,
    device: DeviceProperties = DEVICE,
    declared: frozenset[str] = ALL,
    resources: tuple[int, int, int] = (32, 0, 0),
    interpreted: bool = False,
) -> None:
    schedules, features = declared & {*SCHEDULES}, declared & {*FEATURES}
    backend: Any = SimpleNamespace(name="mine", schedules=schedules, features=features, interpreted=interpreted)
    check_plan(backend, problem, device, plan, lambda config: Resources(*resources))


def changed(plan: LaunchPlan, **fields: Any) -> LaunchPlan:
    """Returns the plan with other fields. Fields of the configuration are recognized by their names."""
    config = {key: value for key, value in fields.items() if hasattr(plan.config, key)}
    rest = {key: value for key, value in fields.items() if key not in config}
    return replace(plan, config=replace(plan.config, **config), **rest)


def problem_of(plan: LaunchPlan, **context: Any) -> str:
    """Returns the part of the error between the name of the backend and the problem."""
    with pytest.raises(PlanError) as raised:
        check(plan, **context)
    start, _, rest = str(raised.value).partition(" made a wrong plan: ")
    problem, _, traits = rest.partition("; for Problem(")
    assert start == "backend 'mine'"
    assert traits.startswith("cols=")
    return problem


@pytest.mark.parametrize(
    ("plan", "context"),
    [
        (WHOLE_ROW, {}),
        (WITH_REST, {}),
        (changed(WITH_REST, reload=True, persistent=False, programs=None), {}),
        (COLUMN_LOOP, {}),
        (COOPERATIVE, {}),
        (ONE_EACH, {}),
        (changed(WHOLE_ROW, programs=100_000), {}),  # a launch has at most one for each tile
        (changed(COLUMN_LOOP, peel=True), {"problem": NUMBERS}),
        (changed(WHOLE_ROW, peel=True), {"problem": Problem(cols=1027, inner=8)}),  # without the head and the tail
        (changed(WHOLE_ROW, peel=True), {"problem": Problem(cols=1031, inner=8, reads=("bfloat16",))}),
        (ONE_SHOT, {"problem": replace(PROBLEM, inner=40)}),
        (changed(COOPERATIVE, programs=4000), {"problem": FEW}),  # ten rows have 40 programs, which are resident
    ],
)
def test_correct_plan_passes(plan: LaunchPlan, context: dict[str, Any]) -> None:
    check(plan, **context)


WRONG: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "a power of two": (("rows", "cols", "num_warps", "lanes"), (0, 3, 4.0, numpy.int64(4), True)),
    "0 or a power of two": (("rest_cols",), (-1, 3, 4.0, False)),
    "an integer from 1 to 32": (("num_stages",), (0, 33, "2", True)),
    "a positive integer": (("programs_per_row",), (0, 1.0, None)),
    "a positive integer or None": (("max_registers", "occupancy"), (0, 31.5, True)),
    "True or False": (("peel", "reload", "persistent"), (1, None, "yes")),
    "a float from -1e-05 to 1e-05 or None": (("exp2_bias",), (float("nan"), float("inf"), 0.5, 0)),
    "an integer from 1 to 2147483647 or None": (("programs",), (0, 2.0, 1 << 31)),
    "Resources or None": (("resources",), ((1, 2, 3),)),
    "text": (("reason",), (None, 5)),
}
"""Fields and wrong values of them by the allowed values in words."""


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [(field, value, allowed) for allowed, (names, values) in WRONG.items() for field in names for value in values],
    ids=str,
)
def test_field_of_a_wrong_type_or_range_is_named(field: str, value: Any, allowed: str) -> None:
    assert problem_of(changed(WHOLE_ROW, **{field: value})) == f"{field} = {value!r}, expected {allowed}"


RESIDENT = "which are resident at the same time on 10 cores"
ONE_ROW = "rows = 2, expected 1, because cooperative programs exchange one row at a time"
PEELS = "peel = True, expected False, because 'column_loop' peels rows only for statistics of elements without a mask"
RESTS = 'expected 0, because only "whole_row" has a rest, without `peel`, in tiles of one row'
LANES = 'expected 1, because only "column_loop" splits a row into lanes'
OR_PEEL = "expected at least 1025, because a tile holds whole rows, or the same with peel = True"


@pytest.mark.parametrize(
    ("plan", "fields", "context", "expected"),
    [
        (WHOLE_ROW, {"programs": None}, {}, "programs = None, expected the largest number of programs of a launch, be"),
        (WHOLE_ROW, {"cols": 512}, {}, "cols = 512, expected at least 781, because a tile holds whole rows"),
        (WHOLE_ROW, {}, {"problem": Problem(cols=1025, inner=8)}, f"cols = 1024, {OR_PEEL}"),
        (WHOLE_ROW, {"rows": 2048}, {}, "rows x cols = 2097152, expected at most 1048576, Triton's limit of a tensor"),
        (WHOLE_ROW, {"programs_per_row": 2}, {}, "programs_per_row = 2, expected 1, because the schedule is 'whole_r"),
        (WHOLE_ROW, {"persistent": False}, {}, "programs = 20, expected None, because they are not persistent: each "),
        (ONE_EACH, {}, {"problem": Problem(cols=8, inner=1 << 34)}, "persistent = False, expected True, because 42949"),
        (WHOLE_ROW, {"exp2_bias": 0.0}, {"problem": replace(PROBLEM, reads=("float64",))}, "exp2_bias = 0.0, expected"),
        (WHOLE_ROW, {"peel": True}, {"problem": INNER}, 'peel = True, expected False, because only the layout "row" h'),
        (WHOLE_ROW, {"peel": True}, {"problem": Problem(cols=1028, inner=8)}, "cols = 1024, expected at least 1028"),
        (WHOLE_ROW, {"peel": True}, {"problem": replace(PROBLEM, column_writes=("float32",))},
         "peel = True, expected False, because peeled rows begin at different columns, and the op sums over rows"),
        (WHOLE_ROW, {"lanes": 2}, {}, f"lanes = 2, {LANES}"),
        (COOPERATIVE, {}, {"problem": replace(PROBLEM, per_block=True)},
         "schedule = 'cooperative', expected another one: each block has programs of its own, so they may not be "),
        # a second tile with the rest of a row
        *((WITH_REST, fields, {}, f"rest_cols = 512, {RESTS}") for fields in (
            {"rows": 2}, {"peel": True}, {"schedule": "column_loop"},
            {"schedule": "cooperative", "programs_per_row": 2},
        )),
        (WITH_REST, {"cols": 1024}, {}, "rest_cols = 512, expected 0, because a row of 781 columns fits in the first "),
        (WITH_REST, {"rest_cols": 256}, {}, "cols = 512, expected at least 781, because a tile holds whole rows"),
        (WITH_REST, {}, {"problem": TOP}, "rest_cols = 512, expected 0, because a program has to hold whole rows in o"),
        # kernels that need whole rows
        (COLUMN_LOOP, {}, {"problem": TOP}, "schedule = 'column_loop', expected 'whole_row', because a program has"),
        (COOPERATIVE, {}, {"problem": TOP}, "schedule = 'cooperative', expected 'whole_row', because a program has"),
        *((WHOLE_ROW, {name: True}, {"problem": TOP}, f"{name} = True, expected False, because a program has to hol")
          for name in ("peel", "reload")),
        # column_loop
        (COLUMN_LOOP, {"reload": True}, {}, "reload = True, expected False, because only a 'column_loop' with several"),
        (COLUMN_LOOP, {"peel": True}, {}, PEELS),
        (COLUMN_LOOP, {"peel": True}, {"problem": replace(NUMBERS, scale_mask=True)}, PEELS),
        (COLUMN_LOOP, {"rows": 2, "lanes": 2}, {}, f"lanes = 2, {LANES}"),
        (COLUMN_LOOP, {"cols": 16, "lanes": 8}, {}, "lanes = 8, expected a divisor of cols / 4"),
        (COLUMN_LOOP, {"lanes": 2}, {"problem": replace(INNER, row_reads=("float32",))},
         "lanes = 2, expected 1, because lanes of inner dims have no numbers per row"),
        (COLUMN_LOOP, {"cols": 16, "lanes": 32}, {"problem": INNER}, "lanes = 32, expected a divisor of cols / 1"),
        # column_loop by several programs
        (LOOPS, {"programs_per_row": 5}, {}, "programs_per_row = 5, expected at most 4, so that each program has colu"),
        (LOOPS, {"programs": 41}, {}, "programs = 41, expected a multiple of 2"),
        (LOOPS, {"programs": 164}, {}, f"programs = 164, expected at most 160, {RESIDENT}"),
        (LOOPS, {}, {"problem": replace(PROBLEM, statistics=3)}, "programs_per_row = 2, expected 1: programs exchang"),
        (LOOPS, {}, {"declared": ALL - {"cooperative"}}, "programs_per_row = 2, expected 1, because the backend's `sc"),
        # programs that wait for each other are complete, and resident by what the device and the compiler report
        (COOPERATIVE, {"programs": 97}, {}, "programs = 97, expected a multiple of 4, the programs of a row, which wa"),
        (COOPERATIVE, {"programs_per_row": 3, "programs": 39}, {}, "programs_per_row = 3, expected at least 4, becaus"),
        (COOPERATIVE, {"programs_per_row": 5}, {}, "programs_per_row = 5, expected at most 4, so that each program ha"),
        (COOPERATIVE, {"programs": 164}, {}, f"programs = 164, expected at most 160, {RESIDENT}"),
        (COOPERATIVE, {"programs": 80, "occupancy": 4}, {}, f"programs = 80, expected at most 40, {RESIDENT}"),
        (COOPERATIVE, {"num_warps": 64}, {}, f"programs = 40, expected at most 10, {RESIDENT} with 1"),
        (COOPERATIVE, {"occupancy": 16}, {"resources": (255, 0, 0)}, f"programs = 40, expected at most 20, {RESIDENT} "
         "with 2 each (limited by registers)"),
        (COOPERATIVE, {"occupancy": 16}, {"resources": (32, 0, 60_000)}, "programs = 40, expected at most 10, "
         f"{RESIDENT} with 1 each (limited by shared_memory)"),
        (COOPERATIVE, {"occupancy": 16}, {"device": replace(DEVICE, max_programs=3)}, "programs = 40, expected at mos"),
        (COOPERATIVE, {"occupancy": 16}, {"device": replace(DEVICE, cores=2)}, "programs = 40, expected at most 32, w"),
        (COOPERATIVE, {"rows": 2, "persistent": False}, {}, f"{ONE_ROW} if programs are not persistent"),
        (COOPERATIVE, {"rows": 2, "peel": True}, {}, f"{ONE_ROW} with peel"),
        (ONE_SHOT, {}, {"problem": replace(PROBLEM, inner=41)}, f"programs = 164, expected at most 160, {RESIDENT}"),
        (COOPERATIVE, {"rows": 4096, "programs_per_row": 4096, "programs": 4096},
         {"problem": Problem(cols=1 << 20, inner=1 << 20, layout="inner")}, "rows x programs_per_row = 16777216, ex"),
        (COOPERATIVE, {}, {"problem": replace(PROBLEM, reads=("float64",))}, "schedule = 'cooperative', expected anot"),
        (COOPERATIVE, {"cols": 1 << 14, "programs_per_row": 131_073}, {"problem": replace(PROBLEM, cols=(1 << 31) + 1)},
         "programs_per_row = 131073, expected fewer, because they number the columns of a row with 32 bits"),
        # schedules and features that the backend does not declare
        (COOPERATIVE, {}, {"declared": ALL - {"cooperative"}}, "schedule = 'cooperative', expected one of the backend"),
        *((WHOLE_ROW, {name: True}, {"declared": ALL - {name}},
           f"{name} = True, expected False, because the backend's `features` lack") for name in ("peel", "reload")),
        (WITH_REST, {}, {"declared": ALL - {"rest_cols"}}, "rest_cols = 512, expected 0, because the backend's `featu"),
        (COLUMN_LOOP, {"lanes": 2}, {"declared": ALL - {"lanes"}}, "lanes = 2, expected 1, because the backend's `fea"),
    ],
)  # fmt: skip
def test_wrong_plan_is_refused(
    plan: LaunchPlan, fields: dict[str, Any], context: dict[str, Any], expected: str
) -> None:
    assert problem_of(changed(plan, **fields), **context).startswith(expected)


def test_unknown_properties_need_an_occupancy() -> None:
    unknown = DeviceProperties("new device", "new1", cores=10, warp_size=32, max_programs=2)
    expected = "an integer, because new device does not report registers, shared_memory, max_threads"
    assert problem_of(COOPERATIVE, device=unknown) == f"occupancy = None, expected {expected}"
    check(changed(COOPERATIVE, occupancy=4, programs=20), device=unknown)
    message = problem_of(changed(COOPERATIVE, occupancy=4), device=unknown)
    assert message.endswith("on 10 cores with 2 each (limited by max_programs)")
