"""Skip norm reads several tensors. Logsumexp writes numbers per row."""

from tridal_skipnorm.logsumexp import LOGSUMEXP, logsumexp
from tridal_skipnorm.skip_norm import SKIP_NORM, skip_norm

__all__ = ["LOGSUMEXP", "SKIP_NORM", "logsumexp", "skip_norm"]
