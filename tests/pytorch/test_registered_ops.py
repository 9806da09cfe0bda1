"""The registered ops: torch's own checks of them, and what modes, tracers and tensor subclasses see."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from torch.testing._internal.two_tensor import TwoTensor

import tridal
from op_samples import EACH, EACH_OP, KINDS, OPS, SKIP_NORM, Sample, gradients, loss_of, registered_calls

CHECKS = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@EACH_OP
@pytest.mark.parametrize("served", [True, False])
def test_opcheck(device: torch.device, sample: Sample, served: bool, request: pytest.FixtureRequest) -> None:
    """With each set of gradients that autograd may need. By day, only `KINDS` are compiled."""
    every = request.config.getoption("--matrix") or (served and sample.op.name in KINDS)
    checks = CHECKS if every else CHECKS[:2]
    tensors = sample.leaves(3, 4, 5, dtype=torch.float32, device=device)
    calls = registered_calls(lambda: loss_of(sample.function(**tensors)).backward())
    place = device if served else torch.device("cpu")
    (forward, given), (backward, saved) = (
        (op, tuple(a.to(place) if isinstance(a, torch.Tensor) else a for a in arguments))
        for op, arguments in calls.values()
    )
    saved = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in saved)
    masks = [*itertools.product((True, False), repeat=len(saved[-1]))][:-1] if isinstance(saved[-1], list) else []
    kinds = (*["test_schema"] * (sample.op is not SKIP_NORM), *checks)  # it reads no default before another argument
    with tridal.use(device=None if served else "auto"):
        torch.library.opcheck(forward, given, test_utils=("test_schema", *checks))
        torch.library.opcheck(backward, saved, test_utils=kinds)
        for mask in masks if served else ():
            torch.library.opcheck(backward, (*saved[:-1], list(mask)), test_utils="test_faketensor")


@pytest.mark.parametrize(("kind", "requires_grad"), [(torch.bool, True), (torch.float32, False)])
def test_opcheck_with_masks(device: torch.device, kind: torch.dtype, requires_grad: bool) -> None:
    x = torch.randn(2, 3, 4, 5, device=device).transpose(0, 1).requires_grad_(requires_grad)
    mask = (torch.rand(2, 4, 1, device=device) > -1).to(kind)
    dim, causal = (-1, True) if requires_grad else (1, False)
    torch.library.opcheck(torch.ops.tridal.softmax, (x, dim, torch.float32, mask, 0.5, causal, True))
    g = torch.randn(4, 5, device=device, requires_grad=requires_grad)
    torch.library.opcheck(torch.ops.tridal.softmax_backward, (g, g.detach().softmax(-1), -1, torch.float32, 0.5))


@EACH
def test_dispatch_modes_see_the_op_and_the_gradients_that_are_needed(device: torch.device, sample: Sample) -> None:
    for needed in sample.differentiable:
        tensors = {n: t.requires_grad_(n == needed) for n, t in sample.leaves(3, 5, device=device).items()}
        calls = registered_calls(lambda tensors=tensors: loss_of(sample.function(**tensors)).backward())
        assert list(calls) == [sample.op.name, f"{sample.op.name}_backward"]
        groups, arguments = sample.op.gradient_groups, calls[f"{sample.op.name}_backward"][1]
        of_one = {
            "swiglu_of_columns": [True, False],
            "rotary_of_elements": [True, True],
            "rotary_of_a_part": [True, False],
            "qk_norm_of_rows": [needed == "input"] * 2 + [needed != "input"] * 2,
        }
        wanted = of_one.get(getattr(sample.function, "__name__", ""), [needed in names for names in groups])
        assert len(groups) == 1 or arguments[-1] == wanted
        assert_close(tensors[needed].grad, gradients(sample.expected, tensors)[needed])


@pytest.mark.parametrize(
    ("name", "compiled"), [*((name, False) for name in KINDS), ("softmax", True), ("cross_entropy", True)]
)
def test_wrapper_subclasses_see_the_op_and_its_gradient(device: torch.device, name: str, compiled: bool) -> None:
    torch.compiler.reset()
    sample = OPS[name]
    function = torch.compile(sample.ours, fullgraph=True, backend="aot_eager") if compiled else sample.ours
    x = torch.randn(3, 5, dtype=torch.float64, device=device)
    two, plain = TwoTensor(x, x * 2).requires_grad_(), (x * 2).requires_grad_()
    expected = sample.theirs(plain)
    results: list[Any] = []

    def compute() -> None:
        y = function(two)
        results.extend((y, *torch.autograd.grad(y.sin().sum(), two)))

    calls = registered_calls(compute) if not compiled else compute() or {}
    assert [type(result) for result in results] == [TwoTensor] * 2
    assert compiled or {*calls} == {sample.op.name, f"{sample.op.name}_backward"}
    assert_close(results[0].b, expected)
    assert_close(results[1].b, torch.autograd.grad(expected.sin().sum(), plain)[0])
