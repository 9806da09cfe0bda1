"""Models of torch.nn.Module: `tridal.kernelize` replaces modules and losses that tridal computes."""

from tridal.models import hub
from tridal.models.kernelize import Entry, Report, kernelize, restore

__all__ = ["Entry", "Report", "hub", "kernelize", "restore"]
__dir__ = __all__.copy
