"""Direct preference optimization (arXiv 2305.18290) of a small model over `tridal.token_log_probs`, beside plain torch.

    python examples/dpo.py [--steps N]

Answers with even tokens are preferred to answers with odd ones. The settings of tridal choose the device.
"""

from __future__ import annotations

import argparse

import torch
from small_model import LENGTH, PROMPT, VOCABULARY, SmallModel, answer_log_probs
from torch import Tensor
from torch.nn import functional

import tridal

PAIRS, BETA = 8, 0.5


def dpo_loss(policy: SmallModel, reference: SmallModel, tokens: Tensor, by_tridal: bool) -> Tensor:
    """Returns the loss of preferred answers, which are the first half of the tokens, and rejected ones."""
    log_probs = answer_log_probs(policy, tokens, by_tridal)[0].sum(-1)
    with torch.no_grad():
        of_reference = answer_log_probs(reference, tokens, by_tridal)[0].sum(-1)
    preferred, rejected = (log_probs - of_reference).chunk(2)
    return -functional.logsigmoid(BETA * (preferred - rejected)).mean()


def main() -> None:
    """Trains two models that begin alike, and prints the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    steps, device = parser.parse_args().steps, tridal.device()
    policies = [SmallModel().to(device) for _ in range(2)]
    optimizers = [torch.optim.AdamW(policy.parameters(), lr=3e-3) for policy in policies]
    reference = SmallModel().to(device)
    tokens = torch.randint(VOCABULARY // 2, (2 * PAIRS, LENGTH), device=device) * 2
    tokens[PAIRS:, PROMPT:] += 1
    tokens[PAIRS:, :PROMPT] = tokens[:PAIRS, :PROMPT]
    for step in range(steps):
        losses = []
        for policy, optimizer, by_tridal in zip(policies, optimizers, (True, False), strict=True):
            optimizer.zero_grad()
            loss = dpo_loss(policy, reference, tokens, by_tridal)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"step {step:2} on {device}: loss with tridal {losses[0]:.5f}, torch {losses[1]:.5f}")


if __name__ == "__main__":
    main()
