"""Transformer models with random weights, which run unchanged under `override_torch`."""

from __future__ import annotations

import collections

import pytest
import torch
from torch.testing import assert_close

import tridal
from model_helpers import build


@pytest.mark.parametrize("name", ["GPT2", "Bert"])
def test_outputs_and_gradients_are_the_same_under_override(device: torch.device, name: str) -> None:
    layers = "n_layer" if name == "GPT2" else "num_hidden_layers"
    model = build(name, attn_implementation="eager", **{layers: 2}).to(device)
    tokens = torch.randint(0, 97, (2, 11), device=device)
    padding = torch.ones_like(tokens)
    padding[1, 8:] = 0

    def step() -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        model.zero_grad()
        result = model(input_ids=tokens, attention_mask=padding, labels=tokens)
        result.loss.backward()
        return result.logits, result.loss, {name: p.grad.clone() for name, p in model.named_parameters()}

    expected = step()
    with tridal.override_torch(), tridal.record_calls() as calls:
        got = step()
    assert collections.Counter(call.op for call in calls if "softmax" in call.op) == {
        "log_softmax": 1, "log_softmax_backward": 1, "softmax": 2, "softmax_backward": 2,
    }  # fmt: skip
    assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"), [("Llama", {"log_softmax": 1}), ("Mixtral", {"softmax": 1, "log_softmax": 1})]
)
def test_override_reaches_routers_and_losses_but_no_fused_attention(
    device: torch.device, name: str, expected: dict[str, int]
) -> None:
    model = build(name, attn_implementation="sdpa", num_key_value_heads=4, output_router_logits=False).to(device)
    tokens = torch.randint(0, 97, (2, 11), device=device)
    with tridal.override_torch(), tridal.record_calls() as calls:
        model(input_ids=tokens, labels=tokens)
    assert collections.Counter(call.op for call in calls) == expected
    assert {call.backend for call in calls} != {"torch"}
