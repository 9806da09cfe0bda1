"""CUDA plans of kernels that sum over rows, that have no statistics, or that write only numbers per row."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tridal
from tridal.devices import registry
from tridal.devices.types import LaunchPlan, Problem
from tridal.kernels.row_kernel import RowKernel
from tridal.runtime import launch
from tridal.runtime.row_layout import row_layout
from tridal.runtime.specialization import KernelCall
from tridal_cuda import tuning

pytest.importorskip("triton")

import row_tensors
from row_tensor_reference import dtypes

CUDA = registry.get("cuda")
KERNELS = {
    name: getattr(row_tensors, name)
    for name in ("RMS_NORM_BACKWARD", "LAYER_NORM_BACKWARD", "CROSS_ENTROPY", "CROSS_ENTROPY_BACKWARD")
}


@functools.cache
def planned(name: str, rows: int, cols: int, dtype: str, arch: str = "sm_90") -> tuple[Problem, LaunchPlan]:
    """The plan of a kernel for a contiguous matrix. `launch.plan` checks it."""
    kernel: RowKernel = KERNELS[name]
    layout = row_layout((rows, cols), (cols, 1), 1)
    assert layout is not None
    call = KernelCall(kernel, layout, dtypes(kernel, dtype), (), (1e-5,) * len(kernel.parameters))
    options = {name: option.default for name, option in CUDA.options.items()}
    return call.problem, launch.plan(call, CUDA, CUDA.architectures()[arch], options)


@pytest.mark.parametrize(
    ("op", "rows", "cols", "h100", "h200"),
    [
        # rows, columns, warps, `reload`, persistent
        ("layer_norm", 131072, 4096, (1, 4096, 16, True, False), (1, 4096, 8, True, False)),
        ("layer_norm_backward", 1048576, 128, (16, 128, 2, False, True), (4, 128, 1, False, True)),
        ("cross_entropy", 4096, 50257, (1, 8192, 8, False, False), (1, 4096, 4, False, True)),
    ],
)
def test_a_gpu_with_few_issue_slots_per_byte_has_other_plans(
    op: str, rows: int, cols: int, h100: tuple[object, ...], h200: tuple[object, ...]
) -> None:
    for arch, expected in (("h100", h100), ("h200", h200)):
        c = tridal.plan(rows, cols, op=op, dtype="bfloat16", arch=arch).config
        assert (c.rows, c.cols, c.num_warps, c.reload, c.persistent) == expected, arch


@settings(max_examples=4, deadline=None)
@given(
    name=st.sampled_from(sorted(KERNELS)),
    rows=st.sampled_from([1, 7, 500, 4096, 100_000, 3_000_000]),
    cols=st.sampled_from([1, 5, 100, 781, 1024, 4097, 8192, 12_345, 50_257, 262_144]),
    dtype=st.sampled_from(["bfloat16", "float32", "float64"]),
    arch=st.sampled_from(["sm_90", "sm_80"]),
)
def test_plans_are_valid_and_spill_little(name: str, rows: int, cols: int, dtype: str, arch: str) -> None:
    problem, plan = planned(name, rows, cols, dtype, arch)
    assert plan.resources is not None
    assert plan.resources.spills <= tuning.MAX_SPILL or dtype == "float64"
    if problem.column_writes and plan.config.schedule != "column_loop":
        cores = CUDA.architectures()[arch].cores
        most = max(-(-cores // plan.config.programs_per_row), problem.tiles(plan.config.rows) // tuning.SUMS_MIN_TILES)
        groups = plan.programs_for(problem.tiles(plan.config.rows)) // plan.config.programs_per_row
        assert groups <= most, "each group writes a row of sums, which is read again"


def test_a_kernel_without_statistics_does_not_need_resident_programs() -> None:
    _, plan = planned("CROSS_ENTROPY_BACKWARD", 8192, 128256, "bfloat16")
    assert plan.programs is None
    assert "do not wait for each other" in plan.reason
