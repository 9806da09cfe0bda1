"""`tridal.nn`: modules with the same signatures as in `torch.nn`."""

from tridal.library.gated_norm.modules import GatedRMSNorm
from tridal.library.losses.modules import CrossEntropyLoss, LinearCrossEntropyLoss
from tridal.library.norms.modules import LayerNorm, RMSNorm
from tridal.library.softmax.modules import LogSoftmax, Softmax

__all__ = [
    "CrossEntropyLoss", "GatedRMSNorm", "LayerNorm", "LinearCrossEntropyLoss", "LogSoftmax", "RMSNorm", "Softmax",
]  # fmt: skip
__dir__ = __all__.copy
