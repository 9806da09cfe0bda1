"""Tells whether a call has DTensors. Imports the DTensor rules after torch's module only, because that is slow."""

from __future__ import annotations

import sys

import torch

from tridal.pytorch.torch.private import constant_in_graphs

_imported = False


@constant_in_graphs
def has_rules() -> bool:
    """Returns whether torch's DTensor module is imported. If so, imports the DTensor rules of all ops.

    The rules are needed even if no argument is a DTensor: a function transform hides a DTensor in a wrapper.
    """
    global _imported
    if not _imported and sys.modules.get("torch.distributed.tensor") is not None:
        from tridal.pytorch.torch import dtensor  # noqa: F401

        _imported = True
    return _imported


def is_distributed(*tensors: torch.Tensor | None) -> bool:
    """Returns whether one of the tensors is a DTensor. First imports the DTensor rules, see `has_rules`."""
    if not has_rules():
        return False
    kind = sys.modules["torch.distributed.tensor"].DTensor
    return any(isinstance(tensor, kind) for tensor in tensors)
