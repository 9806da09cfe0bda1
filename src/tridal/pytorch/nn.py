"""Softmax modules with the signatures of those in torch.nn, for models that are written with tridal."""

from __future__ import annotations

import warnings

import torch

from tridal.pytorch.functions import log_softmax, softmax


def _dim(module: torch.nn.Softmax | torch.nn.LogSoftmax, input: torch.Tensor) -> int:
    """The module's dim. If it is None, warns and returns the dim that torch's modules choose."""
    if module.dim is not None:
        return module.dim
    dim = 0 if input.dim() in (0, 1, 3) else 1
    if not torch.compiler.is_compiling():
        warnings.warn(f"Softmax and LogSoftmax without dim= are deprecated: pass dim={dim}", stacklevel=4)
    return dim


class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax, computed by `tridal.softmax`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """softmax(input) along `dim`, of the input's shape. TorchScript uses torch's function."""
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return torch.nn.functional.softmax(input, self.dim, 5)
        else:  # noqa: RET505  TorchScript does not compile this branch
            return softmax(input, _dim(self, input))


class LogSoftmax(torch.nn.LogSoftmax):
    """torch.nn.LogSoftmax, computed by `tridal.log_softmax`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """log_softmax(input) along `dim`, of the input's shape. TorchScript uses torch's function."""
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return torch.nn.functional.log_softmax(input, self.dim, 5)
        else:  # noqa: RET505  TorchScript does not compile this branch
            return log_softmax(input, _dim(self, input))
