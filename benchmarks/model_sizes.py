"""The models that benchmarks/models.py measures: their sizes, and those of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformers


@dataclass(frozen=True)
class Model:
    """A model, and the sizes of a training batch and of decoding."""

    make: Callable[[str], Any]
    """make(attention): a model with random weights."""
    batch: tuple[int, int]
    """Sequences and tokens of a training step."""
    prompt: tuple[int, int] = (8, 128)
    new_tokens: int = 32


def causal_lm(name: str, **sizes: Any) -> Callable[[str], Any]:
    """Returns a function that builds a causal language model of transformers with these sizes."""

    def make(attention: str) -> Any:
        config = getattr(transformers, f"{name}Config")(**sizes, attn_implementation=attention)
        return transformers.AutoModelForCausalLM.from_config(config)

    return make


NO_DROPOUT = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
MODELS = {
    "llama": Model(
        causal_lm(
            "Llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
            num_key_value_heads=8, vocab_size=128_256, tie_word_embeddings=True,
        ),
        (4, 2048),
    ),
    "gemma": Model(
        causal_lm(
            "Gemma", hidden_size=2048, intermediate_size=16_384, num_hidden_layers=12, num_attention_heads=8,
            num_key_value_heads=1, head_dim=256, vocab_size=256_000, tie_word_embeddings=True,
        ),
        (2, 2048),
    ),
    "qwen3": Model(
        causal_lm(
            "Qwen3", hidden_size=2048, intermediate_size=6144, num_hidden_layers=14, num_attention_heads=16,
            num_key_value_heads=8, head_dim=128, vocab_size=151_936, tie_word_embeddings=True,
        ),
        (4, 2048),
    ),
    "gemma3": Model(  # Gemma 3 1B
        causal_lm(
            "Gemma3Text", hidden_size=1152, intermediate_size=6912, num_hidden_layers=26, num_attention_heads=4,
            num_key_value_heads=1, head_dim=256, vocab_size=262_144, sliding_window=512, query_pre_attn_scalar=256,
            tie_word_embeddings=True,
        ),
        (4, 2048),
    ),
    "gpt2": Model(
        causal_lm("GPT2", n_embd=1024, n_layer=24, n_head=16, n_positions=2048, vocab_size=50_257, **NO_DROPOUT),
        (8, 1024),
    ),
}  # fmt: skip
SMALL = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 97, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
TINY = {
    "llama": Model(causal_lm("Llama", **SMALL), (1, 16), (1, 4), 4),
    "gemma3": Model(causal_lm("Gemma3Text", **SMALL, head_dim=16), (1, 16), (1, 4), 4),
}
