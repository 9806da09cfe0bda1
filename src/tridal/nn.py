"""`tridal.nn`: modules with the same signatures as in `torch.nn`."""

from tridal.pytorch.nn import LogSoftmax, Softmax

__all__ = ["LogSoftmax", "Softmax"]
