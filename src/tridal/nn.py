"""`tridal.nn`: modules with the same signatures as in `torch.nn`."""

from tridal.pytorch.loss_modules import CrossEntropyLoss, LinearCrossEntropyLoss
from tridal.pytorch.nn import LogSoftmax, Softmax

__all__ = ["CrossEntropyLoss", "LinearCrossEntropyLoss", "LogSoftmax", "Softmax"]
