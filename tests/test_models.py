"""Transformer models with random weights, which run unchanged under `override_torch`."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from tridal.pytorch import prepared

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 97}


def llama() -> Any:
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, attn_implementation="eager")
    return transformers.LlamaForCausalLM(config)


def gpt2() -> Any:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=97, n_positions=64, attn_implementation="eager",
        attn_pdrop=0, embd_pdrop=0, resid_pdrop=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert() -> Any:
    config = transformers.BertConfig(
        **SMALL, attn_implementation="eager", attention_probs_dropout_prob=0, hidden_dropout_prob=0
    )
    return transformers.BertForMaskedLM(config)


@pytest.mark.parametrize("make", [llama, gpt2, bert])
def test_outputs_and_gradients_are_the_same_under_override(
    device: torch.device, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = make().to(device)
    tokens = torch.randint(0, 97, (2, 11), device=device)
    padding = torch.ones_like(tokens)
    padding[1, 8:] = 0

    def step() -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        model.zero_grad()
        result = model(input_ids=tokens, attention_mask=padding, labels=tokens)
        result.loss.backward()
        return result.logits, result.loss, {name: p.grad.clone() for name, p in model.named_parameters()}

    expected = step()
    calls: list[str] = []
    forward, backward = prepared.forward, prepared.backward
    monkeypatch.setattr(
        prepared, "forward", lambda context, x, op, *a: calls.append(op.name) or forward(context, x, op, *a)
    )
    monkeypatch.setattr(
        prepared, "backward", lambda context, call, *a: calls.append(call.kernel.name) or backward(context, call, *a)
    )
    with tridal.override_torch():
        got = step()
    assert {op: calls.count(op) for op in sorted(set(calls))} == {
        "log_softmax": 1, "log_softmax_backward": 1, "softmax": 2, "softmax_backward": 2,
    }  # fmt: skip
    assert_close(got, expected, rtol=1e-4, atol=1e-5)


def mixtral() -> Any:
    config = transformers.MixtralConfig(**SMALL, num_key_value_heads=4, num_local_experts=4, attn_implementation="sdpa")
    return transformers.MixtralForCausalLM(config)


def llama_with_sdpa() -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, num_key_value_heads=4, attn_implementation="sdpa")
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [(llama_with_sdpa, {"log_softmax": 1}), (mixtral, {"softmax": 2, "log_softmax": 1})],
    ids=["llama", "mixtral"],
)
def test_override_reaches_routers_and_losses_but_no_fused_attention(
    device: torch.device, make: Callable[[], Any], expected: dict[str, int]
) -> None:
    model = make().to(device)
    tokens = torch.randint(0, 97, (2, 11), device=device)
    with tridal.override_torch(), tridal.record_calls() as calls:
        model(input_ids=tokens, labels=tokens)
    assert collections.Counter(call.op for call in calls) == expected
    assert {call.backend for call in calls} != {"torch"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, {}), ({"do_sample": True}, {"softmax": 2}), ({"num_beams": 2}, {"log_softmax": 2})],
    ids=["greedy", "sampling", "beams"],
)
def test_override_reaches_sampling_and_beam_search(
    device: torch.device, options: dict[str, Any], expected: dict[str, int]
) -> None:
    model = llama_with_sdpa().to(device).eval()
    tokens = torch.randint(0, 97, (1, 4), device=device)
    with tridal.override_torch(), tridal.record_calls() as calls:
        model.generate(tokens, max_new_tokens=2, pad_token_id=0, eos_token_id=96, **options)
    assert collections.Counter(call.op for call in calls) == expected
