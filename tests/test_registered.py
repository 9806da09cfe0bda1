"""Registered ops: which function computes a call, its gradient and its derivatives of higher order."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import tridal
from tridal.ops.arguments import Result, number, whole
from tridal.ops.op import Op
from tridal.pytorch.path.calls import call
from tridal.pytorch.path.registered import define, has_tangent
from tridal.pytorch.path.rules import DEFINED, Rules, overload

CALLS: list[str] = []
"""The functions that computed results, in order."""


def reference(x: torch.Tensor, weight: torch.Tensor | None, wants_mean: bool) -> tuple[torch.Tensor | None, ...]:
    """x * mean(x) * weight, and the mean of each row."""
    mean = x.mean(-1, keepdim=True)
    y = x * mean if weight is None else x * mean * weight
    return y, mean.squeeze(-1) if wants_mean else None


def gradient(
    dy: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor | None, mask: list[bool]
) -> tuple[torch.Tensor | None, ...]:
    assert dy is not None
    mean = x.mean(-1, keepdim=True)
    dyw = dy if weight is None else dy * weight
    dx = dyw * mean + (dyw * x).mean(-1, keepdim=True)
    return dx if mask[0] else None, (dy * x * mean).flatten(0, -2).sum(0) if mask[1] else None


def _rules() -> Rules:
    op = Op(
        name="scaled_mean",
        kernels=(),
        arguments=(
            whole("x", differentiable=True), whole("weight", optional=True, differentiable=True),
            number("wants_mean", type="bool"),
        ),
        results=(Result("y", "whole", gradient="dy"), Result("mean", "whole", optional=True)),
        saves=("x", "weight"),
        reference=reference,
        gradient=gradient,
        of_rows=False,
    )  # fmt: skip

    def compute(*arguments: Any) -> tuple[torch.Tensor | None, ...]:
        CALLS.append("forward")
        return reference(*arguments)

    def backward(*arguments: Any) -> tuple[torch.Tensor | None, ...]:
        CALLS.append(f"backward {arguments[-1]}")
        return gradient(*arguments)

    return Rules(
        op=op,
        compute=compute,
        fake=lambda x, weight, wants: (torch.empty_like(x), x.new_empty(x.shape[:-1]) if wants else None),
        save=op.save,
        backward=backward,
        fake_backward=lambda dy, x, w, mask: (
            torch.empty_like(x) if mask[0] else None, torch.empty_like(w) if mask[1] else None,
        ),
        by_torch=reference,
        backward_by_torch=gradient,
    )  # fmt: skip


RULES = DEFINED.get("scaled_mean") or _rules()
if "scaled_mean" not in DEFINED:
    define(RULES)


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    CALLS.clear()
    with tridal.use(device="interpreter"):
        yield


def function(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    y = call(RULES, (x, weight, True))[0]
    assert y is not None
    return y


def by_torch(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    return x * x.mean(-1, keepdim=True) * (1 if weight is None else weight)


def tensors(dtype: torch.dtype = torch.float32, **grads: bool) -> list[torch.Tensor]:
    shapes = {"x": (3, 5), "weight": (5,)}
    return [torch.randn(shape, dtype=dtype, requires_grad=grads.get(name, True)) for name, shape in shapes.items()]


@pytest.mark.parametrize(("x_grad", "weight_grad"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("compiled", [False, True])
def test_only_the_requested_gradients_are_computed(x_grad: bool, weight_grad: bool, compiled: bool) -> None:
    x, weight = tensors(x=x_grad, weight=weight_grad)
    torch._dynamo.reset()
    run = torch.compile(function, fullgraph=True, backend="aot_eager") if compiled else function
    run(x, weight).square().sum().backward()
    assert ["forward", f"backward {[x_grad, weight_grad]}"] == CALLS
    found = x.grad, weight.grad
    x.grad = weight.grad = None
    by_torch(x, weight).square().sum().backward()
    for mine, theirs in zip(found, (x.grad, weight.grad), strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs)


def test_without_a_gradient_the_kernel_runs_directly() -> None:
    x, weight = tensors(x=False, weight=False)
    assert function(x, weight).grad_fn is None
    with torch.no_grad():
        assert function(x.requires_grad_(), weight).grad_fn is None
    assert CALLS == ["forward", "forward"]


def test_an_absent_result_is_none_and_the_registered_op_returns_an_empty_tensor() -> None:
    x, weight = tensors()
    assert call(RULES, (x, weight, False))[1] is None
    assert overload("scaled_mean")(x, weight, False)[1].shape == (0,)
    assert call(RULES, (x, None, True))[1].shape == (3,)  # type: ignore[union-attr]


def test_second_derivatives_use_torch() -> None:
    x, weight = tensors(torch.float64)
    assert torch.autograd.gradcheck(function, (x, weight))
    assert torch.autograd.gradgradcheck(function, (x, weight))


def test_the_statistics_have_no_gradient() -> None:
    x, weight = tensors()
    y, mean = call(RULES, (x, weight, True))
    assert y is not None
    assert mean is not None
    assert (y.requires_grad, mean.requires_grad) == (True, False)


def test_transforms_and_forward_mode_equal_torch() -> None:
    x, weight = (tensor.detach() for tensor in tensors(torch.float64))
    batch = torch.randn(4, 3, 5, dtype=torch.float64)
    for mine, theirs in (
        (torch.func.vmap(function, (0, None)), torch.func.vmap(by_torch, (0, None))),
        (torch.func.vmap(torch.func.grad(lambda x, w: function(x, w).sum()), (0, None)),
         torch.func.vmap(torch.func.grad(lambda x, w: by_torch(x, w).sum()), (0, None))),
        (torch.compile(torch.func.vmap(function, (0, None)), backend="aot_eager"),
         torch.func.vmap(by_torch, (0, None))),
        (torch.func.vmap(lambda x, w: overload("scaled_mean")(x, w, True)[0], (0, None)),
         torch.func.vmap(by_torch, (0, None))),
    ):  # fmt: skip
        torch.testing.assert_close(mine(batch, weight), theirs(batch, weight))
    mine, theirs = (torch.func.jvp(lambda x, f=f: f(x, weight), (x,), (x.cos(),)) for f in (function, by_torch))
    torch.testing.assert_close(mine, theirs)
    with torch.autograd.forward_ad.dual_level():
        assert has_tangent(function(torch.autograd.forward_ad.make_dual(x, x.cos()), weight))


def test_the_registered_op_passes_opcheck() -> None:
    x, weight = tensors()
    torch.library.opcheck(overload("scaled_mean"), (x, weight, True))
    torch.library.opcheck(overload("scaled_mean"), (x.detach(), None, False))


def test_the_backward_uses_the_settings_of_the_forward() -> None:
    x, weight = tensors()
    seen = []

    def backward(*arguments: Any) -> tuple[torch.Tensor | None, ...]:
        seen.append(tridal.settings.current().device)
        return gradient(*arguments)

    rules = replace(RULES, backward=backward)
    with tridal.use(device="interpreter", batch_invariant=True):
        y = call(rules, (x, weight, True))[0]
    assert y is not None
    with tridal.use(device="cpu"):
        y.sum().backward()
    assert seen == ["interpreter"]


def test_batched_gradients_equal_a_loop() -> None:
    x, weight = tensors()
    y = function(x, weight)
    grads = torch.randn(4, *y.shape)
    (batched,) = torch.autograd.grad(y, x, grads, is_grads_batched=True, retain_graph=True)
    looped = torch.stack([torch.autograd.grad(y, x, grad, retain_graph=True)[0] for grad in grads])
    torch.testing.assert_close(batched, looped)


def test_vmap_of_the_registered_op_accepts_lists_and_an_empty_batch() -> None:
    x, weight = (tensor.detach() for tensor in tensors())
    grads = torch.randn(2, 3, 5)
    backward = overload("scaled_mean_backward")
    found = torch.func.vmap(lambda dy: backward(dy, x, weight, [True, True]))(grads)
    for index, dy in enumerate(grads):
        torch.testing.assert_close([each[index] for each in found], list(gradient(dy, x, weight, [True, True])))
    empty = torch.func.vmap(lambda dy: backward(dy, x, weight, [True, True]))(grads[:0])
    assert [each.shape for each in empty] == [(0, 3, 5), (0, 5)]


def test_inference_mode_records_nothing_even_if_gradients_are_enabled_inside() -> None:
    _, weight = tensors()
    with torch.inference_mode(), torch.enable_grad():
        x = torch.randn(3, 5)
        assert not function(x, weight).requires_grad
        assert not overload("scaled_mean")(x, weight, True)[0].requires_grad
    assert CALLS == ["forward", "forward"]


def test_a_compiled_call_finds_the_properties_of_the_declaration_computed() -> None:
    """torch.compile cannot trace the lock that computes them in Python 3.11."""
    for declaration in (RULES.op, RULES.op.signature, RULES.op.gradient_signature):
        members = vars(type(declaration)).items()
        names = {name for name, value in members if isinstance(value, functools.cached_property)}
        assert names
        assert names <= vars(declaration).keys()
