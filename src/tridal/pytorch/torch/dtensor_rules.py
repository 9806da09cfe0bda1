"""Imports the DTensor rules of all ops, but only after torch's DTensor module, because their import is slow."""

from __future__ import annotations

import sys

_imported = False


def has_rules() -> bool:
    """Returns whether torch's DTensor module is imported. If so, imports the DTensor rules of all ops.

    The rules are needed even if no argument is a DTensor: a function transform hides a DTensor in a wrapper.
    """
    global _imported
    if not _imported and sys.modules.get("torch.distributed.tensor") is not None:
        from tridal.pytorch.torch import dtensor  # noqa: F401

        _imported = True
    return _imported
