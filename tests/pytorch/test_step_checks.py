"""Faults in the steps of an op: each is an error that names the op, when the steps are recorded or run."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tridal
from conformance_helpers import INTERPRETER
from tridal import ops
from tridal.errors import PluginError

triton = pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")
Tensor = torch.Tensor
X = torch.arange(12.0).view(3, 4)
_numbers = itertools.count()


@triton.jit
def square(x):  # type: ignore[no-untyped-def]
    return x * x


@triton.jit
def scaled(x, factor, MODE: triton.language.constexpr):  # type: ignore[no-untyped-def]
    return x * factor if MODE == "times" else x


ENERGY = ops.RowKernel(
    "energy", __name__, ("x",), (ops.Statistic("energy", "sum", term="square"),), (), row_writes=("energy",)
)
SCALE = ops.RowKernel(
    "scale", __name__, ("x",), (), ("scaled",), parameters=("factor",), constants=(("MODE", "times"),)
)


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    with tridal.use(device="interpreter", fallback="error"):
        yield


def declared(steps: Any, role: str = "row", **fields: Any) -> tuple[str, Callable[..., Any]]:
    """Returns the name and the function of a new op."""
    name = f"with_steps_{next(_numbers)}"
    numbers = (ops.number("reduction", "sum", range=("sum", "mean")),) if fields else ()
    op = ops.Op(
        name=name,
        arguments=(ops.per_element("input"), *numbers),
        results=(ops.Result("output", role, gradient="dy"),),  # type: ignore[arg-type]
        kernels=(ENERGY, SCALE),
        reference=lambda x, reduce, reduction="sum": reduce(x * x, "sum") if role == "row" else x * 2.0,
        steps=steps,
        **fields,
    )
    return name, tridal.row_function(op)


def energy(call: Any, named: Any, *more: Any, **options: Any) -> Any:
    return call.kernel(ENERGY, named["input"], *more, **{"dim": named["dim"], **options})


def scale(call: Any, named: Any, *inputs: Any, **options: Any) -> Any:
    return call.kernel(SCALE, *(inputs or [named["input"]]), **options)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (functools.partial(energy, dim=2), r"'energy': expected dim from -2 to 1 for 'x' of shape \(3, 4\), found 2"),
        (functools.partial(energy, writes=("enrgy",)), "it has no output 'enrgy' .known: energy."),
        (lambda call, named: energy(call, named, X), r"expected 1 input\(s\) \(x\), found 2"),
        (functools.partial(scale, MODE="times"), "expected a number 'factor', one of its parameters"),
        (lambda call, named: (call.torch(Tensor.double, *energy(call, named)),),
         "returned as 'output' torch.float64 .*: expected torch.float32"),
        (lambda call, named: (call.view(Tensor.select, named["input"], 1, 0),), "with the memory of an argument: copy"),
        (lambda call, named: energy(call, {**named, "input": named["input"] * 2}), "that no step returned: compute it"),
        (lambda call, named: energy(call, named, dim=int(named["input"].max())), "the value of a tensor is read"),
        (lambda call, named: energy(call, named) if torch.equal(X, named["input"]) else None, r"is read \(equal\)"),
        (lambda call, named: named["reduction"], "has no argument 'reduction': a call has input, dim, dtype$"),
    ],
)  # fmt: skip
def test_a_fault_of_steps_is_an_error_that_names_the_op(steps: Any, message: str) -> None:
    name, function = declared(steps)
    for _ in range(2):
        with pytest.raises(PluginError, match=f"op '{name}': .*{message}|op '{name}' {message}"):
            function(X)


def test_steps_that_are_not_prepared_may_read_values_but_not_exit() -> None:
    _, function = declared(lambda call, named: (named["input"].square().sum(-1),), prepares=False)
    for x in (X, X + 1):
        torch.testing.assert_close(function(x), x.square().sum(-1))
    name, function = declared(lambda call, named: exit(3), prepares=False)
    with pytest.raises(PluginError, match=f"op '{name}': steps raised SystemExit: 3"):
        function(X)


def test_a_number_that_the_gradient_does_not_get_is_named() -> None:
    name, function = declared(
        energy, gradient=lambda dy, x, reduce: 2 * x * dy, saves=("input",),
        gradient_steps=lambda call, named: named["reduction"],
    )  # fmt: skip
    result = function(X.clone().requires_grad_())
    message = f"op '{name}_backward' has no argument 'reduction': a call has dy, input, dim, dtype; `gradient_numbers`"
    with pytest.raises(PluginError, match=message):
        result.sum().backward()
