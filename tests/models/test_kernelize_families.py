"""Families of models of transformers: the same step as before, and a report that names all modules of each kind."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tridal
from model_helpers import SMALL, TOKENS, assert_same_step, step, transformers

NAMED = re.compile("(Norm|NormGated|MLP|GatedActDense|Experts|Attention)$|^.*LayerNorm1P$")
"""Names of classes whose modules are in the report, except those of `UNNAMED`."""
TWO = {"num_hidden_layers": 2, "num_key_value_heads": 2}
WIDE = {**TWO, "head_dim": 8}
MIXTURE = {
    **WIDE, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1, "decoder_sparse_step": 1,
}  # fmt: skip
LATENT = {
    **MIXTURE, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 1, "topk_group": 1,
}  # fmt: skip
HYBRID = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"], "shared_expert_intermediate_size": 16,
}  # fmt: skip
MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8, "mamba_d_ssm": 64,
    "mamba_n_groups": 1,
}  # fmt: skip
GPT = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
BART = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_ffn_dim": 32}
BART = {**BART, "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_start_token_id": 0}
CAUSAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("Llama", "Qwen2", "Mistral", "Olmo", "Olmo2", "Olmo3", "Granite", "Cohere", "StableLm"), TWO),
    **dict.fromkeys(("SmolLM3", "Exaone4", "Glm", "BitNet", "Ernie4_5", "SeedOss", "Phi3", "Phi", "GPTNeoX"), TWO),
    **dict.fromkeys(("Qwen3", "Gemma", "Gemma2", "Gemma3Text", "Glm4", "Cohere2", "HunYuanDenseV1", "NanoChat"), WIDE),
    **dict.fromkeys(("Starcoder2", "Persimmon", "Nemotron", "Arcee", "Apertus"), TWO),
    **dict.fromkeys(("Mixtral", "Qwen2Moe", "Qwen3Moe", "Phimoe", "Olmoe", "GraniteMoe"), MIXTURE),
    **dict.fromkeys(("Glm4Moe", "Dots1", "GptOss"), MIXTURE),
    **dict.fromkeys(("DeepseekV2", "DeepseekV3"), LATENT),
    **{name: {**MIXTURE, **HYBRID} for name in ("Qwen3Next", "Qwen3_5Text")},
    "Mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2, "chunk_size": 8},
    "GraniteMoeHybrid": {**TWO, **MAMBA, "layer_types": ["mamba", "attention"]},
    "Bamba": {**TWO, **MAMBA, "attn_layer_indices": [1]},
    "FalconH1": {**WIDE, **MAMBA, "mamba_rms_norm": True},
    "NemotronH": {**WIDE, "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2,
                  "chunk_size": 8, "hybrid_override_pattern": "M*"},
    "Lfm2": {**TWO, "layer_types": ["conv", "full_attention"]},
    "GPT2": GPT, "GPTJ": {**GPT, "rotary_dim": 4}, "Falcon": {}, "Bloom": {"n_layer": 1, "n_head": 4},
    "OPT": {"ffn_dim": 32, "word_embed_proj_dim": 32},
}  # fmt: skip
MASKED: dict[str, Any] = {name: {} for name in ("Bert", "Roberta", "ModernBert", "RoFormer", "Esm", "Electra")}
PAIRED = {"T5": {**T5, "feed_forward_proj": "gated-gelu"}, "MT5": T5, "Bart": BART}
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    name: (auto, sizes)
    for auto, families in (
        (transformers.AutoModelForCausalLM, CAUSAL), (transformers.AutoModelForMaskedLM, MASKED),
        (transformers.AutoModelForSeq2SeqLM, PAIRED),
    )
    for name, sizes in families.items()
}  # fmt: skip
UNNAMED = re.compile(
    "(Phi|Starcoder2|Persimmon|Nemotron|Arcee|Apertus|GptOss|NanoChat|GPTNeoX|GPT2|GPTJ|Falcon|Bloom)MLP|M?T5.*Attention|"
    "(GPT2|Bloom|OPT|NemotronH|RoFormer|Esm|Bart|Bert(Self)?|Roberta(Self)?|Electra(Self)?)Attention"
)
"""Classes without a gate or a rotary embedding, which are no candidates."""
FEW = ("Lfm2", "GptOss", "T5")
WIDER = pytest.mark.nightly("few families, and the tests of each kind of module")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FEW else WIDER) for name in FAMILIES])
def test_every_family_gives_the_same_step_and_a_whole_report(device: torch.device, name: str) -> None:
    auto, sizes = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **TOKENS, **sizes})
    model = auto.from_config(config).to(device).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 16)
    expected = step(model)
    report = tridal.kernelize(model)
    assert_same_step(step(model), expected)
    assert len(report.replaced) >= 1
    reported = {entry.name for entry in report.entries}
    assert "" in reported, "the loss"
    left = {type(module).__name__ for module_name, module in model.named_modules() if module_name not in reported}
    assert {kind for kind in left if NAMED.search(kind) and not UNNAMED.fullmatch(kind)} == set()
