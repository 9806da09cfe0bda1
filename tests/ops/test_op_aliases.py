"""Results of an op have new memory, also if its reference or its gradient returns an argument or a view of one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from conformance_helpers import INTERPRETER
from tridal import ops

triton = pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")
Tensor = torch.Tensor


@triton.jit
def same(x):  # type: ignore[no-untyped-def]
    return x + 0.0


def declare(name: str, reference: Callable[..., Any], *results: ops.Result, **fields: Any) -> Callable[..., Any]:
    kernel = ops.RowKernel(
        name, __name__, ("x",), (ops.Statistic("first", "sum", term="x"),) * (len(results) > 1), ("same",),
        row_writes=("first",) * (len(results) > 1),
    )  # fmt: skip
    return tridal.row_function(
        ops.Op(name, (ops.per_element("input"),), (kernel,), reference, results=results or ops.Op.results, **fields)
    )


ROW = (ops.Result("output", "element", gradient="dy"), ops.Result("first", "row"))
FUNCTIONS = {
    "input": declare("same_input", lambda x, reduce: x.transpose(0, 1).transpose(0, 1)),
    "torch's function": declare(
        "same_torch", lambda x, reduce: x * 1, torch_function=lambda x, dim, dtype=None: x.to(dtype or x.dtype)
    ),
    "row": declare("same_row", lambda x, reduce: (x * 1, x.narrow(reduce.dim, 0, 1)), *ROW),
}
WAYS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "called": lambda f: f,
    "compiled": lambda f: torch.compile(f, fullgraph=True, backend="aot_eager"),
    "batched": torch.func.vmap,
    "registered": lambda f: lambda x: getattr(torch.ops.tridal, f.__name__)(x, -1, x.dtype),
}


@pytest.mark.parametrize(("function", "device"), [*itertools.product(FUNCTIONS, ("interpreter", "auto"))])
@pytest.mark.parametrize("way", WAYS)
def test_a_result_may_be_changed_in_place(function: str, way: str, device: str) -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    with tridal.use(device=device, fallback="torch"):
        results = WAYS[way](FUNCTIONS[function])(x)
        for result in results if isinstance(results, tuple) else (results,):
            result.add_(1)
    assert_close(x, torch.arange(24.0).view(2, 3, 4))


def test_a_gradient_has_new_memory() -> None:
    kernels = [ops.RowKernel(f"same_gradient{suffix}", __name__, ("x",), (), ("same",)) for suffix in ("", "_backward")]
    same_gradient = tridal.row_function(
        ops.Op(
            "same_gradient", (ops.per_element("input"),), tuple(kernels), lambda x, reduce: x * 1,
            gradient=lambda dy, reduce: dy, saves=(),
        )
    )  # fmt: skip
    x, dy = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)
    with tridal.use(device="interpreter", fallback="error"):
        for grad in (dy, dy.t().contiguous().t(), dy.clone().requires_grad_()):
            (found,) = torch.autograd.grad(same_gradient(x), x, grad, create_graph=grad.requires_grad)
            found.detach().add_(1)
    torch.ops.tridal.same_gradient_backward(dy, -1, dy.dtype).add_(1)
    assert_close(dy, torch.ones(2, 3))
