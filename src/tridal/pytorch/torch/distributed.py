"""Tells whether a call has DTensors."""

from __future__ import annotations

import sys

import torch

from tridal.pytorch.torch import dtensor_rules

_compiling = torch.compiler.is_dynamo_compiling


def is_distributed(*tensors: torch.Tensor | None) -> bool:
    """Returns whether one of the tensors is a DTensor. First imports the DTensor rules, see `has_rules`."""
    if _compiling():
        from tridal.pytorch.torch import dynamo

        if not dynamo.has_rules():
            return False
    elif not dtensor_rules.has_rules():
        return False
    kind = sys.modules["torch.distributed.tensor"].DTensor
    return any(isinstance(tensor, kind) for tensor in tensors)
