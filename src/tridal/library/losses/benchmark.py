"""The benchmark of cross_entropy: functions of tridal, torch and FlagGems for a loss per row, and aims."""

from __future__ import annotations

from functools import partial
from pkgutil import resolve_name

from torch.nn import functional

from tridal.benchmarks.op_benchmark import OpBenchmark, of_last_dim
from tridal.library.losses.functions import cross_entropy
from tridal.ops import index_per_row, per_element

# Liger-Kernel 0.8 computes the gradient of its cross-entropy in the forward, so it is not comparable by direction.
CROSS_ENTROPY = OpBenchmark(
    functions={
        "tridal": of_last_dim(lambda: partial(cross_entropy, reduction="none")),
        "torch": of_last_dim(lambda: partial(functional.cross_entropy, reduction="none")),
        "FlagGems": of_last_dim(lambda: partial(resolve_name("flag_gems.fused:cross_entropy_loss"), reduction="none")),
    },
    tensors=(per_element("input"), index_per_row("target")),
    traffic={"forward": 1, "backward": 2},
    aims={
        "vocabulary": {"forward": 0.95, "backward": 0.95},
        "vocabulary_odd": {"forward": 0.92, "backward": 0.90},
        "few_classes": {"forward": 0.85, "backward": 0.95},
    },
    suite="vocabularies",
)
