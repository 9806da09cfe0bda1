"""The exchange under random delays: results do not change, and the workspace is zero after each launch.

The launches need an NVIDIA GPU. That the delayed kernels compile, and have the same steps, is tested without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from call_helpers import SM_90, kernel_call
from exchange_delays import delayed_kernels
from tridal.devices.types import Backend, DeviceProperties, KernelConfig, LaunchPlan
from tridal.library.softmax.softmax import LOG_SOFTMAX
from tridal.runtime import compiler, launch
from tridal.runtime.specialization import KernelCall

pytest.importorskip("triton")

SEEDS = (1, 2)
LAUNCHES = 10
"""Launches of each kernel. The clock is part of each delay, so delays differ between launches."""


def config(programs_per_row: int, **fields: Any) -> KernelConfig:
    return KernelConfig("cooperative", **{"rows": 1, "cols": 1024, "programs_per_row": programs_per_row, **fields})


LOOPS = KernelConfig("column_loop", 32, 64, programs_per_row=10, reload=True, lanes=16)
CASES = {
    "one_shot_of_100_programs": (kernel_call((1, 100 * 1024), dtypes="bfloat16"), config(100, persistent=False), 100),
    "dynamic": (kernel_call((50, 9 * 1024), kernel=LOG_SOFTMAX.forward), config(9), 63),
    "dynamic_with_head_and_tail": (kernel_call((50, 9 * 1024 + 3)), config(10, peel=True), 70),
    "many_programs": (kernel_call((10, 97 * 1024 - 1)), config(97), 97),
    "static_many_programs": (kernel_call((10, 97 * 1024), dtypes="bfloat16"), config(97, num_stages=2), 97),
    "several_rows": (kernel_call((9, 2500, 64), 1), config(20, rows=32, cols=128), 100),
    "loops": (kernel_call((9, 2500, 64), 1), LOOPS, 100),
    "small_tiles": (kernel_call((60, 100)), config(4, cols=32), 24),
}  # fmt: skip
"""A call, a configuration and a number of programs, all of which are resident on a GPU with 132 multiprocessors."""


def test_delayed_kernels_have_the_same_steps() -> None:
    call, configuration, _ = CASES["dynamic"]
    steps = ("ld.volatile.global", "atom.global", "bar.sync", "st.global.b64")
    shipped = compiler.compile_kernel(call.specialize(configuration), SM_90).asm["ptx"]
    with delayed_kernels(1):
        delayed = compiler.compile_kernel(call.specialize(configuration), SM_90).asm["ptx"]
    assert "nanosleep" not in shipped
    assert delayed.count("nanosleep.u32") >= 3
    assert [delayed.count(step) for step in steps] == [shipped.count(step) for step in steps]


def bind(
    call: KernelCall, plan: LaunchPlan, device: DeviceProperties, tensors: list[torch.Tensor]
) -> Callable[[], None]:
    """Returns a function that launches the kernel on the current stream."""
    launcher = launch._bind_compiled(launch._unbound(call, plan), call, device).launch
    return lambda: launcher(torch.cuda.current_stream().cuda_stream, call.layout.rows, *tensors)


@pytest.mark.parametrize("case", CASES)
def test_results_under_delays_are_bitwise_equal(backend: Backend, device: torch.device, case: str) -> None:
    if device.type != "cuda" or torch.version.cuda is None:
        pytest.skip("the delays are instructions of NVIDIA GPUs")
    call, configuration, programs = CASES[case]
    configuration = replace(configuration, num_warps=4)
    plan = LaunchPlan(configuration, programs, "a test of the exchange")
    properties = backend.properties(device.index or 0)
    if programs > 2 * properties.cores:
        pytest.skip(f"needs {programs // 2} multiprocessors")
    size = call.layout.outer * call.layout.cols * call.layout.inner
    inputs = [torch.randn(size, device=device).to(getattr(torch, dtype)) for dtype in call.dtypes[1:]]
    out = torch.empty(size, dtype=getattr(torch, call.dtypes[0]), device=device)
    workspace = torch.zeros(call.workspace_slots(plan), dtype=torch.int64, device=device)
    tensors = [out, *inputs, workspace]

    bind(call, plan, properties, tensors)()
    expected = out.clone()
    assert not expected.isnan().any()
    assert not workspace.any(), "the launch without delays leaves words in the workspace"
    for seed in SEEDS:
        with delayed_kernels(seed):
            delayed = bind(call, plan, properties, tensors)
        for number in range(LAUNCHES):
            out.fill_(torch.nan)
            delayed()
            assert torch.equal(out, expected), f"the results differ in launch {number} with seed {seed}"
            assert not workspace.any(), f"words are left in the workspace in launch {number} with seed {seed}"
