"""`tridal.kernelize` replaces modules and losses of a torch.nn.Module; its report lists them and can restore them."""

from tridal.models import hub
from tridal.models.kernelize import Entry, Report, kernelize, restore

__all__ = ["Entry", "Report", "hub", "kernelize", "restore"]
__dir__ = __all__.copy
