"""A small language model, and the log-probabilities of the tokens of its answers, for dpo.py and grpo.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import tridal

VOCABULARY, SIZE, PROMPT, LENGTH = 128, 32, 4, 12


class SmallModel(nn.Module):
    """Embeddings, a recurrent layer and a head. All models begin with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCABULARY, SIZE), nn.Linear(SIZE, VOCABULARY, bias=False)
        self.layer = nn.GRU(SIZE, SIZE, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the input of the head (batch, length, SIZE), which predicts the next token at each position."""
        hidden: Tensor = self.layer(self.embed(tokens))[0]
        return hidden

    @torch.no_grad()
    def complete(self, prompts: Tensor) -> Tensor:
        """Samples answers. Returns the tokens of prompts and answers (batch, LENGTH)."""
        while prompts.shape[1] < LENGTH:
            drawn = torch.multinomial(self.head(self(prompts)[:, -1]).softmax(-1), 1)
            prompts = torch.cat((prompts, drawn), 1)
        return prompts


def answer_log_probs(model: SmallModel, tokens: Tensor, by_tridal: bool) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and entropies (batch, LENGTH - 1) of the tokens after the first, 0 for the prompt's."""
    hidden, targets = model(tokens[:, :-1]), tokens[:, 1:]
    mask = (torch.arange(1, LENGTH, device=tokens.device) >= PROMPT).expand(targets.shape)
    if by_tridal:
        return tridal.token_log_probs(hidden, model.head.weight, targets, mask=mask, return_entropy=True)
    logs = model.head(hidden).log_softmax(-1)
    chosen = logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen * mask, -(logs.exp() * logs).sum(-1) * mask
