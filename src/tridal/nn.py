"""`tridal.nn`: modules with the same signatures as in `torch.nn`."""

from tridal.pytorch.loss_modules import CrossEntropyLoss, LinearCrossEntropyLoss
from tridal.pytorch.nn import LogSoftmax, Softmax
from tridal.pytorch.norm_modules import LayerNorm, RMSNorm

__all__ = [
    "CrossEntropyLoss", "LayerNorm", "LinearCrossEntropyLoss", "LogSoftmax", "RMSNorm", "Softmax",
]  # fmt: skip
