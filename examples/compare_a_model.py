"""Trains a small model with and without tridal, and compares the losses, and on an accelerator the time and the memory.

    python examples/compare_a_model.py [--steps N]

The settings of tridal choose the device. If no backend serves it, Triton's interpreter runs the kernels on the CPU, so
the model is tiny. The model is plain PyTorch; train_a_model.py has one of transformers.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

import tridal


class MLP(nn.Module):
    """The gated MLP of LLaMA."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(size, 2 * size, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(2 * size, size, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the shape of `x`."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """An attention and an MLP, with a norm before each."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = (nn.RMSNorm(size, eps=1e-6) for _ in range(2))
        self.query_key_value, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.mlp = MLP(size)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the shape of `x`, which is (batch, length, size)."""
        heads = (part.unsqueeze(1) for part in self.query_key_value(self.attention_norm(x)).chunk(3, dim=-1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(*heads, is_causal=True).squeeze(1))
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    """A language model without its last layer, the head."""

    def __init__(self, vocabulary: int, size: int, layers: int) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocabulary, size), nn.RMSNorm(size, eps=1e-6)
        self.layers = nn.Sequential(*(Block(size) for _ in range(layers)))
        self.head = nn.Linear(size, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the inputs of the head."""
        return self.norm(self.layers(self.embedding(tokens)))


def plain_loss(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Returns the cross-entropy as PyTorch computes it."""
    return nn.functional.cross_entropy(hidden @ weight.T, target)


def train(model: Model, loss: Callable[..., Tensor], batches: Tensor) -> tuple[list[float], str]:
    """Returns the loss of each step, and the time and the memory of a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    device, losses, fastest = batches.device, [], float("inf")
    accelerated = device.type == "cuda"
    if accelerated:
        torch.cuda.reset_peak_memory_stats(device)
    for tokens in batches:
        start = time.perf_counter()
        optimizer.zero_grad()
        # As in the losses of language models, a token is predicted from those before it.
        found = loss(model(tokens[:, :-1]).flatten(0, 1), model.head.weight, tokens[:, 1:].flatten())
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))  # waits for the device
        fastest = min(fastest, time.perf_counter() - start)
    model.zero_grad()
    memory = f", {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB" if accelerated else ""
    return losses, f"{1000 * fastest:,.1f} ms{memory}"


def compare(device: torch.device, steps: int) -> None:
    """Trains the same model twice, and prints the report of kernelize, the losses, and the time of a step."""
    large = device.type != "cpu"
    vocabulary, size, layers, batch, length = (32_000, 1024, 8, 8, 1024) if large else (256, 64, 2, 4, 32)
    dtype = torch.bfloat16 if large else torch.float32
    torch.manual_seed(0)
    plain = Model(vocabulary, size, layers).to(device, dtype)
    batches = torch.randint(0, vocabulary, (steps, batch, length + 1)).to(device)
    parameters = sum(parameter.numel() for parameter in plain.parameters())
    print(f"{steps} training steps of a model with {parameters / 1e6:.1f} million parameters on {device}, {dtype}")
    faster = copy.deepcopy(plain)
    print(tridal.kernelize(faster))
    expected, plain_cost = train(plain, plain_loss, batches)
    losses, cost = train(faster, tridal.linear_cross_entropy, batches)
    print(f"{'':8}{'PyTorch':>10}{'tridal':>10}")
    for step, numbers in enumerate(zip(expected, losses, strict=True)):
        print(f"step {step:<3}{numbers[0]:10.5f}{numbers[1]:10.5f}")
    print(f"largest difference of a loss: {max(abs(a - b) for a, b in zip(expected, losses, strict=True)):.1e}")
    if large:
        print(f"fastest step: PyTorch {plain_cost}; tridal {cost}")
    else:
        print(
            "Triton's interpreter checks results and is slow. On a GPU, this shows the time and the memory of a step."
        )


def main() -> None:
    """Compares on the device of the settings, or in Triton's interpreter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    device = tridal.device()
    served = tridal.registry.serving(device.type) is not None
    with nullcontext() if served else tridal.use(device="interpreter"):
        compare(device, arguments.steps)


if __name__ == "__main__":
    main()
