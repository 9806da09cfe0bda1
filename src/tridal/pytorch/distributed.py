"""Tells whether a call has DTensors, and imports their rules only then, because the import is slow."""

from __future__ import annotations

import sys

import torch

_compiling = torch.compiler.is_dynamo_compiling


def is_distributed(*tensors: torch.Tensor | None) -> bool:
    """Returns whether one of the tensors is a DTensor. If so, imports the DTensor rules of all ops."""
    if _compiling():
        from tridal.pytorch import dynamo

        if not dynamo.distributed_loaded():
            return False
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not any(isinstance(tensor, module.DTensor) for tensor in tensors):
        return False
    from tridal.pytorch import dtensor, loss_dtensor, norm_dtensor  # noqa: F401

    return True
