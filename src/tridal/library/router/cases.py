"""What the conformance cases of route_top_k need besides its declaration."""

from __future__ import annotations

import torch

from tridal.library.router.route_top_k import MOST_EXPERTS
from tridal.testing import Case, OpCases


def _is_defined(case: Case) -> bool:
    """Returns whether the experts of a case can be divided into its groups, and a kernel can choose some of them."""
    numbers, experts = dict(case.numbers), case.shape[-1] if case.shape else 0
    groups, top_groups = numbers.get("groups", 1), numbers.get("top_groups", 1)
    enough = experts % groups == 0 and experts // groups >= 4 and top_groups <= groups
    return enough and experts <= MOST_EXPERTS


def _softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Computes softmax in the operations whose results kernels round."""
    terms = (x - x.amax(dim, keepdim=True)).exp()
    return terms / terms.sum(dim, keepdim=True)


ROUTE_TOP_K = OpCases(is_defined=_is_defined, formulas={"_softmax": _softmax})
