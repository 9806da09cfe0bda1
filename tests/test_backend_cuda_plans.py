"""CUDA plans: invariants for any compiler, and decisions with a modelled compiler.

No GPU is needed. A problem has no op, so these tests name traits: a forward reads one tensor, a gradient reads two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_invariants import check_plan
from tridal.devices import registry
from tridal.devices.types import ITEMSIZE, DeviceProperties, KernelConfig, LaunchPlan, Probe, Problem, Resources
from tridal.errors import PlanError
from tridal_cuda import tuning
from tridal_cuda.resources import occupancy

CUDA = registry.get("cuda")
ARCHITECTURES = CUDA.architectures()
H100 = ARCHITECTURES["sm_90"]


def problem(cols: int, rows: int, dtype: str = "float32", reads: int = 1, **traits: Any) -> Problem:
    """The problem of a forward (`reads=1`) or a gradient (`reads=2`)."""
    traits = {"passes": 4 - reads, "live_tiles": 2 * reads - 1, **traits}
    return Problem(cols=cols, inner=rows, reads=(dtype,) * reads, writes=(dtype,), **traits)


def compiler(problem: Problem) -> Probe:
    """Models a compiler. A thread needs registers for its elements: all that it holds, or a part with `reload`.

    Under a limit, the kernel uses all registers that it may use, and spills 4 bytes for each one that it lacks.
    """

    def probe(config: KernelConfig) -> Resources:
        elements = config.rows * config.cols // (32 * config.num_warps) * len(problem.reads)
        needed = 16 + elements * problem.itemsize // 8 if config.reload else 24 + elements * problem.accumulator // 4
        allowed = min(255, 65_536 // (32 * config.num_warps), config.max_registers or 255)
        return Resources(allowed if config.max_registers else min(needed, allowed), max(0, 4 * (needed - allowed)), 0)

    return probe


def plan(problem: Problem, device: DeviceProperties = H100) -> LaunchPlan:
    """The plan with a modelled compiler."""
    return CUDA.plan(problem, device, compiler(problem), {})


# Invariants


@st.composite
def problems(choose: st.DrawFn) -> Problem:
    widest = choose(st.sampled_from([64, 2000, 5000, 300_000, 20_000_000, 3_000_000_000]))
    read, written = (choose(st.sampled_from(["float16", "bfloat16", "float32", "float64"])) for _ in range(2))
    tensors = choose(st.sampled_from([1, 2]))
    return Problem(
        cols=choose(st.integers(1, widest)),
        inner=choose(st.sampled_from([1, 2, 3, 16, 31, 132, 4096, 100_000, 3_000_000_000])),
        outer=choose(st.sampled_from([1, 2, 512])),
        reads=(read,) * tensors,
        writes=(written,),
        passes=4 - tensors,
        live_tiles=choose(st.integers(1, 3)),
        layout=choose(st.sampled_from(["row", "inner", "strided"])),
        aligned=choose(st.booleans()),
        scale_mask=choose(st.booleans()),
    )


@settings(max_examples=400, deadline=None)
@given(problems(), st.sampled_from(sorted(ARCHITECTURES)), st.data())
def test_invariants_hold_for_every_problem_and_every_compiler(problem: Problem, arch: str, data: st.DataObject) -> None:
    device = ARCHITECTURES[arch]
    probed: dict[KernelConfig, Resources] = {}
    spills = data.draw(st.sampled_from([st.integers(0, 100), st.just(1000), st.sampled_from([0, 4, 40, 65, 1000])]))

    def probe(config: KernelConfig) -> Resources:
        most = min(255, 65_536 // (32 * config.num_warps), config.max_registers or 255)
        registers = data.draw(st.integers(min(16, most), most))
        shared_memory = config.rows * config.cols * problem.itemsize * (config.num_stages - 1)
        resources = Resources(registers, data.draw(spills), shared_memory)
        return probed.setdefault(config, resources)

    try:
        plan = CUDA.plan(problem, device, probe, {})
    except PlanError:
        needed = max(resources.shared_memory for resources in probed.values())
        assert needed > (device.shared_memory or 0), "only shared memory can be too small"
        return
    assert probed[plan.config] == plan.resources
    assert len(probed) <= 15, "each probe is a compilation; with a real compiler there are at most 12"
    assert max(config.programs_per_row for config in probed) <= 8 * device.cores, "wide exchanges compile slowly"
    check_plan(problem, device, plan)
    if probed[plan.config].spills > tuning.MAX_SPILL:
        column_loops = [probed[config].spills for config in probed if config.schedule == "column_loop"]
        assert min(column_loops) > tuning.MAX_SPILL, "another configuration spills less"
    unlimited = probed.get(replace(plan.config, max_registers=None))
    if unlimited is not None and plan.config.schedule == "cooperative" and plan.config.persistent:
        more = (plan.occupancy or 0) - occupancy(plan.config, unlimited, device)[0]
        assert (plan.resources or unlimited).spills <= unlimited.spills + tuning.MAX_SPILL_COOPERATIVE * max(0, more)


# Decisions, with a modelled compiler


@pytest.mark.parametrize("cols", [65_536, 131_072, 1_048_576])
def test_wide_16_bit_rows_are_cooperative_with_reload(cols: int) -> None:
    config = plan(problem(cols, 2048, "bfloat16")).config
    assert (config.schedule, config.reload, config.num_warps) == ("cooperative", True, 4)
    assert not plan(problem(cols, 2048, "float32")).config.reload
    assert not plan(problem(cols, 2048, "bfloat16"), device=ARCHITECTURES["sm_86"]).config.reload, "its L1 is small"


@pytest.mark.parametrize("cols", [12_000_000, 16_000_000])
def test_rows_whose_reloading_programs_cannot_all_be_resident_do_not_reload(cols: int) -> None:
    launch_plan = CUDA.plan(problem(cols, 1000, "bfloat16"), H100, lambda config: Resources(128, 0, 0), {})
    assert (launch_plan.schedule, launch_plan.config.reload) == ("column_loop", False)
    assert launch_plan.programs > 0


@pytest.mark.parametrize(("rows", "cols"), [(4096, 24_576), (1900, 70_001), (800, 151_935)])
def test_blocks_with_reload_have_little_padding(rows: int, cols: int) -> None:
    config = plan(problem(cols, rows, "bfloat16", aligned=cols % 8 == 0)).config
    assert (config.persistent, config.peel, config.reload) == (True, cols % 8 > 0, True)
    assert cols > (1 - tuning.MAX_PADDING_BLOCKS) * config.cols * config.programs_per_row
    assert not plan(problem(20_480, rows, "bfloat16")).config.reload, "a fifth of its blocks is padding"


@pytest.mark.parametrize("cols", [8208, 10_007, 14_336])
def test_wide_16_bit_gradients_are_whole_rows_with_reload_if_there_are_enough(cols: int) -> None:
    gradient = problem(cols, 20_000, "float16", reads=2, aligned=cols % 16 == 0)
    launch_plan = plan(gradient)
    config = launch_plan.config
    assert (config.schedule, config.reload, config.peel) == ("whole_row", True, cols % 16 > 0)
    in_flight = (launch_plan.occupancy or 0) * cols * 4
    assert tuning.BYTES_IN_FLIGHT < in_flight <= tuning.COOPERATIVE_BYTES_IN_FLIGHT, "about half of the cache"
    assert plan(replace(gradient, inner=500)).schedule == "cooperative"


@pytest.mark.parametrize(("dtype", "arch"), [("float32", "sm_90"), ("bfloat16", "sm_80")])
def test_32_bit_gradients_and_small_caches_do_not_reload(dtype: str, arch: str) -> None:
    assert not plan(problem(12_672, 20_000, dtype, reads=2), device=ARCHITECTURES[arch]).config.reload


@pytest.mark.parametrize(("reads", "cols"), [(2, 30_001), (1, 16_383)])
@pytest.mark.parametrize(("spills", "schedule"), [(0, "whole_row"), (8, "whole_row"), (40, "cooperative")])
def test_whole_rows_whose_reload_would_spill_are_cooperative(reads: int, cols: int, spills: int, schedule: str) -> None:
    rows = problem(cols, 4096, "bfloat16", reads, aligned=False)
    config = CUDA.plan(rows, H100, lambda config: Resources(64, spills if config.reload else 0, 0), {}).config
    assert (config.schedule, config.reload) == (schedule, schedule == "whole_row")


@pytest.mark.parametrize("cols", [20_480, 24_576])
def test_gradients_of_which_one_row_fits_on_a_multiprocessor_are_cooperative(cols: int) -> None:
    def probe(config: KernelConfig) -> Resources:
        allowed = config.max_registers or 255
        return Resources(min(96, allowed), max(0, 96 - allowed), 0)

    config = CUDA.plan(problem(cols, 4096, "bfloat16", reads=2), H100, probe, {}).config
    assert (config.schedule, config.reload) == ("cooperative", False)


@pytest.mark.parametrize("rows", [600, 60_000])
@pytest.mark.parametrize(("cols", "dtype"), [(8192, "bfloat16"), (15_000, "float16"), (8192, "float32")])
def test_whole_rows_that_fill_their_tile_reload_but_not_with_a_mask(cols: int, dtype: str, rows: int) -> None:
    launch_plan = plan(problem(cols, rows, dtype))
    assert (launch_plan.schedule, launch_plan.config.reload) == ("whole_row", True)
    in_flight = (launch_plan.occupancy or 0) * cols * ITEMSIZE[dtype]
    assert tuning.BYTES_IN_FLIGHT < in_flight <= tuning.COOPERATIVE_BYTES_IN_FLIGHT
    assert not plan(problem(cols, rows, dtype, scale_mask=True)).config.reload


@pytest.mark.parametrize("reads", [1, 2])
@pytest.mark.parametrize(
    ("rows", "cols", "dtype"),
    [(1, 32_768, "float32"), (8, 128_256, "float16"), (32, 50_257, "bfloat16"), (2, 1_000_000, "float32")],
)
def test_few_rows_are_one_shot_with_reload_and_fit_in_the_caches(rows: int, cols: int, dtype: str, reads: int) -> None:
    few = problem(cols, rows, dtype, reads, aligned=cols % 8 == 0)
    launch_plan = plan(few)
    config = launch_plan.config
    assert (config.schedule, config.reload, config.persistent) == ("cooperative", True, False)
    programs_per_core = -(-launch_plan.programs // H100.cores)
    assert programs_per_core * config.cols * few.bytes_read <= (H100.shared_memory or 0)
    assert not plan(few, device=ARCHITECTURES["sm_80"]).config.reload
    assert not plan(replace(few, layout="strided", aligned=False)).config.reload


def test_few_gradient_rows_that_exceed_the_caches_are_persistent() -> None:
    assert plan(problem(65_536, 128, "bfloat16", reads=2)).config.persistent


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_shot_plans_of_more_rows_have_the_same_config(dtype: str) -> None:
    few = [plan(problem(131_072, rows, dtype)) for rows in (5, 16)]
    assert few[0].config == few[1].config
    assert not few[0].config.persistent
    assert [p.programs for p in few] == [rows * few[0].config.programs_per_row for rows in (5, 16)]
    assert plan(problem(131_072, 4096, dtype)).config.persistent


@pytest.mark.parametrize(
    ("rows", "dtype", "reload"),
    [(2048, "bfloat16", False), (262_144, "float32", False), (262_144, "bfloat16", True)],
)
def test_inner_dim_rows_reload_full_cache_lines_if_they_are_many_and_16_bit(
    rows: int, dtype: str, reload: bool
) -> None:
    config = plan(problem(512, rows, dtype, layout="inner")).config
    assert config.reload == reload
    assert not reload or config.rows * ITEMSIZE[dtype] == tuning.CACHE_LINE


@pytest.mark.parametrize("reads", [1, 2])
@pytest.mark.parametrize("cols", [300, 1051, 1500, 5000])
@pytest.mark.parametrize("rows", [16, 64, 1000])
def test_inner_dim_rows_are_cooperative_only_with_several_programs(cols: int, rows: int, reads: int) -> None:
    config = plan(problem(cols, rows, reads=reads, outer=64, layout="inner")).config
    assert (config.schedule == "cooperative") == (config.programs_per_row > 1)


@pytest.mark.parametrize(("cols", "shape"), [(3, {"layout": "inner"}), (3, {"aligned": False})])
def test_a_tile_has_several_narrow_rows(cols: int, shape: dict[str, Any]) -> None:
    config = plan(problem(cols, 1_000_000, **shape)).config
    assert config.rows * config.cols == tuning.NARROW_TILE_ELEMENTS


@pytest.mark.parametrize("needed", [40, 80])
def test_a_register_limit_admits_more_programs_without_spills(needed: int) -> None:
    def probe(config: KernelConfig) -> Resources:
        registers = config.max_registers or 128
        return Resources(registers, max(0, needed - registers), 0)

    launch_plan = CUDA.plan(problem(12_672, 4096, "bfloat16"), H100, probe, {})
    assert (launch_plan.schedule, launch_plan.resources and launch_plan.resources.spills) == ("whole_row", 0)
    unlimited = occupancy(launch_plan.config, probe(replace(launch_plan.config, max_registers=None)), H100)[0]
    assert (launch_plan.occupancy or 0) > unlimited


@pytest.mark.parametrize("registers_per_element", [2, 6, 12])
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({"cols": 4096, "inner": 781, "reads": ("float64",) * 2}, id="whole-rows"),
        pytest.param({"cols": 3, "inner": 1_000_000, "aligned": False}, id="narrow-rows"),
        pytest.param(
            {"cols": 1000, "inner": 1001, "outer": 32, "layout": "inner", "aligned": False}, id="inner-dim-rows"
        ),
        pytest.param({"cols": 50_000, "inner": 300, "layout": "strided", "aligned": False}, id="strided-rows"),
        pytest.param({"cols": 4_194_305, "inner": 4, "layout": "inner", "aligned": False}, id="few-inner-dim-rows"),
        pytest.param({"cols": 100_000, "inner": 781, "reads": ("float64",)}, id="wide-float64-rows"),
    ],
)
def test_a_thread_that_would_spill_gets_fewer_elements(shape: dict[str, Any], registers_per_element: int) -> None:
    def probe(config: KernelConfig) -> Resources:
        needed = 24 + registers_per_element * config.rows * config.cols // (32 * config.num_warps)
        allowed = min(255, 65_536 // (32 * config.num_warps), config.max_registers or 255)
        return Resources(min(needed, allowed), max(0, 4 * (needed - allowed)), 0)

    launch_plan = CUDA.plan(Problem(**shape), H100, probe, {})
    assert launch_plan.resources is not None
    assert launch_plan.resources.spills <= tuning.MAX_SPILL


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_inner_dim_rows_that_would_spill_stay_cooperative(arch: str) -> None:
    """If smaller blocks are too many to be resident together, a tile has fewer rows."""
    rows = problem(128_925, 16, "bfloat16", layout="inner", aligned=False)
    most = CUDA.plan(rows, ARCHITECTURES[arch], lambda config: Resources(128, 0, 0), {}).config
    halved = most.rows * most.cols // 2
    launch_plan = CUDA.plan(
        rows, ARCHITECTURES[arch], lambda c: Resources(128, 0 if c.rows * c.cols <= halved else 128, 0), {}
    )
    assert (most.schedule, launch_plan.schedule) == ("cooperative", "cooperative")
    assert launch_plan.config.rows * launch_plan.config.cols == halved


def test_without_a_known_number_of_registers_there_is_no_register_limit() -> None:
    config = plan(problem(16_384, 4096, "bfloat16", reads=2), device=replace(H100, registers=None)).config
    assert (config.reload, config.max_registers) == (True, None)


def test_a_configuration_that_does_not_fit_raises_with_the_formula() -> None:
    with pytest.raises(PlanError, match=r"does not fit on NVIDIA H100 SXM: min\(.*shared memory 233472//"):
        CUDA.plan(problem(64, 64), H100, lambda config: Resources(32, 0, 1 << 20), {})
