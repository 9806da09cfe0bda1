"""The benchmark of log_probs with entropies: functions of tridal and torch, and aims."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from tridal.benchmarks.op_benchmark import of_last_dim
from tridal.library.log_probs.functions import log_probs
from tridal.library.losses.benchmark import CROSS_ENTROPY


def _by_torch(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and entropies, as trainers of language models compute them."""
    logs = logits.float().log_softmax(-1)
    return logs.gather(-1, target.unsqueeze(-1)).squeeze(-1), -(logs.exp() * logs).sum(-1)


LOG_PROBS = replace(
    CROSS_ENTROPY,
    functions={
        "tridal": of_last_dim(lambda: partial(log_probs, return_entropy=True)),
        "torch": of_last_dim(lambda: _by_torch),
    },
    gradients=2,
)
"""The tensors, traffic and aims are those of cross_entropy."""
