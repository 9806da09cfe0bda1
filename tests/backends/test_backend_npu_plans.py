"""NPU plans: invariants for every problem, decisions, exact plans, and the table in the documentation."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import golden_plans
from tridal.devices import registry
from tridal.devices.types import ITEMSIZE, Problem
from tridal.ops import table
from tridal.runtime.plan_check import check_plan
from tridal_npu import backend
from tridal_npu.architectures import ARCHITECTURES
from tridal_npu.resources import limit

DTYPES = ("float32", "float16", "bfloat16")
LAYOUTS = ("row", "inner", "strided")

# Elements of the largest tile that the vendor's allocator accepted with 192 KiB, by schedule and live tiles.
ACCEPTED = {
    ("whole_row", 1): 32_512,
    ("whole_row", 2): 19_456,
    ("whole_row", 3): 13_824,
    ("column_loop", 1): 32_512,
    ("column_loop", 2): 32_512,
    ("column_loop", 3): 10_752,
}
ACCEPTED_SEVERAL_ROWS = 30_720
ACCEPTED_STRIDED = 2_816
DOUBLE_BUFFERED = {1: 16_384, 2: 16_384, 3: 8_192}


def no_probe(config):
    raise AssertionError("NPU plans compile nothing")


def plan(problem, arch="ascend910b", **options):
    return backend.plan(problem, ARCHITECTURES[arch], no_probe, {"num_programs": 32, **options})


def make_problem(live_tiles, reads, written, **traits):
    return Problem(reads=reads, writes=(written,), passes=4 - len(reads), live_tiles=live_tiles, **traits)


sizes = st.one_of(
    st.integers(1, 70),
    st.integers(1, 200_000),
    st.integers(0, 31).flatmap(lambda k: st.integers(max(1, (1 << k) - 1), (1 << k) + 1)),
)
problems = st.builds(
    make_problem,
    live_tiles=st.integers(1, 3),
    reads=st.lists(st.sampled_from(DTYPES), min_size=1, max_size=2).map(tuple),
    written=st.sampled_from(DTYPES),
    cols=sizes,
    inner=sizes,
    outer=sizes,
    layout=st.sampled_from(LAYOUTS),
)


# Invariants


@example(Problem(cols=513, inner=1, layout="strided", live_tiles=2), "ascend910b", 32)
@given(problems, st.sampled_from(sorted(ARCHITECTURES)), st.one_of(st.integers(1, 65_535), st.just("cores")))
def test_invariants_hold_for_every_problem(problem, arch, num_programs):
    device = ARCHITECTURES[arch]
    launch_plan = plan(problem, arch, num_programs=num_programs)
    config, programs = launch_plan.config, launch_plan.programs
    elements = config.rows * config.cols
    check_plan(registry.get("npu"), problem, device, launch_plan, no_probe)
    assert programs == (device.cores if num_programs == "cores" else num_programs)
    assert (config.schedule == "column_loop") == (config.cols < problem.cols)

    # a tile fits in the unified buffer
    scale = device.shared_memory / (192 * 1024)
    limits = limit(problem, config.schedule, config.rows, device.shared_memory)
    assert elements <= min(limits.max_elements, scale * ACCEPTED[config.schedule, problem.live_tiles])
    assert config.rows == 1 or elements <= scale * ACCEPTED_SEVERAL_ROWS
    assert problem.layout != "strided" or elements <= scale * ACCEPTED_STRIDED

    # it is double-buffered, unless that would need a column loop
    double_buffered = elements <= limits.max_double_buffered
    assert launch_plan.reason.endswith(": double-buffered") == double_buffered
    assert launch_plan.reason.endswith(": not double-buffered") != double_buffered
    if double_buffered:
        assert elements <= scale * DOUBLE_BUFFERED[problem.live_tiles]
    else:
        assert (config.schedule, config.rows) == ("whole_row", 1)
        assert problem.layout != "inner"

    # the contiguous axis fills whole blocks of 32 bytes, and all programs have rows before tiles grow
    smallest = min(ITEMSIZE[dtype] for dtype in (*problem.reads, *problem.writes))
    contiguous = {"row": config.cols, "inner": config.rows}.get(problem.layout, 32)
    assert contiguous * smallest % 32 == 0
    rows_per_block = 16 if problem.layout == "inner" else 1  # a block of 32 bytes holds at most 16 rows
    assert config.rows <= max(rows_per_block, problem.rows // programs)


def test_tiles_have_the_rows_that_all_blocks_have_for_each_program():
    assert plan(Problem(cols=64, inner=16, outer=1000)).config.rows == 16


# Decisions


@pytest.mark.parametrize(("arch", "cores"), [("ascend910b4", 40), ("ascend950", 64)])
def test_cores_plans_one_program_per_vector_core(arch, cores):
    launch_plan = plan(Problem(cols=12_672, inner=4096), arch, num_programs="cores")
    assert launch_plan.programs == cores
    assert f"one per vector core {cores}" in launch_plan.reason


# Exact plans


@pytest.mark.parametrize("question", golden_plans.NPU, ids=str)
def test_plan_equals_the_golden_plan(question):
    expected = golden_plans.read(golden_plans.npu_file())[str(question)]
    actual = golden_plans.exact(golden_plans.plan(question))
    assert actual == expected, f"if the new plan is intended: {golden_plans.COMMAND}"


# Documentation


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmax_backward", "log_softmax_backward"])
def test_the_documentation_gives_the_largest_tiles(name):
    page = (Path(__file__).parents[2] / "docs" / "ascend.md").read_text()
    live_tiles = table.kernel_named(name).live_tiles
    largest: dict[tuple[str, str, bool], int] = {}
    for layout, power, inner in itertools.product(LAYOUTS, range(18), (1, 64, 1 << 20)):
        config = plan(Problem(cols=1 << power, inner=inner, layout=layout, live_tiles=live_tiles)).config
        kind = layout, config.schedule, config.rows > 1
        largest[kind] = max(largest.get(kind, 0), config.rows * config.cols)
    inner, inner_loop = largest["inner", "whole_row", True], largest["inner", "column_loop", True]
    strided, strided_loop = largest["strided", "whole_row", True], largest["strided", "column_loop", False]
    kinds = ("row", "whole_row", False), ("row", "whole_row", True), ("row", "column_loop", False)
    cells = [f"{largest[kind]:,}" for kind in kinds]
    cells += [f"{inner:,}" + f", column tiles {inner_loop:,}" * (inner != inner_loop)]
    cells += [f"{strided:,}" + f", column tiles {strided_loop:,}" * (strided != strided_loop)]
    assert f"| {name.replace('_backward', ', backward')} | {' | '.join(cells)} |" in page
