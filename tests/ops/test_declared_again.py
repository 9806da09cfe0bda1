"""An op that is declared again, as in a notebook: the newest declaration counts everywhere. Its name finds it."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from conformance_helpers import INTERPRETER
from tridal.errors import PluginError

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")

_numbers = itertools.count()
MODULE = """
import triton

import tridal
from tridal import ops


@triton.jit
def times(x):
    return x * {factor}


@triton.jit
def gradient(dy):
    return dy * {factor}


try:
    KERNELS  # a cell of a notebook that is not run again
except NameError:
    KERNELS = (
        ops.RowKernel("{name}", __name__, ("x",), (), ("times",)),
        ops.RowKernel("{name}_backward", __name__, ("dy",), (), ("gradient",)),
    )

OP = ops.Op(
    "{name}", (ops.per_element("input"), {arguments}), KERNELS, lambda x, reduce, **_: x * {factor},
    gradient=lambda dy, reduce, **_: dy * {factor}, saves=(), constants=lambda named: {{}},
)
function = tridal.row_function(OP)
"""
X = torch.arange(6.0).view(2, 3)
Declare = Callable[..., ModuleType]


@pytest.fixture
def name() -> str:
    return f"declared_again_{next(_numbers)}"


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Declare]:
    """Returns declare(factor, arguments), which runs a module again with another text."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def run(factor: float, arguments: str = "", module: str = f"module_of_{name}") -> ModuleType:
        (tmp_path / f"{module}.py").write_text(MODULE.format(name=name, factor=factor, arguments=arguments))
        importlib.invalidate_caches()
        return importlib.reload(sys.modules[module]) if module in sys.modules else importlib.import_module(module)

    with tridal.use(device="interpreter", fallback="error"):
        yield run


WAYS: dict[str, Callable[[Any, str], Any]] = {
    "a known call": lambda function, name: (function(X), function(X))[1],
    "registered": lambda function, name: getattr(torch.ops.tridal, name)(X, -1, X.dtype),
    "compiled": lambda function, name: torch.compile(function, fullgraph=True, backend="aot_eager")(X),
    "linearised": lambda function, name: torch.func.jvp(function, (X,), (X,))[1],
    "backward": lambda function, name: torch.func.grad(lambda x: function(x).sum())(X) * X,
    "without kernels": lambda function, name: tridal.use(device="auto", fallback="torch")(function)(X),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_newest_declaration_computes_every_call(declare: Declare, name: str, way: str) -> None:
    """The third one has other arguments, and so another overload of the registered op."""
    for factor, arguments in ((2.0, ""), (3.0, ""), (4.0, 'ops.number("unused", True)'), (2.0, "")):
        if not arguments or way != "registered":
            assert_close(WAYS[way](declare(factor, arguments).function, name), factor * X)


def test_the_function_of_a_former_declaration_is_an_error(declare: Declare, name: str) -> None:
    former = declare(2.0).function
    compiled = torch.compile(former, backend="aot_eager")
    assert_close((former(X), compiled(X)), (2 * X, 2 * X))
    result = former(x := X.clone().requires_grad_())
    assert_close(declare(3.0).function(X), 3 * X)
    for function in (former, compiled, torch.func.vmap(former)):
        with pytest.raises(Exception, match=f"op '{name}' was declared again: use the function of its newest"):
            function(X)
    with pytest.raises(PluginError, match="was declared again"):
        torch.autograd.grad(result.sum(), x, create_graph=True)


def test_a_graph_of_a_former_declaration_with_other_arguments_is_an_error(declare: Declare, name: str) -> None:
    function = declare(2.0).function

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    graph = torch.export.export(Module(), (X,)).module()
    declare(3.0)
    assert_close(graph(X), 3 * X)
    declare(4.0, 'ops.number("unused", True)')
    with pytest.raises(PluginError, match=f"op '{name}' was declared again with other arguments"):
        graph(X)


def test_another_module_cannot_declare_an_op_with_the_name(declare: Declare, name: str) -> None:
    declare(2.0)
    with pytest.raises(PluginError, match=f"its name is taken: registered in code by module_of_{name} has an op"):
        declare(3.0, module=f"other_module_of_{name}")
    assert_close(sys.modules[f"module_of_{name}"].function(X), 2 * X)
