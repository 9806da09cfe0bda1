"""Ops of several tensors, of numbers per row, and of several launches."""

from tridal_skipnorm.logsumexp import LOGSUMEXP, logsumexp
from tridal_skipnorm.mean_energy import MEAN_ENERGY, mean_energy
from tridal_skipnorm.skip_norm import SKIP_NORM, skip_norm

__all__ = [
    "LOGSUMEXP", "MEAN_ENERGY", "SKIP_NORM", "logsumexp", "mean_energy",
    "skip_norm",
]  # fmt: skip
