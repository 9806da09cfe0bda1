"""What the conformance cases of rotary embedding need besides its declaration."""

from __future__ import annotations

import torch

from tridal.testing import Case, OpCases, make_values


def _tensors(case: Case) -> dict[str, torch.Tensor]:
    """Returns a query whose halves have the shape of the case, and a key with another number of heads."""
    batch, heads, length, half = (*(1,) * (4 - len(case.shape)), *case.shape)
    dim = 2 * half
    shapes: dict[str, tuple[int, ...]] = {"query": (batch, heads, length, dim), "key": (batch, 2, length, dim)}
    if dict(case.numbers).get("unsqueeze_dim") == 2:
        shapes = {name: (sizes[0], sizes[2], sizes[1], sizes[3]) for name, sizes in shapes.items()}
    width = 1 if dict(case.numbers).get("rotary_dim") else dim  # a number for the pair of two rotated elements
    shapes |= {"cos": (batch, length, width), "sin": (length, width)}
    made = enumerate(shapes.items())
    return {
        name: make_values(case.values if name == "query" else "normal", shape, case.dim, seed and seed + 3)
        for seed, (name, shape) in made
    }


def _is_defined(case: Case) -> bool:
    """Returns whether the case has no more dims than a query."""
    return case.cast is None and 0 < len(case.shape) <= 4


ROTARY = OpCases(tensors=_tensors, is_defined=_is_defined)
