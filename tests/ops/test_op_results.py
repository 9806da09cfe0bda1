"""Results of ops: which ones have gradients, which depend on which tensors, and ops without a gradient's kernel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from backend_helpers import FakeBackend
from conformance_helpers import INTERPRETER, registered
from tridal.devices.types import KernelConfig, LaunchPlan
from tridal.errors import PluginError
from tridal.testing.implementation import implementation

pytest.importorskip("triton")
from several_results import ARGMAX, BY_SUM, MINUS_PICKED, ROW_ENERGY, WEIGH

pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")
Tensor = torch.Tensor
weigh, by_sum, row_energy, row_argmax = map(tridal.row_function, (WEIGH, BY_SUM, ROW_ENERGY, ARGMAX))


def expected_weigh(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return x * weight, (x * weight).sum(-1), x.square().sum(-1).detach()


def expected_by_sum(x: Tensor, divides: bool = False) -> Tensor:
    return x * (x.mean(-1, keepdim=True) if divides else x.sum(-1, keepdim=True))


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    torch.manual_seed(0)
    with tridal.use(device="interpreter", fallback="error"):
        yield


def tensors(*needed: bool) -> list[Tensor]:
    return [
        torch.randn(size, dtype=torch.float64, requires_grad=need)
        for size, need in zip(((4, 6), (6,)), needed, strict=True)
    ]


@pytest.mark.parametrize(
    ("how", "needed", "used"),
    [
        ("direct", (True, True), (0, 1)), ("direct", (True, False), (1,)), ("direct", (False, True), (0,)),
        ("registered", (True, True), (1,)), ("registered", (False, True), (0, 1)), ("compiled", (True, True), (0,)),
        ("compiled", (True, False), (0, 1)), ("compiled", (False, True), (1,)),
    ],
)  # fmt: skip
def test_each_result_passes_its_gradient_to_each_tensor(
    how: str, needed: tuple[bool, bool], used: tuple[int, ...]
) -> None:
    """A second call is a known one."""
    torch._dynamo.reset()
    registered = torch.ops.tridal.weigh
    function: Any = {
        "direct": weigh,
        "registered": lambda x, weight: registered(x, weight, -1, x.dtype),
        "compiled": torch.compile(weigh, fullgraph=True, backend="aot_eager"),
    }[how]
    for _ in range(2):
        given = tensors(*needed)
        results, wanted = function(*given), expected_weigh(*given)
        assert_close(results, wanted)
        assert not results[2].requires_grad
        wrt = [tensor for tensor in given if tensor.requires_grad]
        found, exact = (torch.autograd.grad(sum(r[i].sin().sum() for i in used), wrt) for r in (results, wanted))
        assert_close(found, exact)


def test_derivatives_of_several_results() -> None:
    x, weight = tensors(True, True)
    with tridal.record_calls() as calls:
        weigh(x, weight)[1].sum().backward()
    assert [(call.op, call.reason) for call in calls] == [("weigh", None), ("weigh_backward", None)]
    assert torch.autograd.gradcheck(lambda *t: weigh(*t)[:2], tensors(True, True), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda *t: weigh(*t)[:2], tensors(True, True))


@pytest.mark.parametrize("divides", [False, True])
def test_an_op_without_a_gradients_kernel_takes_it_from_the_reference(divides: bool) -> None:
    x, _ = tensors(True, False)
    with tridal.record_calls() as calls:
        assert_close(by_sum(x.detach(), divides=divides), expected_by_sum(x.detach(), divides))
    assert [call.backend for call in calls] == ["interpreter"]
    assert_close(by_sum(x, divides=divides), expected_by_sum(x, divides))
    found, wanted = (torch.autograd.grad(f(x, divides=divides).sin().sum(), x) for f in (by_sum, expected_by_sum))
    assert_close(found, wanted)
    assert torch.autograd.gradcheck(by_sum, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(by_sum, x)
    compiled = torch.compile(lambda x: by_sum(x, divides=divides), fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(compiled(x).sin().sum(), x), wanted)
    assert_close(
        torch.func.vmap(torch.func.grad(lambda x: by_sum(x, divides=divides).sin().sum()))(x.detach()), wanted[0]
    )
    assert not hasattr(torch.ops.tridal, "by_sum_backward")


@pytest.mark.parametrize("compiles", [False, True])
def test_a_result_without_a_gradient_is_computed_by_a_kernel(compiles: bool) -> None:
    torch._dynamo.reset()
    x, _ = tensors(True, False)
    function = torch.compile(row_energy, fullgraph=True, backend="aot_eager") if compiles else row_energy
    for _, dim in itertools.product(range(2), (0, 1)):
        with tridal.record_calls() as calls:
            found = function(x, dim)
        assert not found.requires_grad
        assert_close(found, x.detach().square().sum(dim))
        assert [call.backend for call in calls] == ["interpreter"]


@pytest.mark.parametrize("plan", ["planned", "whole_row+peel", "column_loop", "column_loop+lanes", "single"])
def test_a_term_may_use_the_column_and_a_result_may_be_int64(plan: str) -> None:
    for shape, dim, dtype in (
        ((7, 300), -1, torch.float32),
        ((3, 41, 5), 1, torch.float64),
        ((2, 1), 1, torch.float32),
    ):
        x = torch.randint(-9, 9, shape).to(dtype)
        x.movedim(dim, -1).flatten(0, -2)[0] = -torch.inf
        with implementation(INTERPRETER, plan), tridal.record_calls() as calls:
            found = row_argmax(x, dim)
        assert [call.reason for call in calls] == [None]
        assert found.dtype is torch.int64
        assert torch.equal(found, torch.from_numpy(x.numpy().argmax(dim)))


def test_an_op_that_picks_an_element_does_not_compute_in_the_memory_of_a_copy() -> None:
    """Programs of other columns write the element before it is read there."""
    backend: Any = FakeBackend("divided", device_type="cpu", interpreted=True, count=1)
    backend.schedules, config = frozenset({"cooperative"}), KernelConfig("cooperative", 1, 4, programs_per_row=3)
    backend.plan = lambda problem, *_: LaunchPlan(config, problem.tiles(1) * 3, "three programs compute a row")
    x = torch.randn(6, 4, 6, 12).permute(1, 2, 0, 3)[::2, ::2, ::2]  # no kernel reads these strides
    index = torch.randint(12, x.shape[:-1])
    with registered(backend), tridal.use(device="divided"):
        assert_close(tridal.row_function(MINUS_PICKED)(x, index), x - x.gather(-1, index[..., None]))


def test_a_constant_that_no_kernel_declares_is_an_error() -> None:
    forward = replace(BY_SUM.forward, name="misspelt")
    op = replace(BY_SUM, name="misspelt", kernels=(forward,), constants=lambda named: {"DIVDES": named["divides"]})
    with pytest.raises(PluginError, match="op 'misspelt': constants: its kernel declares no 'DIVDES'"):
        tridal.row_function(op)(torch.ones(2, 3), divides=True)
