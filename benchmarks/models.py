"""Times a training step of unmodified transformers models, with and without `tridal.override_torch`.

    python benchmarks/models.py [--json FILE]

The models have random weights and eager attention, and use bfloat16 on an accelerator. Times are medians. The script
alternates between both implementations, so that neither profits from a warmer device. Needs the package transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers

import tridal

STEPS, WARM_UP_STEPS = 12, 3
LLAMA = {"num_hidden_layers": 4, "attn_implementation": "eager"}


def llama(**sizes: int) -> Any:
    """Returns a LLaMA with four layers."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, **sizes))


def gpt2(**sizes: int) -> Any:
    """Returns a GPT-2 with four layers and no dropout."""
    no_dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=4, attn_implementation="eager", **no_dropout, **sizes)
    )


WIDE = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 16}
MODELS: dict[str, tuple[Callable[..., Any], dict[str, int], tuple[int, int]]] = {
    "LLaMA, 2048 tokens": (llama, {**WIDE, "vocab_size": 32_000}, (4, 2048)),
    "LLaMA, 4096 tokens": (llama, {**WIDE, "vocab_size": 32_000}, (1, 4096)),
    "LLaMA, vocabulary of 128,256": (llama, {**WIDE, "vocab_size": 128_256}, (4, 1024)),
    "GPT-2, vocabulary of 50,257": (gpt2, {"n_embd": 1024, "n_head": 16, "n_positions": 2048}, (4, 1024)),
}
TINY: dict[str, tuple[Callable[..., Any], dict[str, int], tuple[int, int]]] = {
    "LLaMA, tiny": (llama, {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 501}, (1, 32)),
}


def measure(name: str, device: torch.device) -> dict[str, Any]:
    """Times a training step with both implementations, in milliseconds, and compares their losses."""
    make, sizes, shape = {**MODELS, **TINY}[name]
    torch.manual_seed(0)
    model = make(**sizes).to(device, torch.bfloat16 if device.type != "cpu" else torch.float32)
    tokens = torch.randint(0, sizes.get("vocab_size", 50_257), shape, device=device)

    def train_step() -> float:
        model.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return float(loss.detach())

    def time_step(scope: AbstractContextManager[Any]) -> tuple[float, float]:
        with scope:
            start = time.perf_counter()
            loss = train_step()
            if device.type != "cpu":
                torch.accelerator.synchronize()
            return (time.perf_counter() - start) * 1e3, loss

    times: dict[str, list[float]] = {"torch": [], "tridal": []}
    losses = {}
    for _ in range(STEPS):
        for implementation, steps in times.items():
            scope = tridal.override_torch() if implementation == "tridal" else nullcontext()
            milliseconds, losses[implementation] = time_step(scope)
            steps.append(milliseconds)
    medians = {implementation: statistics.median(steps[WARM_UP_STEPS:]) for implementation, steps in times.items()}
    difference = abs(losses["tridal"] - losses["torch"]) / abs(losses["torch"])
    return {"model": name, **medians, "times": medians["torch"] / medians["tridal"], "losses apart": difference}


def main() -> None:
    """Measures all models on the accelerator. Without one, measures a tiny model on the CPU as a smoke test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = found or torch.device("cpu")
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}")
    results = []
    for name in MODELS if found else TINY:
        results.append(result := measure(name, device))
        times = f"torch {result['torch']:8.2f} ms  tridal {result['tridal']:8.2f} ms  speed-up {result['times']:5.2f}"
        print(f"{name:30} {times}  relative difference of losses {result['losses apart']:.1e}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
