"""Imports the DTensor rules of all ops when DTensors exist, because the import is slow."""

from __future__ import annotations

import sys


def has_rules() -> bool:
    """Returns whether torch's DTensor module is imported. If so, imports the DTensor rules of all ops.

    The rules are needed even if no argument is a DTensor: a function transform hides a DTensor in a wrapper.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from tridal.pytorch import dtensor, loss_dtensor, norm_dtensor  # noqa: F401

    return True
