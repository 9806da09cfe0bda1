"""What the conformance cases of rotary embedding need besides its declaration."""

from __future__ import annotations

import torch

from tridal.testing import Case, OpCases, make_values


def _tensors(case: Case) -> dict[str, torch.Tensor]:
    """Returns tensors with two elements along the dim of rows."""
    shape = [*case.shape]
    shape[case.dim] = 2
    factors = {name: make_values("normal", tuple(shape), case.dim, seed) for seed, name in enumerate(("cos", "sin"), 4)}
    return {"input": make_values(case.values, tuple(shape), case.dim), **factors}


def _is_defined(case: Case) -> bool:
    """Returns whether a tensor has a dim beside that of the halves."""
    return case.cast is None and len(case.shape) > 1


ROTARY = OpCases(tensors=_tensors, is_defined=_is_defined)
