"""Kernels of several tensors compile with triton-ascend, and the compiled code agrees with float64."""

from __future__ import annotations

import pytest
import torch

import row_tensors
from offboard import device, lint
from row_tensor_reference import EPS, dtypes, expected, make
from tridal.kernels.row_kernel import RowKernel
from tridal.runtime import launch
from tridal.runtime.compiler import compile_kernel
from tridal.runtime.row_layout import row_layout
from tridal.runtime.specialization import KernelCall
from tridal_npu import backend

from .execution import Buffer
from .matrix import OPTIONS, properties

KERNELS = ("LAYER_NORM", "RMS_NORM", "LAYER_NORM_BACKWARD", "CROSS_ENTROPY", "CROSS_ENTROPY_BACKWARD")
SHAPES = [((100, 70), 1), ((5, 781), 1), ((3, 40_000), 1), ((3, 300, 33), 1), ((2, 9000, 16), 1)]
"""Shapes and dims: tiles of several rows, of one row, a column loop, inner-dim rows, and a column loop over these."""


@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_results_agree_with_float64_and_memory_around_them_is_unchanged(
    name: str, shape: tuple[int, ...], dim: int
) -> None:
    kernel: RowKernel = getattr(row_tensors, name)
    torch.manual_seed(0)
    tensors = make(kernel, shape, dim, 0, torch.device("cpu"))
    layout = row_layout(shape, tensors[kernel.reads[0]].stride(), dim)
    assert layout is not None
    call = KernelCall(kernel, layout, dtypes(kernel), (), (EPS,) * len(kernel.parameters))
    plan = launch.plan(call, backend, properties(), OPTIONS)
    linalg = compile_kernel(call.specialize(plan.config), properties().target).asm["ttadapter"]
    assert not lint.problems(linalg, contiguous=True, gathers=name == "CROSS_ENTROPY")
    prepared = launch.prepare(call, backend, properties(), OPTIONS)
    row = [1 if axis == dim else size for axis, size in enumerate(shape)]
    shapes = [shape] * len(kernel.writes) + [tuple(row)] * len(kernel.row_writes)
    shapes += [(prepared.groups(call.layout.rows), shape[dim])] * len(kernel.column_writes)
    written = [Buffer(s, torch.empty(s, device="meta").stride(), torch.float32, 4096, 77.0) for s in shapes]
    prepared.launch(
        device.current_stream().npu_stream, call.layout.rows, *(b.tensor for b in written), *tensors.values()
    )
    results = [buffer.tensor.double() for buffer in written]
    for index in range(-len(kernel.column_writes), 0):
        results[index] = results[index].sum(0)
    for index, (found, wanted) in enumerate(zip(results, expected(kernel, tensors, dim), strict=True)):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, msg=lambda m, i=index: f"tensor {i}: {m}")
    assert all(buffer.unchanged(except_for=buffer.tensor) for buffer in written)
