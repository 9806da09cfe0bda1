"""Helpers for tests of calls: kernel calls on tensors of given shapes and strides, and the frames of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import tridal
from tridal.devices.types import KernelConfig
from tridal.kernels.row_kernel import RowKernel
from tridal.kernels.written import WrittenKernel
from tridal.library.softmax.softmax import SOFTMAX
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


def written(call: KernelCall, config: KernelConfig = WHOLE_ROW) -> WrittenKernel:
    """Returns the kernel that a schedule writes for a call."""
    s = call.specialize(config)
    return WrittenKernel(s.kernel, s.entry, tuple(dict(s.types)), dict(s.constants))


def frames_to_launch(function: Callable[[], object]) -> tuple[int, int]:
    """Calls the function. Returns how many of tridal's frames are nested in it at the first launch, and how many have
    started before."""
    root, started, nested = str(Path(tridal.__file__).parent), 0, 0

    def of_tridal(frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(root) or frame.f_code.co_filename == "<string>"  # generated

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal started, nested
        if nested or event != "call" or not of_tridal(frame):
            return
        if Path(frame.f_code.co_filename) != Path(root, "runtime", "launch.py"):
            started += 1
            return
        caller = frame.f_back
        while caller is not None and caller.f_code is not function.__code__:  # type: ignore[attr-defined]
            nested, caller = nested + of_tridal(caller), caller.f_back

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    assert nested, "nothing was launched"
    return nested, started
