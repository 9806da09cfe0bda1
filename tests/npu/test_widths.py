"""The kernels on both sides of each change of the plan compile with triton-ascend to what an NPU executes well."""

from __future__ import annotations

import pytest

from offboard import lint
from tridal.ops import planning, table
from tridal.runtime import launch
from tridal.runtime.compiler import compile_kernel
from tridal.runtime.specialization import KernelCall
from tridal_npu import backend

KERNELS = [kernel.name for op in table.ops().values() if op.one_tensor for kernel in op.kernels]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dim", [-1, 0])
def test_kernels_compile_without_access_to_single_elements(kernel: str, dim: int) -> None:
    def configured(cols: int) -> tuple[KernelCall, object]:
        call = planning.matrix_call(*((1 << 20, cols) if dim else (cols, 1 << 20)), "float32", kernel, dim)
        return call, launch.plan(call, backend, backend.properties(0), {"num_programs": 32}).config

    powers = [1 << bits for bits in range(1, 18)]
    widths = [
        width for power in powers for width in (power, power + 1) if configured(power)[1] != configured(power + 1)[1]
    ]
    schedules = set()
    for cols in widths:
        call, config = configured(cols)
        linalg = compile_kernel(call.specialize(config), backend.properties(0).target).asm["ttadapter"]
        assert lint.problems(linalg, contiguous=True) == [], cols
        schedules.add(config.schedule)
    assert schedules == {"whole_row", "column_loop"}
