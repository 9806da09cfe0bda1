"""CUDA plans of kernels with numbers per column and block of rows, compiled for an H100 without one."""

from __future__ import annotations

import pytest

from torch_versions import TRITON
from tridal.devices import registry
from tridal.ops import planning
from tridal.ops.kernel_tensors import kernel_tensors
from tridal.ops.table import op_named
from tridal.pytorch.path.kernel_calls import variant
from tridal.runtime import launch
from tridal.runtime.specialization import KernelCall
from tridal_accelerator.gpu import programs_of_blocks
from tridal_cuda.tuning import MAX_SPILL

CUDA = registry.get("cuda")
H100 = CUDA.architectures()["sm_90"]


@pytest.mark.parametrize(
    ("blocks", "most", "programs"),
    [(1, 500, 264), (8, 500, 264), (32, 500, 256), (32, 3, 96), (100, 500, 500), (250, 500, 250), (300, 500, 900),
     (5000, 500, 5000), (264, 0, 264)],
)  # fmt: skip
def test_few_programs_are_idle_at_the_end(blocks: int, most: int, programs: int) -> None:
    """264 programs are resident."""
    assert programs_of_blocks(blocks, 264, most) == programs


def call_of(op: str, rows: int, cols: int, blocks: int) -> KernelCall:
    """Returns the call of the gradient for a norm with neither weight nor bias, and with a gate or no residual."""
    call = planning.matrix_call(rows, cols, "bfloat16", f"{op}_backward", blocks=blocks)
    signature = op_named(op).gradient_signature
    full = kernel_tensors(signature, tuple(signature.names[index] for index in signature.per_block))
    outputs = tuple(name for index, name in full.outputs if signature.results[index].role == "element")
    absent = [name for name in ("weight", "bias", full.kernel.added) if name in full.kernel.inputs]
    kernel = variant(full.kernel, tuple(absent), outputs)
    return KernelCall(kernel, call.layout, planning.tensor_dtypes(kernel, "bfloat16"), block_stride=cols)


@pytest.mark.parametrize(
    ("op", "rows", "cols", "blocks", "programs"),
    [
        ("modulated_layer_norm", 32 * 4096, 1152, 32, 768),
        ("modulated_layer_norm", 8 * 1024, 3072, 8, 392),
        ("modulated_rms_norm", 2 * 4608, 3072, 2, 264),
        ("gated_modulated_layer_norm", 32 * 4096, 1152, 32, 512),
        ("gated_modulated_layer_norm", 8 * 1024, 3072, 8, 264),
        ("gated_modulated_rms_norm", 8 * 1024, 3072, 8, 264),
    ],
)
def test_gradients_of_diffusion_models_spill_nothing(op: str, rows: int, cols: int, blocks: int, programs: int) -> None:
    pytest.importorskip("triton")
    call = call_of(op, rows, cols, blocks)
    plan = launch.plan(call, CUDA, H100, {})
    assert plan.resources is not None
    assert plan.resources.spills <= MAX_SPILL
    assert call.programs(plan) == plan.programs
    assert plan.programs == programs or TRITON < (3, 5)  # the compiler of Triton 3.3 uses fewer registers
