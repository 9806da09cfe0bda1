"""Modules with the signatures of torch.nn's, under the documented name: `tridal.nn`."""

from tridal.pytorch.nn import LogSoftmax, Softmax

__all__ = ["LogSoftmax", "Softmax"]
