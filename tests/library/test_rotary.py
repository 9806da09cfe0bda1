"""Tests rotary_embedding: strides, shapes of cos and sin, gradients, and the roundings of `casting`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from pairwise import covering_rows
from rotary_reference import LENGTH, B, angles, heads_of, of_transformers, rotated
from tridal import testing
from tridal.devices.types import Backend
from tridal.testing.implementation import overridden

Tensor = torch.Tensor
HEADS = 3
PLANS, FORMS = ("whole_row", "whole_row+peel", "column_loop"), ("contiguous", "projected", "sliced", "heads last")
BATCHES, TYPES = ((), (1,), (B,)), ((32, torch.float32), (6, torch.bfloat16), (34, torch.float64))
PAIRS = ("halves", "interleaved", "to halves")
SIZES = ("all", "part", "a number per pair")
COMBINATIONS: Any = covering_rows(
    {"plan": PLANS, "form": FORMS, "batch": BATCHES, "type": TYPES, "pairs": PAIRS, "size": SIZES}, lambda row: True
)


@pytest.mark.parametrize("case", COMBINATIONS, ids=lambda case: "-".join(map(str, case.values())))
def test_strided_tensors_and_their_gradients_are_computed_by_one_kernel_each(
    device: torch.device, backend: Backend, case: dict[str, Any]
) -> None:
    plan, form, batch, (dim, dtype), pairs, size = case.values()
    given = {"all": None, "part": None, "a number per pair": dim - 2}[size]
    width = {"all": dim, "part": dim - 2, "a number per pair": dim // 2 - 1}[size]
    query, key = (heads_of(form, heads, dim, dtype, device).requires_grad_() for heads in (HEADS, 2))
    cos, sin = angles((*batch, LENGTH, width), dtype, device)
    heads = 2 if form == "heads last" else 1
    override = testing.PLAN_OVERRIDES[plan]
    with (
        overridden(backend, "overridden", override) as name,
        tridal.use(device=name, fallback="error"),
        tridal.record_calls() as calls,
    ):
        found = tridal.rotary_embedding(
            query, key, cos, sin, unsqueeze_dim=heads, rotary_dim=given,  # type: ignore[arg-type]
            interleaved=pairs != "halves", to_halves=pairs == "to halves",
        )  # fmt: skip
        grads = [torch.randn_like(y) for y in found]
        gradients = torch.autograd.grad(found, (query, key), grads)
    rest = ["rotary_embedding_rest"] * (size != "all")
    launches = [*2 * ["rotary_embedding", *rest], *2 * ["rotary_embedding_backward", *rest]]
    assert [(call.op, call.reason) for call in calls] == [(name, None) for name in launches]
    wide = [tensor.double() for tensor in (query, key, cos, sin)]
    factors = [tensor if batch else tensor.unsqueeze(0) for tensor in wide[2:]]
    expected = [rotated(x, *factors, width if given is None else given, pairs, heads) for x in wide[:2]]
    wanted = torch.autograd.grad(expected, (query, key), [grad.double() for grad in grads])
    assert_close((*found, *gradients), tuple(t.to(dtype) for t in (*expected, *wanted)))
    assert [y.stride() for y in found] == [torch.empty_like(x).stride() for x in (query, key)]


@pytest.mark.parametrize("heads", [0, 1])
def test_tensors_without_a_batch_and_without_a_key(device: torch.device, heads: int) -> None:
    """Vision models have tensors [length, heads, dim]. Three dims equal four, of which the first has one element."""
    query = torch.randn((LENGTH, 3, 8) if heads else (3, LENGTH, 8), device=device, requires_grad=True)
    cos, sin = angles((LENGTH, 8), torch.float32, device)
    found = tridal.rotary_embedding(query, None, cos, sin, unsqueeze_dim=heads)  # type: ignore[call-overload]
    expected, _ = tridal.rotary_embedding(query[None], query[None], cos, sin, unsqueeze_dim=heads + 1)  # type: ignore[call-overload]
    assert_close(found, expected[0])
    assert_close(*(torch.autograd.grad(y.sin().sum(), query) for y in (found, expected)))


@pytest.mark.parametrize("casting", [None, "transformers"])
def test_results_keep_the_dtypes_of_query_and_key(device: torch.device, casting: Any) -> None:
    query = heads_of("projected", 2, 8, torch.bfloat16, device).requires_grad_()
    key = heads_of("projected", 2, 8, torch.float32, device)
    cos, sin = angles((1, LENGTH, 8), torch.float32, device)
    wide = tridal.rotary_embedding(query, key, cos, sin, casting=casting)
    kept = tridal.rotary_embedding(query, key, cos, sin, casting=casting, keep_dtype=True)
    assert [y.dtype for y in (*wide, *kept)] == [torch.float32, torch.float32, torch.bfloat16, torch.float32]
    assert_close(kept, (wide[0].bfloat16(), wide[1]), rtol=1e-2, atol=1e-2)  # the interpreter truncates
    gradients = [torch.autograd.grad(y.float().sum(), query)[0] for y in (wide[0], kept[0])]
    assert_close(*gradients, rtol=1e-2, atol=1e-2)


def test_cos_that_requires_a_gradient_gets_one(device: torch.device) -> None:
    query = heads_of("projected", 2, 8, torch.float32, device)
    cos, sin = angles((1, LENGTH, 8), torch.float32, device)
    given = cos.requires_grad_(), sin.requires_grad_()
    found, expected = (f(query, query, cos, sin) for f in (tridal.rotary_embedding, of_transformers))
    assert_close(*(torch.autograd.grad([y.sum() for y in results], given) for results in (found, expected)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_casting_rounds_as_the_operations_of_torch(dtype: torch.dtype) -> None:
    """On a device without a backend, where torch computes both."""
    query = heads_of("projected", 64, 64, dtype, torch.device("cpu"))
    cos, sin = angles((1, LENGTH, 64), dtype, query.device)
    with tridal.use(device="auto"):
        rounded, once = (
            tridal.rotary_embedding(query, query, cos, sin, casting=casting)[0]
            for casting in ("transformers", None)  # type: ignore[arg-type]
        )
    assert torch.equal(rounded, of_transformers(query, query, cos, sin)[0])
    exact = of_transformers(*(tensor.double() for tensor in (query, query, cos, sin)))[0].to(dtype)
    assert (once == exact).double().mean() > 0.999
    assert (rounded != once).double().mean() > 0.1
