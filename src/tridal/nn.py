"""`tridal.nn`: modules with the same signatures as in `torch.nn`."""

from tridal.pytorch.nn import LogSoftmax, Softmax
from tridal.pytorch.norm_modules import LayerNorm, RMSNorm

__all__ = ["LayerNorm", "LogSoftmax", "RMSNorm", "Softmax"]
