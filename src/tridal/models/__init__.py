"""Models of torch.nn.Module: `tridal.kernelize` replaces modules and losses that tridal computes."""

from tridal.models import hub
from tridal.models.kernelize import kernelize, restore
from tridal.models.report import Entry, Report

__all__ = ["Entry", "Report", "hub", "kernelize", "restore"]
__dir__ = __all__.copy
