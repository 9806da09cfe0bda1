"""Group relative policy optimization (arXiv 2402.03300) of a small model over `tridal.token_log_probs`.

    python examples/grpo.py [--steps N]

A model samples several answers to each prompt. Their reward is the share of even tokens. Each step prints the losses
and the norms of the gradients by tridal and by plain torch. The settings of tridal choose the device.
"""

from __future__ import annotations

import argparse

import torch
from small_model import LENGTH, PROMPT, VOCABULARY, SmallModel, answer_log_probs
from torch import Tensor

import tridal

PROMPTS, GROUP, CLIP, BETA = 4, 8, 0.2, 0.01


def grpo_loss(
    policy: SmallModel, tokens: Tensor, rewards: Tensor, old: Tensor, reference: Tensor, by_tridal: bool
) -> tuple[Tensor, Tensor]:
    """Returns the loss of answers (PROMPTS * GROUP, LENGTH), and the mean entropy of their tokens.

    `old` and `reference` are the log-probabilities of the model that sampled the answers, and of the first model.
    """
    log_probs, entropies = answer_log_probs(policy, tokens, by_tridal)
    groups = rewards.view(PROMPTS, GROUP)
    advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    advantages, ratio = advantages.view(-1, 1), (log_probs - old).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    distance = (reference - log_probs).exp() - (reference - log_probs) - 1
    answers = tokens.shape[0] * (LENGTH - PROMPT)
    # Tokens of the prompt have the log-probability 0 in all models, so their ratio is 1 and their distance 0.
    loss = -(gain - BETA * distance)[:, PROMPT - 1 :].sum() / answers
    return loss, entropies.detach().sum() / answers


def main() -> None:
    """Trains, and prints rewards, losses and norms of gradients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    steps, device = parser.parse_args().steps, tridal.device()
    policy, first = (SmallModel().to(device) for _ in range(2))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    for step in range(steps):
        prompts = torch.randint(VOCABULARY, (PROMPTS, PROMPT), device=device).repeat_interleave(GROUP, 0)
        tokens = policy.complete(prompts)
        rewards = (tokens[:, PROMPT:] % 2 == 0).float().mean(1)
        with torch.no_grad():
            old, reference = (answer_log_probs(model, tokens, by_tridal=True)[0] for model in (policy, first))
        for _ in range(2):  # the second update is off-policy
            found = []
            for by_tridal in (False, True):
                optimizer.zero_grad()
                loss, entropy = grpo_loss(policy, tokens, rewards, old, reference, by_tridal)
                loss.backward()
                norm = torch.stack([p.grad.norm() for p in policy.parameters() if p.grad is not None]).norm()
                found.append(f"{loss.item():.5f} {norm.item():.5f} {entropy.item():.4f}")
            optimizer.step()
        print(f"step {step:2} on {device}: reward {float(rewards.mean()):.3f}, loss, norm of the gradient and entropy:")
        print(f"    tridal {found[1]}\n    torch  {found[0]}")


if __name__ == "__main__":
    main()
