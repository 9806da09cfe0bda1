"""The harness that runs kernels without an NPU: findings of its lint, its cache, launches that its driver rejects."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from offboard import device, driver, lint, native
from tridal.ops import planning
from tridal.runtime import launch
from tridal.runtime.compiler import compile_kernel
from tridal_npu import backend

CALL = planning.matrix_call(40, 24)
OPTIONS = {"num_programs": 32}


@pytest.fixture(scope="module")
def linalg() -> str:
    plan = launch.plan(CALL, backend, backend.properties(0), OPTIONS)
    return compile_kernel(CALL.specialize(plan.config), backend.properties(0).target).asm["ttadapter"]


def test_lint_finds_no_problem_in_the_output_of_triton_ascend(linalg):
    assert lint.problems(linalg, contiguous=True) == []
    assert lint.operations(linalg)["memref.copy"] == 1


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("math.exp", "tt.exp", "tt.exp was not lowered"),
        ("math.exp", "llvm.inline_asm", "inline assembly"),
        ("math.exp", "hfusion.gather", "hfusion.gather is of a dialect"),
        ("math.exp", "linalg.generic", "linalg.generic handles one element at a time"),
        ("memref.copy", "memref.load", "memref.load handles one element at a time"),
        ("tensor<1x32xf32>", "tensor<1x32xf64>", "float64"),
        (": f32", ": f64", "float64"),
        (", 1] :", ", 2] :", "with a stride"),
        ("memref.reinterpret_cast", "memref.cast", "no tile of memory"),
    ],
)
def test_lint_finds_the_problem(linalg, old, new, problem):
    assert old in linalg
    assert any(problem in found for found in lint.problems(linalg.replace(old, new), contiguous=True))


def test_lint_knows_int64_tiles_insertions_and_strides(linalg):
    def problems(line):
        return lint.problems(linalg.replace("    return\n", f"      {line}\n    return\n"), contiguous=True)

    (problem,) = problems("%c = arith.cmpi slt, %a, %b : tensor<4x32xi64>")
    assert "int64" in problem
    assert problems("%c = tensor.insert %a into %b[%d] : tensor<1xf32>") == []
    assert problems("%c = tensor.insert %a into %b[%d] : tensor<1x4xf32>") == [
        "tensor.insert handles one element at a time"
    ]
    assert lint.problems(linalg.replace(", 1] :", ", 2] :"), contiguous=False) == []


def test_a_wrong_number_of_arguments_and_a_too_large_integer_are_rejected(linalg):
    kernel = native.kernel(linalg)
    with pytest.raises(TypeError, match=f"{kernel.name} takes {len(kernel.parameters)} arguments, got 1"):
        kernel((1, 1, 1), [0])
    with pytest.raises(OverflowError, match="4294967296 does not fit i32"):
        kernel((1, 1, 1), [0 if kind.startswith("memref") else 1 << 32 for kind in kernel.parameters])


def prepared_launch():
    """Returns f(stream), which launches a kernel that is loaded on the current device."""
    prepared = launch.prepare(CALL, backend, backend.properties(0), OPTIONS)
    tensors = torch.empty(40, 24), torch.randn(40, 24)
    return lambda stream: prepared.launch(stream, 40, *tensors)


def test_the_driver_rejects_what_an_npu_would_reject():
    run, launcher = prepared_launch(), driver.Launcher(None, None)
    with pytest.raises(RuntimeError, match="does not belong to npu:0"):
        run(device.current_stream(1).npu_stream)
    with device.use_device(1), pytest.raises(RuntimeError, match="loaded on npu:0, but is launched on npu:1"):
        run(device.current_stream(1).npu_stream)
    with pytest.raises(RuntimeError, match="65536 programs"):
        launcher(65_536, 1, 1, device.current_stream(0).npu_stream, 0, {}, None, None, None)


def test_an_operation_on_tensors_of_two_devices_is_rejected():
    with pytest.raises(RuntimeError, match="expected all tensors on npu:0"):
        torch.ones(2, device="npu:0") + torch.ones(2, device="npu:1")
    with pytest.raises(RuntimeError, match="found cpu"):
        torch.ones(2, device="npu:0") + torch.ones(2)


@triton.jit
def exponential(out_ptr, in_ptr, size, BLOCK: tl.constexpr):
    for start in tl.range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        index = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + index, tl.exp(tl.load(in_ptr + index, mask=index < size)), mask=index < size)


def test_any_kernel_can_be_launched_with_triton_ascend_s_jit():
    x = torch.randn(1000, device="npu")
    out = torch.empty_like(x)
    exponential[(5,)](out, x, 1000, BLOCK=64)
    assert torch.allclose(out.cpu(), x.cpu().exp())
    assert driver.launches[-1].kernel == "exponential"
    assert driver.launches[-1].programs == 5
    with pytest.raises(RuntimeError, match="grid should be less than 65536"):
        exponential[(65_536,)](out, x, 1000, BLOCK=64)
