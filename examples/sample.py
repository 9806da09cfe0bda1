"""Samples tokens from a vocabulary of 128,256 with a temperature and top-p, with and without tridal.

    python examples/sample.py [--rows N] [--temperature T] [--top-p P]

tridal.softmax scales the logits in its kernel. The settings of tridal choose the device.
"""

from __future__ import annotations

import argparse

import torch

import tridal

VOCABULARY = 128_256


def sample(logits: torch.Tensor, temperature: float, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a token for each row of logits (rows, VOCABULARY), and the probabilities that it was drawn from."""
    probabilities = tridal.softmax(logits, dim=-1, scale=1 / temperature)
    ordered, indices = probabilities.sort(dim=-1, descending=True)
    # A token is kept if the tokens before it have less than top_p together.
    ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0)
    ordered = ordered / ordered.sum(-1, keepdim=True)
    drawn = torch.multinomial(ordered, 1)
    return indices.gather(-1, drawn).squeeze(-1), probabilities


def main() -> None:
    """Samples once, and compares the probabilities with torch's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=0.9)
    arguments = parser.parse_args()
    device = tridal.device()
    torch.manual_seed(0)
    logits = 4 * torch.randn(arguments.rows, VOCABULARY, device=device)
    with tridal.record_calls() as calls:
        tokens, probabilities = sample(logits, arguments.temperature, arguments.top_p)
    expected = torch.softmax(logits / arguments.temperature, dim=-1)
    print(f"computed by {calls[0].backend} on {device}")
    print(f"tokens: {tokens.tolist()}")
    print(f"largest difference of a probability from torch: {float((probabilities - expected).abs().max()):.1e}")


if __name__ == "__main__":
    main()
