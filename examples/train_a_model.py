"""Trains a small LLaMA on synthetic text, on any device that PyTorch and tridal serve.

    python examples/train_a_model.py [--steps N]

The settings of tridal choose the device, for example TRIDAL_DEVICE=cuda, npu or interpreter, or a settings file: see
examples/npu.yaml. The text repeats words of a small vocabulary, so that the loss falls within a few steps.
Needs the package transformers.
"""

from __future__ import annotations

import argparse

import torch
import transformers

import tridal

VOCABULARY, LENGTH, BATCH = 256, 32, 4


def batches(device: torch.device, steps: int) -> torch.Tensor:
    """Returns tokens of shape (steps, BATCH, LENGTH). Each sequence repeats four random words."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(3, VOCABULARY, (16, 4), generator=generator)
    chosen = torch.randint(0, 16, (steps, BATCH), generator=generator)
    return words[chosen].repeat(1, 1, LENGTH // 4).to(device)


def main() -> None:
    """Trains, and prints the report of kernelize and the loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    device = tridal.device()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(device)
    print(tridal.kernelize(model, fused_loss=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for index, tokens in enumerate(batches(device, arguments.steps)):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        if index % 10 == 0 or index == arguments.steps - 1:
            print(f"step {index:3} on {device}: loss {float(loss.detach()):.3f}")


if __name__ == "__main__":
    main()
