"""Families of models of transformers in small sizes, for the tests that compare many of them."""

from __future__ import annotations

from typing import Any

from model_helpers import SMALL, TOKENS, transformers

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
PER_LAYER = {
    "global_head_dim": 8, "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8,
    "rms_norm_eps": 1e-3,  # a smaller one multiplies the roundings of small rows by up to 1000
}  # fmt: skip
"""Gemma 4 adds an input to each layer."""
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
    **dict.fromkeys(("DeepseekV2", "DeepseekV3", "DeepseekV4"), LATENT),
    "Llama4Text": {**MIXTURE, "intermediate_size_mlp": 32}, "Gemma4Text": {**WIDE, **PER_LAYER},
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


def family(name: str) -> Any:
    """Returns a model of a family with random weights. The random state of torch decides them."""
    auto, sizes = FAMILIES[name]
    return auto.from_config(getattr(transformers, f"{name}Config")(**{**SMALL, **TOKENS, **sizes}))
