"""CUDA plans with what the installed compiler reports: they spill little, and the invariants of plans hold."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tridal
from golden_plans import Question
from plan_invariants import check_cuda_plan, most_spilled
from tridal.devices import registry
from tridal.devices.types import ITEMSIZE
from tridal.ops import planning, table
from tridal.runtime import compiler, launch
from tridal.runtime.row_layout import contiguous_strides, row_layout
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import KernelCall
from tridal_cuda.tuning import SUMS_MIN_TILES

pytest.importorskip("triton")

CUDA = registry.get("cuda")
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
OPS = ("softmax", "softmax_backward", "log_softmax", "log_softmax_backward")
OTHERS = ("rms_norm_backward", "layer_norm_backward", "cross_entropy", "cross_entropy_backward")
COLS = (1, 5, 100, 781, 1024, 4097, 8192, 12_345, 50_257, 262_144)
"""Columns of `OTHERS`, which sum over rows or write only numbers per row."""
MOST_COMPILED = 2
"""Kernels that are compiled for one plan, at most."""
SCALE_MASKS = (ScaleMask(scale=0.5), ScaleMask(causal=True), ScaleMask(mask="float32", strides=(0, 0, 0, 1)))


def sizes(largest: int) -> st.SearchStrategy[int]:
    """Sizes of every magnitude, often next to a power of two."""
    powers = st.integers(0, int(math.log2(largest))).map(lambda power: 1 << power)
    return st.one_of(powers.flatmap(lambda low: st.integers(low, 2 * low)), powers, powers.map(lambda size: size + 1))


@st.composite
def calls(choose: st.DrawFn) -> KernelCall:
    """Calls of all ops and dtypes: wide and narrow, few and many rows, all layouts, unaligned, scaled and masked."""
    kernel = table.kernel_named(choose(st.sampled_from(OPS + OTHERS)))
    read, written = choose(st.sampled_from(sorted(ITEMSIZE))), choose(st.sampled_from([None, *sorted(ITEMSIZE)]))
    cols, inner, outer = choose(sizes(1 << 24)), choose(sizes(1 << 22)), choose(st.sampled_from([1, 1, 3, 512]))
    shape, dim = choose(st.sampled_from([((outer * inner, cols), 1), ((outer, cols, inner), 1)]))
    if kernel.name in OTHERS:
        shape = choose(st.sampled_from([1, 7, 500, 4096, 100_000, 3_000_000])), choose(st.sampled_from(COLS))
    step = choose(st.sampled_from([1, 1, 1, 2])) if kernel.name in OPS else 1
    strides = tuple(step * stride for stride in contiguous_strides(shape))
    layout = row_layout(shape, strides, dim)
    assert layout is not None
    dtypes = planning.tensor_dtypes(kernel, read)
    dtypes = (written or read, *dtypes[1:]) if kernel.name in OPS else dtypes
    address = choose(st.sampled_from([0, 0, max(ITEMSIZE[read], ITEMSIZE[dtypes[0]])]))
    parameters = tuple(None if name == "scale" else 1e-5 for name in kernel.parameters)
    masked = kernel.scale_mask and layout.outer * layout.inner < 2**31 and choose(st.booleans())
    scale_mask = choose(st.sampled_from(SCALE_MASKS)) if masked else ScaleMask()
    return KernelCall(kernel, layout, dtypes, (address,) * len(dtypes), parameters, scale_mask)


def check_spills(call: KernelCall, arch: str) -> None:
    """Asserts that the plan spills little, that few kernels are compiled, and that the invariants of plans hold."""
    device = CUDA.architectures()[arch]
    before = compiler.resources.cache_info().misses
    plan = launch.plan(call, CUDA, device, {})
    assert compiler.resources.cache_info().misses - before <= MOST_COMPILED
    assert plan.resources is not None
    is_wide_sum = call.kernel.name in OTHERS and call.problem.accumulator == 8
    assert plan.resources.spills <= most_spilled(call.problem, plan.config) or is_wide_sum, plan
    check_cuda_plan(call.problem, device, plan)
    if call.problem.column_writes and plan.config.schedule != "column_loop":
        tiles, per_row = call.problem.tiles(plan.config.rows), plan.config.programs_per_row
        most = max(-(-device.cores // per_row), tiles // SUMS_MIN_TILES)
        assert plan.programs_for(tiles) // per_row <= most, "each group writes a row of sums, which is read again"


@pytest.mark.parametrize(
    ("op", "rows", "cols", "h100", "h200"),
    [
        # rows, columns, warps, `reload`, persistent
        ("layer_norm", 131072, 4096, (1, 4096, 8, True, False), (1, 4096, 2, True, False)),
        ("cross_entropy", 4096, 50257, (1, 8192, 8, False, False), (1, 4096, 4, False, True)),
    ],
)
def test_a_gpu_with_few_issue_slots_per_byte_has_other_plans(
    op: str, rows: int, cols: int, h100: tuple[object, ...], h200: tuple[object, ...]
) -> None:
    for arch, expected in (("h100", h100), ("h200", h200)):
        c = tridal.plan(rows, cols, op=op, dtype="bfloat16", arch=arch).config
        assert (c.rows, c.cols, c.num_warps, c.reload, c.persistent) == expected, arch


@pytest.mark.parametrize(
    "question",
    [  # these spilled 416 to 864 bytes before plans were chosen by their spills
        Question("sm_90", "softmax", "float32", (4_194_305, 4), 0),
        Question("sm_120", "softmax", "float32", (11_798_560, 511), 0),
    ],
    ids=str,
)
def test_plans_that_spilled_spill_little(question: Question) -> None:
    check_spills(question.call, question.arch)


def test_no_plan_spills(request: pytest.FixtureRequest) -> None:
    """Every new kernel takes up to seconds to compile, so only `--matrix` tries many calls."""
    count = 60 if request.config.getoption("--matrix") else 4

    @settings(max_examples=count, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(calls(), st.sampled_from(ARCHITECTURES))
    def check(call: KernelCall, arch: str) -> None:
        check_spills(call, arch)

    check()
