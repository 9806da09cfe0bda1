"""What the conformance cases of qk_norm_rotary need besides its declaration."""

from __future__ import annotations

import torch

from tridal.testing import Case, OpCases, make_values


def _tensors(case: Case) -> dict[str, torch.Tensor]:
    """Returns a query whose halves have the shape of the case, and a key with another number of heads."""
    batch, heads, length, half = (*(1,) * (4 - len(case.shape)), *case.shape)
    dim, numbers = 2 * half, dict(case.numbers)
    sizes = {"query": (batch, heads, length, dim), "key": (batch, 2, length, dim)}
    if numbers.get("unsqueeze_dim") == 2:
        sizes = {name: (size[0], size[2], size[1], size[3]) for name, size in sizes.items()}
    width = half if numbers.get("interleaved") else dim  # a number for each pair
    shapes: dict[str, tuple[int, ...]] = {**sizes, "query_weight": (dim,), "key_weight": (dim,)}
    shapes |= {"cos": (batch, length, width), "sin": (length, width)}
    return {
        name: make_values(case.values if name == "query" else "normal", shape, case.dim, seed and seed + 3)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def _is_defined(case: Case) -> bool:
    """Returns whether the case has no more dims than a query."""
    return case.cast is None and 0 < len(case.shape) <= 4


QK_NORM_ROTARY = OpCases(tensors=_tensors, is_defined=_is_defined)
