"""Models of torch.nn.Module: `tridal.kernelize` replaces modules and losses that tridal computes."""

from tridal.models import hub as hub
from tridal.models.kernelize import restore

__all__ = ["restore"]
