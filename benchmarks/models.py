"""A training step of models that don't know tridal, with and without `tridal.override_torch`, and the share of softmax.

    python benchmarks/models.py [--json FILE]

Random weights from a configuration, eager attention, bfloat16 on an accelerator. Times are medians; both ways are
measured in turns, so that neither has a warmer device. Needs the package transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers

import tridal

STEPS = 12
LLAMA = {"num_hidden_layers": 4, "attn_implementation": "eager"}


def llama(**sizes: int) -> Any:
    """A LLaMA with four layers."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, **sizes))


def gpt2(**sizes: int) -> Any:
    """A GPT-2 with four layers and no dropout."""
    none = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=4, attn_implementation="eager", **none, **sizes)
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
    """Times a step of a model both ways, and compares their losses."""
    make, sizes, shape = {**MODELS, **TINY}[name]
    torch.manual_seed(0)
    model = make(**sizes).to(device, torch.bfloat16 if device.type != "cpu" else torch.float32)
    words = torch.randint(0, sizes.get("vocab_size", 50_257), shape, device=device)

    def step() -> float:
        model.zero_grad()
        loss = model(input_ids=words, labels=words).loss
        loss.backward()
        return float(loss.detach())

    def timed(scope: Any) -> tuple[float, float]:
        with scope:
            start = time.perf_counter()
            loss = step()  # reading the loss waits for it, and the next line for the gradients
            if device.type != "cpu":
                torch.accelerator.synchronize()
            return (time.perf_counter() - start) * 1e3, loss

    times: dict[str, list[float]] = {"torch": [], "tridal": []}
    losses = {}
    for _ in range(STEPS):
        for way in times:
            took, losses[way] = timed(tridal.override_torch() if way == "tridal" else nullcontext())
            times[way].append(took)
    medians = {way: statistics.median(taken[3:]) for way, taken in times.items()}
    apart = abs(losses["tridal"] - losses["torch"]) / abs(losses["torch"])
    return {"model": name, **medians, "times": medians["torch"] / medians["tridal"], "losses apart": apart}


def main() -> None:
    """Measures on the accelerator; on the CPU one tiny model, to see that this runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="a file for the results")
    arguments = parser.parse_args()
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = found or torch.device("cpu")
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}")
    results = []
    for name in MODELS if found else TINY:
        results.append(result := measure(name, device))
        took = f"torch {result['torch']:8.2f} ms  tridal {result['tridal']:8.2f} ms  {result['times']:5.2f} times"
        print(f"{name:30} {took}  losses {result['losses apart']:.1e} apart")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
