"""Code that Triton generates for planned CUDA kernels: loads of each pass, and waits between programs. Needs no GPU."""

from __future__ import annotations

import re
from collections import Counter

import pytest

import tridal
from tridal.devices import registry
from tridal.devices.types import KernelConfig
from tridal.kernels.row_kernel import RowKernel
from tridal.library.softmax.softmax import SOFTMAX
from tridal.ops import table
from tridal.runtime import compiler, launch
from tridal.runtime.row_layout import contiguous_strides, row_layout
from tridal.runtime.specialization import KernelCall

pytest.importorskip("triton")

CUDA = registry.get("cuda")
H100 = CUDA.architectures()["sm_90"]


def make_call(kernel: RowKernel, shape: tuple[int, ...], dim: int, dtype: str = "bfloat16") -> KernelCall:
    """The call for contiguous tensors of this shape."""
    layout = row_layout(shape, contiguous_strides(shape), dim)
    assert layout is not None
    return KernelCall(kernel, layout, (dtype,) * (1 + len(kernel.reads)), (), (None,) * len(kernel.parameters))


def ptx(call: KernelCall, config: KernelConfig) -> str:
    """The PTX of a call's kernel for sm_90."""
    assert H100.target is not None
    text: str = compiler.compile_kernel(call.specialize(config), H100.target).asm["ptx"]
    return text


def vector_loads(text: str) -> Counter[str]:
    """The number of 16-byte loads for each eviction policy: "last", "first", and "" for the default."""
    return Counter(re.findall(r"ld\.global(?:\.L1::evict_(\w+))?[\w.:]*\.v4", text))


def check_loads(call: KernelCall, config: KernelConfig) -> None:
    """Asserts that each pass loads all elements again: the first keeps them in the cache, the last releases them."""
    reads = len(call.problem.reads)
    loads = reads * config.rows * config.cols // (8 * 32 * config.num_warps)
    expected = {"last": loads, "first": loads} if reads == 2 else {"last": loads, "": loads, "first": loads}
    assert vector_loads(ptx(call, config)) == expected


@pytest.mark.parametrize("name", table.kernels())
def test_a_planned_kernel_of_each_op_compiles_to_machine_code(name: str) -> None:
    plan = tridal.plan(1823, 781, dtype="bfloat16", op=name, arch="h100")
    assert H100.target is not None
    assert compiler.compile_kernel(plan.call.specialize(plan.config), H100.target).asm["cubin"].startswith(b"\x7fELF")


@pytest.mark.parametrize(("cols", "kernel"), [(64, SOFTMAX.forward), (4096, SOFTMAX.backward)])
def test_with_reload_each_pass_over_inner_dim_rows_loads_all_elements(cols: int, kernel: RowKernel) -> None:
    call = make_call(kernel, ((1 << 27) // (512 * cols), cols, 512), 1)
    plan = launch.plan(call, CUDA, H100, {})
    assert plan.config.reload
    assert plan.config.rows in ((16, 32, 64) if plan.schedule == "cooperative" else (64,))
    check_loads(call, plan.config)


@pytest.mark.parametrize(
    ("kernel", "cols", "warps", "stages"), [(SOFTMAX.forward, 65_536, 1, 3), (SOFTMAX.backward, 50_257, 4, 1)]
)
def test_waiting_for_other_programs_uses_no_barriers_and_no_shared_memory(
    kernel: RowKernel, cols: int, warps: int, stages: int
) -> None:
    """The waiting function's shared memory would overlap with pipelined tiles, and its warps leave loops one by one."""
    call = make_call(kernel, (4096, cols), 1)
    config = KernelConfig(
        "cooperative", 1, 8192, warps, stages, programs_per_row=-(-cols // 8192), peel=not call.problem.aligned
    )
    functions = re.findall(
        r"^\.func\s+(?:\([^)]*\)\s*)?(\S+)\(.*?^{(.*?)^}", ptx(call, config), re.DOTALL | re.MULTILINE
    )
    assert len(functions) == 1, "only the waiting function is not inlined"
    name, body = functions[0]
    assert "_collect_row" in name
    assert "ld.volatile" in body
    assert ".shared" not in body
    assert "bar.sync" not in body
