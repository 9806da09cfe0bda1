"""Small models of transformers with random weights, a training step, and what the tests of kernelize compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing import assert_close

import tridal

transformers: Any = __import__("pytest").importorskip("transformers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32, "vocab_size": 97}
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
HEADS = {"num_key_value_heads": 2, "head_dim": 8}
ODD = {"hidden_size": 36, "head_dim": 8}
"""A width that is no multiple of 16. tridal computes norms of such a width in compiled functions, too."""


def build(name: str, **sizes: Any) -> Any:
    """Returns a model in training mode, with the same weights in every call. Weights of norms are random, too."""
    torch.manual_seed(0)
    model = MODELS[name](**sizes)
    with torch.no_grad():
        for module in model.modules():
            if "Norm" in type(module).__name__:
                for parameter in module.parameters():
                    parameter.add_(torch.randn_like(parameter) / 4)
    return model.train()


def _causal_lm(name: str, **defaults: Any) -> Callable[..., Any]:
    def make(**sizes: Any) -> Any:
        config = getattr(transformers, f"{name}Config")(**{**SMALL, **TOKENS, **defaults, **sizes})
        return transformers.AutoModelForCausalLM.from_config(config)

    return make


def _gpt2(**sizes: Any) -> Any:
    no_dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    given = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64, "vocab_size": 97, **no_dropout, **TOKENS}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**given, **sizes}))


def _bert(**sizes: Any) -> Any:
    no_dropout = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    return transformers.BertForMaskedLM(transformers.BertConfig(**{**SMALL, **no_dropout, **sizes}))


def _t5(**sizes: Any) -> Any:
    given = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 97, "dropout_rate": 0}
    smooth = {"feed_forward_proj": "gated-gelu"}  # a rounding may change the gradient of a relu from 0 to 1
    config = transformers.T5Config(**{**given, **smooth, "decoder_start_token_id": 0, **sizes})
    return transformers.T5ForConditionalGeneration(config)


LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2,
}  # fmt: skip
MODELS: dict[str, Callable[..., Any]] = {
    "Llama": _causal_lm("Llama", num_key_value_heads=2),
    "Qwen3": _causal_lm("Qwen3", **HEADS),
    "Gemma": _causal_lm("Gemma", **HEADS),
    "Gemma2": _causal_lm("Gemma2", **HEADS),
    "Phi3": _causal_lm("Phi3", num_key_value_heads=2),
    "GPT2": _gpt2,
    "Bert": _bert,
    "T5": _t5,
    "Cohere": _causal_lm("Cohere", num_key_value_heads=2),
    "Granite": _causal_lm("Granite", num_key_value_heads=2),
    "Qwen3Next": _causal_lm(
        "Qwen3Next",
        **HEADS,
        **LINEAR,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "Mamba2": _causal_lm(
        "Mamba2", num_heads=4, head_dim=16, state_size=8, n_groups=2, expand=2, chunk_size=8, num_attention_heads=4
    ),
    "Mixtral": _causal_lm("Mixtral", num_key_value_heads=2, num_local_experts=2, output_router_logits=True),
}


def batch(device: torch.device) -> dict[str, torch.Tensor]:
    """Returns tokens, and labels with ignored positions."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 97, (2, 9), generator=generator, device="cpu").to(device)
    labels = tokens.clone()
    labels[0, :4] = -100
    return {"input_ids": tokens, "labels": labels}


def step(model: Any, call: Any = None, **kwargs: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """Returns the outputs and the gradients of a training step. `call` is the function that computes the model."""
    model.zero_grad(set_to_none=True)
    device = next(model.parameters()).device
    outputs = (model if call is None else call)(**batch(device), **kwargs)
    outputs.loss.backward()
    return outputs, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same_step(got: Any, expected: Any, dtype: torch.dtype = torch.float32) -> None:
    """Compares outputs and gradients of two training steps, within the roundings of a dtype."""
    relative = {torch.float32: 1e-4, torch.bfloat16: 4e-2}[dtype]
    (outputs, gradients), (expected_outputs, expected_gradients) = got, expected
    assert outputs.loss.dtype is expected_outputs.loss.dtype
    rounding = 2 * torch.finfo(outputs.loss.dtype).eps
    assert_close(outputs.loss, expected_outputs.loss, rtol=max(relative / 20, rounding), atol=0)
    if outputs.logits is not None:
        difference = (outputs.logits - expected_outputs.logits).abs().max() / expected_outputs.logits.abs().max()
        assert difference < relative
    assert gradients.keys() == expected_gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected_gradients.values())
    for name, expected_gradient in expected_gradients.items():
        scale = max(float(expected_gradient.abs().max()), 1e-2 * largest)  # the gradient of a key's bias is zero
        error = float((gradients[name] - expected_gradient).abs().max()) / scale
        assert error < 2 * relative, f"{name}: {error}"


def ops_of(call: Callable[[], Any]) -> set[str]:
    """Returns the names of the ops that a backend computes during a call, without reductions of losses."""
    with tridal.record_calls() as calls:
        call()
    return {record.op for record in calls if record.backend != "torch"} - {"cross_entropy_reduce"}


def check_step(model: Any, expected: Any, ops: set[str], dtype: torch.dtype = torch.float32, call: Any = None) -> Any:
    """Checks a training step: which ops a backend computes, and the outputs and gradients. Returns the outputs."""
    got: list[Any] = []
    assert ops_of(lambda: got.append(step(model, call))) == ops
    assert_same_step(got[0], expected, dtype)
    return got[0][0]
