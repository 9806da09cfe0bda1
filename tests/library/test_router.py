"""Tests route_top_k against the formulas of models: scores, groups, ties, special values, limits, wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal

Tensor = torch.Tensor


def mixtral(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    weights, indices = torch.topk(logits.softmax(-1), k)
    return weights / weights.sum(-1, keepdim=True), indices


def granite(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    found, indices = torch.topk(logits, k)
    return found.softmax(-1), indices


def deepseek_v2(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    scores = logits.softmax(-1)
    best = scores.unflatten(-1, (8, -1)).amax(-1).topk(3).indices
    kept = torch.zeros(*logits.shape[:-1], 8, device=logits.device).scatter(-1, best, 1).bool()
    kept = kept.repeat_interleave(logits.shape[-1] // 8, -1)
    weights, indices = scores.masked_fill(~kept, 0.0).topk(k)
    return weights * 16, indices


def deepseek_v3(logits: Tensor, k: int, bias: Tensor) -> tuple[Tensor, Tensor]:
    scores = logits.sigmoid()
    choice = scores + bias
    best = choice.unflatten(-1, (8, -1)).topk(2).values.sum(-1).topk(4).indices
    kept = torch.zeros(*logits.shape[:-1], 8, device=logits.device).scatter(-1, best, 1).bool()
    kept = kept.repeat_interleave(logits.shape[-1] // 8, -1)
    indices = choice.masked_fill(~kept, -torch.inf).topk(k).indices
    weights = scores.gather(-1, indices)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5, indices


def deepseek_v4(logits: Tensor, k: int, bias: Tensor) -> tuple[Tensor, Tensor]:
    scores = functional.softplus(logits).sqrt()
    indices = (scores + bias).topk(k).indices
    weights = scores.gather(-1, indices)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * 1.5, indices


MODELS = {
    "mixtral": (mixtral, {"normalize": True}),
    "granite": (granite, {"normalize": True}),
    "deepseek_v2": (deepseek_v2, {"groups": 8, "top_groups": 3, "scaling_factor": 16.0}),
    "deepseek_v3": (
        deepseek_v3,
        {"score": "sigmoid", "groups": 8, "top_groups": 4, "group_score": "top2", "normalize": True, "eps": 1e-20,
         "scaling_factor": 2.5},
    ),
    "deepseek_v4": (
        deepseek_v4, {"score": "sqrtsoftplus", "normalize": True, "eps": 1e-20, "scaling_factor": 1.5}
    ),
}  # fmt: skip


@pytest.mark.parametrize("experts", [40, 64, 256])
@pytest.mark.parametrize("model", MODELS)
def test_weights_indices_and_gradient_are_those_of_models(device: torch.device, model: str, experts: int) -> None:
    formula, options = MODELS[model]
    logits = torch.randn(3, 7, experts, device=device, requires_grad=True)
    bias = [torch.randn(experts, device=device)] * (model in ("deepseek_v3", "deepseek_v4"))
    for k in (1, 6, 8):  # calls that differ in k only
        with tridal.record_calls() as calls:
            weights, indices = tridal.route_top_k(logits, k, **options, bias=bias[0] if bias else None)
            grad = torch.randn_like(weights)
            (found,) = torch.autograd.grad(weights, logits, grad)
        assert {call.schedule for call in calls} == {"whole_row"}
        wide = logits.detach().double().requires_grad_()
        expected, expected_indices = formula(wide, k, *(b.double() for b in bias))
        assert indices.dtype is torch.int64
        assert torch.equal(indices, expected_indices)
        assert_close(weights.double(), expected, rtol=1e-5, atol=1e-7)
        (exact,) = torch.autograd.grad(expected, wide, grad.double())
        assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrtsoftplus"])
@pytest.mark.parametrize("biased", [False, True])
def test_of_equal_experts_the_first_come_first(device: torch.device, score: Any, biased: bool) -> None:
    logits = torch.zeros(5, 9, device=device)
    logits[1, 4] = -0.0
    logits[2, 7] = logits[2, 3] = 1.0
    logits[3, ::2] = -torch.inf
    logits[4] = 1000.0
    bias = torch.zeros(9, device=device) if biased else None
    for _ in range(2):
        _, indices = tridal.route_top_k(logits, 4, score=score, bias=bias)
        assert indices.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [3, 7, 0, 1], [1, 3, 5, 7], [0, 1, 2, 3]]


def test_each_expert_is_chosen_once_among_infinities_and_nan(device: torch.device) -> None:
    logits = torch.full((4, 5), -torch.inf, device=device)
    logits[1, 3], logits[2, 1], logits[3, 2] = 1.0, torch.nan, torch.inf
    for score in ("softmax", "sigmoid"):
        weights, indices = tridal.route_top_k(logits, 5, score=score)  # type: ignore[arg-type]
        assert indices.tolist() == [[0, 1, 2, 3, 4], [3, 0, 1, 2, 4], [1, 0, 2, 3, 4], [2, 0, 1, 3, 4]]
        expected = logits.softmax(-1) if score == "softmax" else logits.sigmoid()
        assert_close(weights, expected.gather(-1, indices), equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 8), (1, 8), (8,), (2, 0, 8), (1, 1, 8), (4099, 8)])
def test_any_number_of_rows(device: torch.device, shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, device=device, requires_grad=True)
    weights, indices = tridal.route_top_k(logits, 2, normalize=True)
    expected, expected_indices = mixtral(logits, 2)
    assert torch.equal(indices, expected_indices)
    assert_close(weights, expected)
    grad = torch.randn_like(weights)
    assert_close(torch.autograd.grad(weights, logits, grad), torch.autograd.grad(expected, logits, grad))


def test_logits_of_any_strides(device: torch.device) -> None:
    stored = torch.randn(64, 3, 18, device=device)
    for logits in (stored[:40].transpose(0, 2), stored.permute(1, 2, 0), stored[..., 1:], stored[:, 0, ::2]):
        found = tridal.route_top_k(logits, 3, normalize=True)
        expected = mixtral(logits.contiguous(), 3)
        assert torch.equal(found[1], expected[1])
        assert_close(found[0], expected[0])
        assert all(result.is_contiguous() for result in found)


def test_dtype_of_the_weights(device: torch.device) -> None:
    logits = torch.randn(6, 16, device=device).bfloat16().requires_grad_()
    exact = tridal.route_top_k(logits.double(), 4, scaling_factor=3.0)[0]
    for dtype in (None, torch.float32, torch.float16, torch.float64):
        weights, _ = tridal.route_top_k(logits, 4, scaling_factor=3.0, dtype=dtype)
        assert weights.dtype is (dtype or torch.bfloat16)
        assert_close(weights.double(), exact, rtol=2**-7 if dtype is None else 2**-10, atol=1e-6)
        (grad,) = torch.autograd.grad(weights.sum(), logits)
        assert grad.dtype is torch.bfloat16


def test_options_that_differ_do_not_share_a_call(device: torch.device) -> None:
    logits, bias = torch.randn(5, 16, device=device), torch.randn(16, device=device)
    options: list[dict[str, Any]] = [
        {}, {"normalize": True}, {"score": "sigmoid"}, {"bias": bias}, {"groups": 4}, {"groups": 4, "top_groups": 2},
        {"groups": 4, "top_groups": 2, "group_score": "top2"}, {"scaling_factor": 2.0}, {"normalize": True, "eps": 0.5},
    ]  # fmt: skip
    for given in (*options, *options):
        wide = {**given, "bias": bias.double()} if "bias" in given else given
        found, exact = tridal.route_top_k(logits, 3, **given), tridal.route_top_k(logits.double(), 3, **wide)
        assert torch.equal(found[1], exact[1])
        assert_close(found[0].double(), exact[0], rtol=1e-5, atol=1e-6)


def test_many_experts_are_chosen_by_torch(device: torch.device) -> None:
    for experts, k in ((4097, 2), (64, 33)):
        logits = torch.randn(2, experts, device=device)
        with tridal.record_calls() as calls:
            weights, indices = tridal.route_top_k(logits, k, normalize=True)
        assert [(call.backend, call.reason) for call in calls] == [
            ("torch", "kernels choose at most 32 of 4096 experts")
        ]
        expected, expected_indices = mixtral(logits, k)
        assert torch.equal(indices, expected_indices)
        assert_close(weights, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be from 1 to 8, the experts, got 0"),
        ({"k": 9}, "k must be from 1 to 8, the experts, got 9"),
        ({"k": 2.0}, "k must be from 1 to 8, the experts, got 2.0"),
        ({"k": 5, "groups": 2}, "k must be from 1 to 4, the experts of the chosen groups, got 5"),
        ({"groups": 3}, "groups must be a divisor of 8, the experts, got 3"),
        ({"groups": 2, "top_groups": 3}, "top_groups must be from 1 to 2, the groups, got 3"),
        ({"groups": 8, "group_score": "top2"}, "group_score must be 'max' for groups of one expert, got 'top2'"),
        ({"group_score": "sum"}, "group_score must be 'max' or 'top2', got 'sum'"),
        ({"score": "tanh"}, "score must be 'softmax', 'sigmoid' or 'sqrtsoftplus', got 'tanh'"),
        ({"normalize": 1}, "normalize must be a bool, got 1"),
        ({"eps": -1.0}, "eps must be at least 0, got -1.0"),
        ({"bias": torch.ones(4)}, r"bias must have the shape \(8,\)"),
        ({"logits": torch.ones(4, 8).long()}, "logits must have a floating-point dtype, got torch.int64"),
        ({"logits": torch.tensor(1.0)}, "logits must have a dim of experts, got a tensor without dims"),
        ({"dtype": torch.int32}, "dtype must be a floating-point torch.dtype or None, got torch.int32"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    given = {"logits": torch.ones(4, 8), "k": 2, **arguments}
    with pytest.raises((TypeError, ValueError), match=f"route_top_k: {message}"):
        tridal.route_top_k(**given)
