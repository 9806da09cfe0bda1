"""Helpers for tests of the runtime: kernel calls on tensors of given shapes and strides."""

from __future__ import annotations

import torch

from tridal.devices.types import KernelConfig
from tridal.library.softmax.softmax import SOFTMAX
from tridal.runtime.row_kernel import RowKernel
from tridal.runtime.row_layout import row_layout
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import NO_SCALE_MASK, KernelCall

WHOLE_ROW = KernelConfig("whole_row", rows=4, cols=1024)
SM_90 = ("cuda", 90, 32)


def kernel_call(
    shape: tuple[int, ...] = (64, 1024),
    dim: int = -1,
    strides: tuple[int, ...] | None = None,
    kernel: RowKernel = SOFTMAX.forward,
    dtypes: str | tuple[str, ...] = "float32",
    addresses: tuple[int, ...] = (),
    parameters: tuple[float | None, ...] = (),
    scale_mask: ScaleMask = NO_SCALE_MASK,
) -> KernelCall:
    """Returns the call of a kernel. One name of a dtype stands for the output and all tensors that are read."""
    layout = row_layout(shape, strides or torch.empty(shape, device="meta").stride(), dim % len(shape))
    assert layout is not None
    dtypes = (dtypes,) * (1 + len(kernel.reads)) if isinstance(dtypes, str) else dtypes
    return KernelCall(kernel, layout, dtypes, addresses, parameters, scale_mask)
