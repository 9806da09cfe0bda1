"""Softmax modules that call tridal, with the signatures of torch.nn.Softmax and torch.nn.LogSoftmax."""

from __future__ import annotations

import warnings

import torch

from tridal.library.softmax.functions import log_softmax, softmax


def _dim(module: torch.nn.Softmax | torch.nn.LogSoftmax, input: torch.Tensor) -> int:
    """The module's dim. If it is None, warns, and the dim is the one that torch's modules choose."""
    if module.dim is not None:
        return module.dim
    dim = 0 if input.dim() in (0, 1, 3) else 1
    if not torch.compiler.is_compiling():
        warnings.warn(f"Softmax and LogSoftmax without dim= are deprecated: pass dim={dim}", stacklevel=4)
    return dim


class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax, computed by `tridal.softmax`.

    Example:
        >>> tridal.nn.Softmax(dim=0)(torch.tensor([[1.0, 5.0], [2.0, 5.0]]))
        tensor([[0.2689, 0.5000],
                [0.7311, 0.5000]])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """softmax(input) along `dim`, in the input's shape."""
        return softmax(input, _dim(self, input))


class LogSoftmax(torch.nn.LogSoftmax):
    """torch.nn.LogSoftmax, computed by `tridal.log_softmax`.

    Example:
        >>> tridal.nn.LogSoftmax(dim=-1)(torch.tensor([1.0, 2.0, 3.0]))
        tensor([-2.4076, -1.4076, -0.4076])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """log_softmax(input) along `dim`, in the input's shape."""
        return log_softmax(input, _dim(self, input))
