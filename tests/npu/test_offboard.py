"""The harness itself: what it finds in IR, and what it refuses as a board would."""

from __future__ import annotations

import ctypes

import pytest
import torch
import triton
import triton.language as tl

from offboard import board, device, lint, native
from tridal.runtime import launch
from tridal_npu import backend

from .matrix import OPTIONS, Case, properties

CASE = Case("softmax", ("float32", "float32"), "row", 24, 40, "padded")


@pytest.fixture(scope="module")
def linalg() -> str:
    return launch.compile_variant(CASE.variant(), properties().target).asm["ttadapter"]


def test_what_triton_ascend_makes_is_in_order(linalg):
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
        (", 1] :", ", 2] :", "at a stride"),
        ("memref.reinterpret_cast", "memref.cast", "no tile of memory"),
    ],
)
def test_lint_finds(linalg, old, new, problem):
    assert old in linalg
    assert any(problem in found for found in lint.problems(linalg.replace(old, new), contiguous=True))


def test_lint_finds_a_tile_of_int64_compared(linalg):
    compared = "      %c = arith.cmpi slt, %a, %b : tensor<4x32xi64>\n"
    [problem] = lint.problems(linalg.replace("    return\n", compared + "    return\n"), contiguous=True)
    assert "int64" in problem


def test_a_stride_is_no_problem_where_nothing_is_contiguous(linalg):
    assert lint.problems(linalg.replace(", 1] :", ", 2] :"), contiguous=False) == []


def test_machine_code_is_found_again_and_goes_by_the_ir(linalg, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "_cache", tmp_path)
    monkeypatch.setattr(native, "_kernels", {})
    first = native.kernel(linalg)
    kept = list(tmp_path.glob("*.so"))
    assert len(kept) == 1
    monkeypatch.setattr(native, "_kernels", {})
    monkeypatch.setattr(native, "_compile", None)
    again = native.kernel(linalg)
    assert (again.name, again.parameters) == (first.name, first.parameters)
    with pytest.raises(TypeError):
        native.kernel(linalg + "\n// another")  # nothing is kept for it, and it can't be compiled now


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("module {\n}", "one function, found 0"),
        ("module {\n func.func @f(%arg0: i32) attributes {} { return }\n}", "not called as triton-ascend 3.2 calls"),
        ("builtin.module {}", "one module without attributes"),
    ],
)
def test_what_is_no_kernel_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        native.kernel(text)


def test_a_broken_kernel_says_which_tool_failed(linalg):
    with pytest.raises(RuntimeError, match=r"mlir-opt failed: .*error"):
        native.kernel(linalg.replace("math.exp", "math.no_such"))


def test_a_tool_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("LLVM_BIN", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    native.find_tool.cache_clear()
    with pytest.raises(FileNotFoundError, match=r"llc of LLVM 19 .* install mlir-19-tools and llvm-19"):
        native.find_tool("llc")
    native.find_tool.cache_clear()


def test_arguments_are_checked(linalg):
    kernel = native.kernel(linalg)
    with pytest.raises(TypeError, match=f"{kernel.name} takes {len(kernel.parameters)} arguments, got 1"):
        kernel((1, 1, 1), [0])
    with pytest.raises(OverflowError, match="4294967296 does not fit i32"):
        kernel((1, 1, 1), [0 if kind.startswith("memref") else 1 << 32 for kind in kernel.parameters])


def test_tiles_start_as_nan():
    runtime = native._runtime()
    allocate = runtime._mlir_memref_to_llvm_alloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    runtime.begin_program()
    tile = (ctypes.c_float * 7).from_address(allocate(28))
    assert all(value != value for value in tile)


def launched():
    prepared = launch.prepare(CASE.call(), backend, properties(), OPTIONS)
    shape, strides, _ = CASE.shape_strides_dim
    tensors = torch.empty(shape), torch.randn(4000).as_strided(shape, strides)
    return lambda stream: prepared.launch(stream, *tensors)


def test_a_stream_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match="does not belong to npu:0"):
        launched()(device.current_stream(1).npu_stream)


def test_a_kernel_that_was_loaded_elsewhere_is_refused():
    run = launched()
    with device.use_device(1), pytest.raises(RuntimeError, match="loaded on npu:0 and is launched on npu:1"):
        run(device.current_stream(1).npu_stream)


def test_too_many_programs_are_refused():
    launcher = board.Launcher(None, None)
    launched()
    with pytest.raises(RuntimeError, match="65536 programs"):
        launcher(65_536, 1, 1, device.current_stream(0).npu_stream, 0, {}, None, None, None)


def test_tensors_of_two_devices_do_not_mix():
    with pytest.raises(RuntimeError, match="expected all tensors on npu:0"):
        torch.ones(2, device="npu:0") + torch.ones(2, device="npu:1")
    with pytest.raises(RuntimeError, match="found cpu"):
        torch.ones(2, device="npu:0") + torch.ones(2)


@triton.jit
def exponential(out_ptr, in_ptr, size, BLOCK: tl.constexpr):
    for start in tl.range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        index = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + index, tl.exp(tl.load(in_ptr + index, mask=index < size)), mask=index < size)


def test_anybody_s_kernel_goes_through_triton_ascend_s_own_jit():
    x = torch.randn(1000, device="npu")
    out = torch.empty_like(x)
    exponential[(5,)](out, x, 1000, BLOCK=64)
    assert torch.allclose(out.cpu(), x.cpu().exp())
    assert board.launches[-1].kernel == "exponential"
    assert board.launches[-1].programs == 5
    with pytest.raises(RuntimeError, match="grid should be less than 65536"):
        exponential[(65_536,)](out, x, 1000, BLOCK=64)
