"""Transformer models with random weights, which run unchanged under `override_torch`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from model_helpers import build

LOSS = {"log_softmax": 1, "log_softmax_backward": 1}
ATTENTION = {"softmax": 2, "softmax_backward": 2}


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("GPT2", {"n_layer": 2, "attn_implementation": "eager"}, LOSS | ATTENTION),
        ("Llama", {"attn_implementation": "sdpa"}, LOSS),
        ("Mixtral", {"output_router_logits": False}, LOSS | {"softmax": 1, "softmax_backward": 1}),
    ],
)
def test_override_computes_the_same(device: torch.device, name: str, options: Any, expected: dict[str, int]) -> None:
    """It reaches attention in single operations, routers and losses."""
    model = build(name, **options).to(device)
    tokens = torch.randint(0, 97, (2, 11), device=device)
    padding = torch.ones_like(tokens)
    padding[1, 8:] = 0

    def step() -> Any:
        model.zero_grad()
        result = model(input_ids=tokens, attention_mask=padding, labels=tokens)
        result.loss.backward()
        return result.logits, result.loss, [p.grad.clone() for p in model.parameters()]

    without = step()
    with tridal.override_torch(), tridal.record_calls() as calls:
        found = step()
    assert Counter(call.op for call in calls if "softmax" in call.op and call.backend != "torch") == expected
    assert_close(found, without, rtol=1e-4, atol=1e-5)
