"""Tests qk_norm_rotary: launches, strides, dtypes, gradients of some tensors only, and pairs of calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from pairwise import covering_rows
from rotary_reference import LENGTH, B, angles, heads_of, rotated
from tridal import testing
from tridal.devices.types import Backend
from tridal.pytorch.path import run_source
from tridal.testing.implementation import overridden

Tensor = torch.Tensor
PLANS, FORMS = ("whole_row", "whole_row+peel", "column_loop"), ("contiguous", "projected", "sliced", "heads last")
TYPES = ((32, torch.float32), (6, torch.bfloat16), (34, torch.float64))
COMBINATIONS: Any = covering_rows(
    {
        "plan": PLANS, "form": FORMS, "batch": ((), (1,), (B,)), "type": TYPES, "interleaved": (False, True),
        "half": (False, True), "offset": (0.0, 1.0), "weighted": (True, False),
    },
    lambda row: True,
)  # fmt: skip


def expected(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, interleaved: bool, heads: int = 1) -> Tensor:
    """The norm in torch's ops, then the rotation of transformers. The weight includes its offset."""
    n = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    n = n if weight is None else n * weight
    cos, sin = (factor if factor.dim() == 3 else factor.unsqueeze(0) for factor in (cos, sin))
    return rotated(n, cos, sin, x.shape[-1], "interleaved" if interleaved else "halves", heads)


def no_copy(*_: Any) -> None:
    """Replaces the functions that copy an input of a kernel."""
    raise AssertionError("a kernel reads a copy of an input")


@pytest.mark.parametrize("case", COMBINATIONS, ids=lambda case: "-".join(map(str, case.values())))
def test_each_tensor_and_each_gradient_take_one_launch_without_a_copy(
    device: torch.device, backend: Backend, monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    plan, form, batch, (dim, dtype), interleaved, half, offset, weighted = case.values()
    for name in ("contiguous_copy", "copy_to"):
        if not interleaved and dim > 6:  # weights of even elements are copied, and heads as small as the other sizes
            monkeypatch.setattr(run_source, name, no_copy)
    query, key = (heads_of(form, heads, dim, dtype, device).requires_grad_() for heads in (3, 2))
    weights = [torch.randn(dim, device=device, dtype=dtype).requires_grad_() if weighted else None for _ in range(2)]
    cos, sin = angles((*batch, LENGTH, dim // (1 + half)), dtype, device)
    heads = 2 if form == "heads last" else 1
    leaves = [query, key, *(weight for weight in weights if weight is not None)]
    with (
        overridden(backend, "overridden", testing.PLAN_OVERRIDES[plan]) as name,
        tridal.use(device=name, fallback="error"),
        tridal.record_calls() as calls,
    ):
        found = tridal.qk_norm_rotary(
            query, key, *weights, cos, sin, 1e-5, weight_offset=offset, unsqueeze_dim=heads,  # type: ignore[arg-type, call-overload]
            interleaved=interleaved,
        )  # fmt: skip
        grads = [torch.randn_like(y) for y in found]
        gradients = torch.autograd.grad(found, leaves, grads)
    launches = ["qk_norm_rotary"] * 2 + ["qk_norm_rotary_backward"] * 2
    assert [(call.op, call.reason) for call in calls] == [(name, None) for name in launches]
    of_weights = [None if weight is None else weight.double() + offset for weight in weights]
    pairs = zip((query.double(), key.double()), of_weights, strict=True)
    wide = [expected(x, weight, cos.double(), sin.double(), interleaved, heads) for x, weight in pairs]
    wanted = torch.autograd.grad(wide, leaves, [grad.double() for grad in grads])
    tolerance = 1e-1 if dtype is torch.bfloat16 else 1e-4  # the interpreter truncates
    assert_close((*found, *gradients), tuple(t.to(dtype) for t in (*wide, *wanted)), rtol=tolerance, atol=tolerance)
    assert [y.stride() for y in found] == [torch.empty_like(x).stride() for x in (query, key)]


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (3,), (0, 3), (1, 2, 3)])
def test_only_the_gradients_that_are_needed_are_computed(device: torch.device, needed: tuple[int, ...]) -> None:
    """Of query, key and their weights: calls with other ones have other kernels."""
    cos, sin = angles((LENGTH, 8), torch.float32, device)
    tensors = [heads_of("projected", 2, 8, torch.float32, device) for _ in range(2)]
    tensors += [torch.randn(8, device=device) for _ in range(2)]
    for number in needed:
        tensors[number].requires_grad_()
    leaves = [tensors[number] for number in needed]
    for results in (slice(2), slice(1), slice(1, 2)):
        found = tridal.qk_norm_rotary(*tensors, cos, sin, 1e-5)[results]
        exact = [expected(x, weight, cos, sin, False) for x, weight in zip(tensors[:2], tensors[2:], strict=True)]
        if not any(y.requires_grad for y in exact[results]):
            continue
        given = [
            torch.autograd.grad([y.sin().sum() for y in ys if y.requires_grad], leaves, allow_unused=True)
            for ys in (found, exact[results])
        ]
        for actual, wanted in zip(*given, strict=True):
            if wanted is None:
                assert actual is None or not actual.any()
            else:
                assert_close(actual, wanted)


def test_dtypes_are_those_of_query_and_key(device: torch.device) -> None:
    """cos and weights may be float32. The results and the gradients are rounded once."""
    query = heads_of("projected", 2, 8, torch.bfloat16, device).requires_grad_()
    key, weight = heads_of("projected", 1, 8, torch.float32, device), torch.randn(8, device=device).requires_grad_()
    cos, sin = angles((1, LENGTH, 8), torch.float32, device)
    found = tridal.qk_norm_rotary(query, key, weight, weight, cos, sin, 1e-5)
    assert [y.dtype for y in found] == [torch.bfloat16, torch.float32]
    exact = [expected(x.float(), weight, cos, sin, False) for x in (query, key)]
    assert_close(found, (exact[0].bfloat16(), exact[1]), rtol=1e-2, atol=1e-2)
    given = [torch.autograd.grad([y.float().sin().sum() for y in ys], (query, weight)) for ys in (found, exact)]
    assert [gradient.dtype for gradient in given[0]] == [torch.bfloat16, torch.float32]
    assert_close(*given, rtol=2e-2, atol=2e-2)


def test_rounds_once_where_modules_of_models_round_each_operation() -> None:
    """On a device without a backend, where torch computes both."""
    query = heads_of("projected", 64, 64, torch.bfloat16, torch.device("cpu"))
    weight, (cos, sin) = torch.rand(64).bfloat16() + 0.5, angles((1, LENGTH, 64), torch.bfloat16, query.device)
    with tridal.use(device="auto"):
        once = tridal.qk_norm_rotary(query, None, weight, None, cos, sin, 1e-5)
        norm = tridal.rms_norm(query, (64,), weight, 1e-5, casting="llama")
        each = tridal.rotary_embedding(norm, None, cos, sin, casting="transformers")
    exact = expected(query.double(), weight.double(), cos.double(), sin.double(), False)
    assert (once == exact.bfloat16()).double().mean() > 0.999
    assert (each != once).double().mean() > 0.1
    assert_close(each, once, rtol=4e-2, atol=4e-2)


def test_cos_that_requires_a_gradient_gets_one(device: torch.device) -> None:
    query, weight = heads_of("projected", 2, 8, torch.float32, device), torch.randn(8, device=device)
    given = [factor.requires_grad_() for factor in angles((1, LENGTH, 8), torch.float32, device)]
    found = tridal.qk_norm_rotary(query, None, weight, None, *given, 1e-5)
    wanted = expected(query, weight, *given, False)
    assert_close(*(torch.autograd.grad(y.sin().sum(), given) for y in (found, wanted)))


def test_tensors_without_a_batch_and_gradients_that_are_expanded(device: torch.device) -> None:
    query, weight = torch.randn(LENGTH, 3, 8, device=device, requires_grad=True), torch.randn(8, device=device)
    cos, sin = angles((LENGTH, 8), torch.float32, device)
    found = tridal.qk_norm_rotary(query, None, weight, None, cos, sin, 1e-5, unsqueeze_dim=1)
    wanted = expected(query.transpose(0, 1)[None], weight, cos, sin, False)[0].transpose(0, 1)
    assert_close(found, wanted)
    assert_close(*(torch.autograd.grad(y.sum(), query) for y in (found, wanted)))  # the gradient of a sum is expanded
