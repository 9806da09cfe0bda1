"""The kernels of the matrix compile with triton-ascend, and the compiled code computes the ops."""

from __future__ import annotations

import mmap

import pytest
import torch

from offboard import device, lint, native
from tridal.library.softmax.softmax import SOFTMAX
from tridal.runtime import launch
from tridal.runtime.compiler import compile_kernel
from tridal.runtime.row_layout import row_layout
from tridal.runtime.specialization import KernelCall, Specialization
from tridal_npu import backend

from .execution import find_faults
from .matrix import KERNELS, LAYOUTS, Case, dtypes_for, group, properties

GROUPS = [
    pytest.param(kernel, dtypes, layout, id="-".join((kernel, *dict.fromkeys(dtypes), layout)))
    for kernel in KERNELS for dtypes in dtypes_for(kernel) for layout in LAYOUTS
]  # fmt: skip


def compile_group(kernel: str, dtypes: tuple[str, str], layout: str) -> dict[Specialization, tuple[Case, str]]:
    """Compiles each specialization of a group. Returns one of its cases and its linalg IR."""
    compiled: dict[Specialization, tuple[Case, str]] = {}
    for case in group(kernel, dtypes, layout):
        specialization = case.specialization()
        if specialization not in compiled:
            linalg = compile_kernel(specialization, properties().target).asm["ttadapter"]
            compiled[specialization] = case, linalg
    return compiled


def test_the_matrix_has_the_third_party_op():
    assert {"l2_norm", "l2_norm_backward"} < set(KERNELS)


@pytest.mark.parametrize(("kernel", "dtypes", "layout"), GROUPS)
def test_kernels_compile_without_problems_and_results_are_within_the_bounds(kernel, dtypes, layout):
    compiled = compile_group(kernel, dtypes, layout)
    problems = {
        str(case): found
        for case, linalg in compiled.values()
        if (found := lint.problems(linalg, contiguous=layout != "strided"))
    }
    assert not problems
    schedules = {case.plan().schedule for case, _ in compiled.values()}
    assert schedules == {"whole_row", "column_loop"}
    cases = group(kernel, dtypes, layout)
    native.build(linalg for _, linalg in compiled.values())
    faults = {str(case): found for case in cases if (found := find_faults(case))}
    assert not faults


@pytest.mark.parametrize("num_programs", [1, 32])
def test_a_row_distance_of_more_than_32_bits_is_supported(num_programs):
    shape, strides = (3, 70), ((1 << 31) + 3, 1)
    size = 2 * (shape[0] * strides[0] + shape[1])
    no_reserve = 0x4000  # MAP_NORESERVE of Linux: only pages that are used take memory
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve) as memory:
        source = torch.frombuffer(memory, dtype=torch.float16).as_strided(shape, strides)
        source.copy_(torch.randn(shape))
        out = torch.empty(shape, dtype=torch.float16)
        layout = row_layout(shape, strides, 1)
        assert layout is not None
        call = KernelCall(SOFTMAX.forward, layout, ("float16", "float16"))
        prepared = launch.prepare(call, backend, properties(), {"num_programs": num_programs})
        constants = dict(call.specialize(prepared.plan.config).constants)
        assert constants["INT64_OFFSETS"] == (num_programs == 1), "a tile has several rows only if there is one program"
        prepared.launch(device.current_stream().npu_stream, call.layout.rows, out, source)
        assert torch.allclose(out.double(), torch.softmax(source.double(), -1), rtol=2**-10, atol=1e-7)
        del source
