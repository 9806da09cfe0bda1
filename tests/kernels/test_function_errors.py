"""Errors of Triton in an op's function name the kernel, the function, its line and Triton's reason."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from call_helpers import SM_90, WHOLE_ROW, kernel_call
from op_sources import make_kernel
from tridal.devices import registry, settings
from tridal.errors import PluginError
from tridal.kernels.op_functions import triton_functions
from tridal.kernels.row_kernel import RowKernel
from tridal.ops import planning
from tridal.runtime import compiler, launch

pytest.importorskip("triton")


def compile_for_sm_90(kernel: RowKernel) -> None:
    """Compiles a kernel without the trial of its functions."""
    call = kernel_call(kernel=kernel, parameters=(1e-3,))
    compiler.compile_kernel(call.specialize(WHOLE_ROW), SM_90)


def line_of(kernel: RowKernel, folder: Path, text: str) -> str:
    """Returns "file:line" of the line with this text."""
    file = folder / f"{kernel.module}.py"
    return f"{file}:{1 + next(i for i, line in enumerate(file.read_text().splitlines()) if text in line)}"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("squares + missing", "NameError: missing is not defined"),
        ("tl.reshape(squares, [3])", "ValueError: "),
        ("(lambda: squares)()", "(unsupported AST node type: Lambda|Lambda)"),
    ],
    ids=["name", "value", "unsupported"],
)
def test_error_of_the_compiler_names_kernel_function_line_source_and_reason(
    body: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = make_kernel(tmp_path, monkeypatch, norm=f"def norm(squares, eps):\n    a = squares\n    return {body}")
    place = f"{line_of(kernel, tmp_path, body)}: 'return {body}': "
    start = re.escape(f"kernel {kernel.name!r}: Triton cannot compile norm, {place}")
    with pytest.raises(PluginError, match=f"^{start}.*{why}"):
        compile_for_sm_90(kernel)


@pytest.mark.parametrize("module", ["no_package.kernels", "tridal.errors.no_module"])
def test_a_module_that_does_not_exist_is_an_error_that_names_it(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = replace(make_kernel(tmp_path, monkeypatch), module=module)
    expected = "expected the module of its Triton functions"
    message = f"kernel {kernel.name!r}: module: {expected}, found {module!r}: there is no module"
    for use in (compile_for_sm_90, triton_functions):
        with pytest.raises(PluginError, match=re.escape(message)) as raised:
            use(kernel)
        assert isinstance(raised.value.__cause__, ModuleNotFoundError)


def test_a_breakpoint_in_a_called_function_is_found_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers = {"inner": "def inner(a):\n    breakpoint()\n    return a", "outer": "def outer(a):\n    return inner(a)"}
    kernel = make_kernel(tmp_path, monkeypatch, square="def square(x):\n    return outer(x)", **helpers)
    monkeypatch.setattr(compiler.import_triton(), "compile", lambda *_, **__: pytest.fail("compiled"))
    start = re.escape(f"{line_of(kernel, tmp_path, 'breakpoint')}: Triton cannot compile breakpoint(): remove it")
    with pytest.raises(PluginError, match=f"^{start}"):
        compile_for_sm_90(kernel)


def test_error_of_the_interpreter_names_kernel_function_line_source_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    helpers = {"inner": "def inner(a):\n    return a.no_such", "outer": "def outer(a):\n    return inner(a)"}
    kernel = make_kernel(tmp_path, monkeypatch, square="def square(x):\n    return outer(x)", **helpers)
    backend, device = planning.target("interpreter")
    options = registry.options(backend, settings.current())
    prepared = launch.prepare(kernel_call((2, 5), kernel=kernel, parameters=(1e-3,)), backend, device, options)

    place = re.escape(f"{line_of(kernel, tmp_path, 'no_such')}: 'return a.no_such': AttributeError: ")
    message = f"^kernel {kernel.name!r}: Triton's interpreter cannot run inner, called by square, {place}"
    with pytest.raises(PluginError, match=message):
        prepared.launch(0, 2, torch.empty(2, 5), torch.ones(2, 5))
