"""The conformance suite of norms and losses: torch's functions pass its cases, and a call with a fault fails."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tridal
from conformance_helpers import INTERPRETER, Function, failures, is_found
from tridal.testing import Case, cases

Tensor = torch.Tensor
Fault = Callable[[dict[str, Any]], Any]
NORMS, LOSSES = ("rms_norm", "layer_norm"), ("cross_entropy", "linear_cross_entropy")
POSITIONAL = {"cross_entropy": ("input", "target"), "linear_cross_entropy": ("input", "linear_weight", "target")}


class Changed(torch.autograd.Function):
    """The identity, whose gradient a function changes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.change(grad).to(grad.dtype), None


def function_of(name: str, fault: Fault = lambda given: None) -> Function:
    """An op in torch's ops. The fault changes an argument. With the name `result`, it changes the results."""

    def function(*tensors: Tensor, **numbers: Any) -> Any:
        given = dict(zip(POSITIONAL.get(name, ("input",)), tensors, strict=True)) | numbers | {"result": None}
        fault(given)
        change = given.pop("result") or (lambda *results: results)
        with tridal.use(device="auto"):
            found: Any = getattr(tridal, name)(**given)
        results = change(*(found if isinstance(found, tuple) else (found,)))
        return results if isinstance(found, tuple) else results[0]

    return function


def changed(name: str, change: Callable[[Any], Any]) -> Fault:
    """A fault of an argument that is present."""
    return lambda given: given.update({name: change(given[name])} if given.get(name) is not None else {})


def of_gradient(name: str, change: Callable[[Tensor], Tensor]) -> Fault:
    return changed(name, lambda tensor: Changed.apply(tensor, change))


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype)


def of_result(change: Callable[..., tuple[Tensor, ...]]) -> Fault:
    return lambda given: given.update(result=change)


FAULTS: dict[str, tuple[tuple[str, ...], Fault]] = {
    "zeros": (NORMS + LOSSES, of_result(lambda y, *rest: (0 * y, *rest))),
    "rounded input": (NORMS + LOSSES, changed("input", rounded)),
    "rounded gradient": (NORMS + LOSSES, of_gradient("input", rounded)),
    "weight is dropped": (NORMS + LOSSES, changed("weight", lambda weight: None)),
    "next weight": (NORMS + LOSSES, changed("weight", lambda weight: weight.roll(1))),
    "rounded gradient of the weight": (NORMS, of_gradient("weight", rounded)),
    "residual is dropped": (NORMS, changed("residual", torch.zeros_like)),
    "gradient of the residual": (NORMS, of_gradient("residual", lambda grad: 1.001 * grad)),
    "the sum has no gradient": (NORMS, of_result(lambda y, *total: (y, *(0 * t + t.detach() for t in total)))),
    "wrong eps": (NORMS, changed("eps", lambda eps: eps + 1e-5)),
    "eps is dropped": (NORMS, changed("eps", lambda eps: 0.0)),
    "loss": (LOSSES, of_result(lambda loss, *rest: (loss * (1 + 1e-5), *rest))),
    "lse": (LOSSES[:1], of_result(lambda loss, *lse: (loss, *(x * (1 + 1e-5) for x in lse)))),
    "another target": (LOSSES, changed("target", lambda target: target.roll(1))),
    "label_smoothing": (LOSSES, changed("label_smoothing", lambda part: 0.99 * part)),
    "z_loss": (LOSSES, changed("z_loss", lambda z_loss: 0.99 * z_loss)),
    "softcap": (LOSSES, changed("softcap", lambda softcap: None)),
    "gradient of the matrix": (LOSSES[1:], of_gradient("linear_weight", lambda grad: 1.001 * grad)),
    "bias": (LOSSES[1:], changed("linear_bias", lambda bias: bias.roll(1))),
}


@functools.cache
def small(name: str) -> list[Case]:
    """Cases that torch computes exactly enough, without large inputs."""
    found = [case for case in cases(INTERPRETER, [name]) if case.plan == "planned" and case.direction != "double"]
    inexact = "some", "row", "shifted"  # with the latter, torch's gradient of layer_norm is outside of the bounds
    found = [case for case in found if case.dtype == "float32" and not case.values.startswith(inexact)]
    return [case for case in found if math.prod(case.shape) < 20_000 and not case.dtypes]


@pytest.mark.parametrize("name", NORMS + LOSSES)
def test_correct_functions_pass(name: str) -> None:
    chosen = small(name)
    assert {"forward", "backward"} == {case.direction for case in chosen}
    assert failures(function_of(name), chosen[:: len(chosen) // 12]) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    names, change = FAULTS[fault]
    for name in names:
        chosen = [case for case in small(name) if case.direction == "backward" or "gradient" not in fault]
        with_number = [case for case in chosen if dict(case.numbers).get("return_lse" if fault == "lse" else fault)]
        chosen = with_number or chosen
        assert is_found(function_of(name, change), chosen), name
