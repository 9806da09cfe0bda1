"""The benchmark of log_probs with entropies: functions of tridal and torch, and aims."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from tridal.benchmarks.op_benchmark import OpBenchmark, of_last_dim
from tridal.library.log_probs.functions import log_probs
from tridal.ops import index_per_row, per_element


def _by_torch(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and entropies, as trainers of language models compute them."""
    logs = logits.float().log_softmax(-1)
    return logs.gather(-1, target.unsqueeze(-1)).squeeze(-1), -(logs.exp() * logs).sum(-1)


LOG_PROBS = OpBenchmark(
    functions={
        "tridal": of_last_dim(lambda: partial(log_probs, return_entropy=True)),
        "torch": of_last_dim(lambda: _by_torch),
    },
    tensors=(per_element("input"), index_per_row("target")),
    traffic={"forward": 1, "backward": 2},
    aims={
        "vocabulary": {"forward": 0.95, "backward": 0.95},
        "vocabulary_odd": {"forward": 0.92, "backward": 0.90},
        "few_classes": {"forward": 0.85, "backward": 0.95},
    },
    suite="vocabularies",
    gradients=2,
)
