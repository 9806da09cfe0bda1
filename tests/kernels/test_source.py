"""The printed source of a kernel: it runs alone, and is the text that is compiled."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import tridal
from call_helpers import SM_90, kernel_call
from op_sources import make_kernel
from tridal.devices.lock import LOCK
from tridal.devices.types import KernelConfig
from tridal.ops import planning, table
from tridal.runtime import compiler
from tridal.runtime.interpreter_mode import interpreted, interpreting
from tridal.runtime.specialization import KernelCall, Specialization

triton = pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
NORMALIZED_PTX = runpy.run_path(str(ROOT / "scripts" / "dump_kernels.py"))["normalized_ptx"]
ONE_TILE = [
    ({"rows": 64, "cols": 60}, KernelConfig("whole_row", 4, 64, num_warps=1, exp2_bias=0.0)),
    ({"rows": 64, "cols": 61}, KernelConfig("whole_row", 1, 64, 1, peel=True, exp2_bias=-5.5e-8, persistent=False)),
    ({"rows": 64, "cols": 60, "dim": 0}, KernelConfig("whole_row", 16, 64, num_warps=1, num_stages=2)),
    ({"rows": 64, "cols": 256}, KernelConfig("whole_row", 1, 256, 1, exp2_bias=0.0, reload=True)),
    ({"rows": 64, "cols": 1000}, KernelConfig("column_loop", 1, 256, 1, exp2_bias=0.0, lanes=32)),
    ({"rows": 64, "cols": 100, "dim": 0}, KernelConfig("column_loop", 16, 32, 1)),
]
COOPERATIVE = KernelConfig("cooperative", 1, 64, 1, programs_per_row=4, peel=True)
DTYPES = ("float32", "bfloat16", "float16")


def call_of(kernel: str, number: int, question: dict[str, int], dtype: str | None = None) -> KernelCall:
    return planning.matrix_call(op=kernel, dtype=dtype or DTYPES[number % 3], **question)


def printed(s: Specialization, folder: Path) -> Any:
    """Returns the kernel in the printed source, which imports Triton only."""
    file = folder / f"printed_{len([*folder.iterdir()])}.py"
    file.write_text(compiler.source(s))
    assert not re.search(r"^\s*(import|from) tridal", file.read_text(), re.MULTILINE)
    return runpy.run_path(str(file))[s.entry]


def test_a_printed_cooperative_kernel_compiles_to_the_code_of_the_launched_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter does not run it."""
    s = planning.matrix_call(64, 250, "float16", "softmax").specialize(COOPERATIVE)
    launched = compiler.compile_kernel(s, SM_90).asm["ptx"]
    kernel = printed(s, tmp_path)
    monkeypatch.setattr(compiler, "entry", lambda *_: kernel)
    assert NORMALIZED_PTX(compiler.compile_kernel.__wrapped__(s, SM_90).asm["ptx"]) == NORMALIZED_PTX(launched)


def arguments_of(call: KernelCall, config: KernelConfig) -> dict[str, Any]:
    """The arguments of a kernel: large tensors of random numbers, and the numbers of the call."""
    generator, cols = torch.Generator().manual_seed(0), call.problem.cols
    size = 4 * call.layout.rows * cols
    tensors = {
        name: torch.randint(0, cols, (size,), generator=generator)
        if dtype == "int64"
        else torch.rand(size, generator=generator).to(getattr(torch, dtype))
        for name, dtype in zip(call.kernel.pointers, call.dtypes, strict=True)
    }
    types = dict(call.specialize(config).types)
    return {name: value for name, value in (call.scalars(config) | tensors).items() if name in types}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_printed_kernels_give_the_results_of_the_launched_ones(tmp_path: Path) -> None:
    """All kernels, but cooperative ones cannot run in the interpreter."""
    pytest.importorskip("numpy")
    for number, kernel in enumerate(table.kernels()):
        whole_rows = table.kernel_named(kernel).whole_rows
        question, config = ONE_TILE[number % 2 * 2 if whole_rows else number % len(ONE_TILE)]
        call = call_of(kernel, number, {**question, "rows": 8}, "float32")
        s, results = call.specialize(config), []
        for function in (compiler.entry(s, interpret=True), interpreted(printed(s, tmp_path))):
            arguments = arguments_of(call, config)
            with LOCK, interpreting(triton):
                function[(call.tiles(config),)](**arguments)
            results.append(arguments)
        torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)
        before = arguments_of(call, config)
        assert any(isinstance(v, torch.Tensor) and not v.equal(before[n]) for n, v in results[0].items()), kernel


@pytest.mark.parametrize("arch", ["ascend910b", "sm_90"])
def test_page_shows_the_printed_kernel(arch: str) -> None:
    page = (ROOT / "docs" / "printed-kernel.md").read_text()
    assert f"$ tridal plan 1823 781 --arch {arch} --source\n" in page
    assert f"```py\n{tridal.plan(1823, 781, arch=arch).source}```\n" in page


def test_two_functions_of_one_name_get_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The op's `exp` is another function than that of `tridal.kernels.numerics`, which it calls, too."""
    head = "from tridal.kernels.numerics import exp as exact, finite"
    functions = {"exp": "def exp(x):\n    return exact(x, None)", "norm": "def norm(squares, eps):\n    return squares"}
    square = "def square(x):\n    return exp(x) * finite(1.0 * x)"
    kernel = make_kernel(tmp_path, monkeypatch, head, square=square, **functions)
    s = kernel_call((8, 60), kernel=kernel, parameters=(1e-3,)).specialize(KernelConfig("whole_row", 4, 64))
    text = compiler.source(s)
    names = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert len(names) == len(set(names))
    assert {"exp", "exp_"} <= set(names)
    assert "return exp_(x, None)" in text


def test_source_of_a_third_partys_op_has_its_imports_and_global_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "import math\nfrom triton.language import sqrt as root\nfrom triton.language.extra import libdevice\n"
    head += "HALF = tl.constexpr(0.5)"
    norm = "def norm(squares, eps):\n    return libdevice.abs(root(squares) * HALF * math.pi) + eps"
    call = kernel_call(kernel=make_kernel(tmp_path, monkeypatch, head, norm=norm), parameters=(1e-3,))
    s = call.specialize(KernelConfig("whole_row", 4, 1024))
    text = compiler.source(s)
    assert "import triton.language.extra.libdevice as libdevice" in text.splitlines()
    assert "import sqrt as root" in text
    assert "HALF = tl.constexpr(0.5)" in text
    assert "return libdevice.abs(root(squares) * HALF * math.pi) + eps" in text
    assert "abs" in compiler.compile_kernel(s, SM_90).asm["ptx"]


# -- the setting `dump`


@pytest.mark.usefixtures("no_settings")
def test_dump_writes_each_kernel_of_a_run_once(tmp_path: Path) -> None:
    x = torch.randn(3, 70, requires_grad=True)
    with tridal.use(device="interpreter", dump=str(tmp_path / "new" / "kernels")):
        for _ in range(2):
            tridal.softmax(x).sum().backward()
    files = {file.name.rpartition("-")[0]: file for file in (tmp_path / "new" / "kernels").iterdir()}
    assert sorted(files) == ["softmax_backward_interpreter", "softmax_interpreter"]
    assert "def whole_row(softmax_result, x_ptr" in files["softmax_interpreter"].read_text()
