"""Kernels with a score modification, compiled for sm_90: masks are loaded in vectors."""

from __future__ import annotations

import pytest
import torch

from call_helpers import WHOLE_ROW
from tridal.devices.types import KernelConfig
from tridal.library.softmax.softmax import SOFTMAX
from tridal.ops import planning
from tridal.ops.scale_mask import ScoreModification
from tridal.pytorch import binding
from tridal.runtime import compiler
from tridal.runtime.row_layout import row_layout
from tridal.runtime.specialization import KernelCall


def kernel_call(
    shape: tuple[int, ...], mask: torch.Tensor | None, dtype: torch.dtype, causal: bool = False, zero: bool = False
) -> KernelCall:
    """The call for contiguous scores of this shape."""
    x, dim = torch.empty(shape, dtype=dtype, device="meta"), len(shape) - 1
    layout = row_layout(shape, x.stride(), dim, 0)
    scale_mask = binding.scale_mask_of(x, dim, ScoreModification(0.5, mask, causal, zero))
    assert layout is not None
    assert scale_mask is not None
    return KernelCall(SOFTMAX.forward, layout, (binding.dtype_name(dtype),) * 2, (), (), scale_mask)


@pytest.mark.parametrize(("cols", "dtype"), [(1024, torch.float32), (1001, torch.bfloat16)])
def test_mask_is_loaded_in_vectors_if_it_is_aligned_like_the_scores(cols: int, dtype: torch.dtype) -> None:
    _, device = planning.target(arch="sm_90")
    assert device.target is not None
    config = KernelConfig("whole_row", rows=1, cols=1024, peel=cols % 16 != 0)
    if config.peel and compiler.triton_version(compiler.import_triton()) < (3, 5):
        pytest.skip("Triton 3.3 and older do not access peeled rows in vectors")
    elements = torch.ones(64 * cols + 1, dtype=torch.bool)
    masks = {
        "aligned": elements[:-1].view(64, cols),
        "unaligned": elements[1:].view(64, cols),
        "key": torch.ones(cols, dtype=torch.bool),
    }
    byte_loads = {}
    for name, mask in masks.items():
        specialization = kernel_call((64, cols), mask, dtype).specialize(config)
        ptx = compiler.compile_kernel(specialization, device.target).asm["ptx"]
        byte_loads[name] = ptx.count("ld.global.b8") + ptx.count("ld.global.v2.b8")
        assert ptx.count("ld.global.v4.b32") >= 1, "scores are always loaded in vectors"
    head_and_tail = 2 * config.peel
    assert byte_loads["aligned"] <= head_and_tail, "single bytes are loaded in the head and tail only"
    assert byte_loads["unaligned"] > head_and_tail
    assert (byte_loads["key"] > head_and_tail) is config.peel, (
        "rows of odd length start anywhere, the key mask does not"
    )


def test_another_batch_size_needs_no_compilation() -> None:
    small, large = (
        kernel_call((batch, 3, 16, 1024), torch.ones(batch, 1, 16, 1024), torch.float32, causal=True)
        for batch in (2, 5)
    )
    assert small.specialize(WHOLE_ROW) == large.specialize(WHOLE_ROW)
