"""The router of a mixture of experts: its kernels, its math in torch's ops, and its gradient.

A score is the softmax, the sigmoid or the root of the softplus of a logit. Experts are chosen by their scores, to which
a bias may be added, and in some groups only. The weights are the scores, which may be divided by their sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from tridal.ops import DTYPE, Named, Op, Result, RowKernel, RowReduce, Statistic, number, per_column, per_element

Tensor = torch.Tensor
SCORES = ("softmax", "sigmoid", "sqrtsoftplus")
GROUP_SCORES = ("max", "top2")
MOST_EXPERTS, MOST_CHOSEN = 4096, 32
"""The limits of kernels: a program holds a whole row, and chooses one expert after the other."""


def _scores(input: Tensor, score: str) -> Tensor:
    if score == "softmax":
        return input.softmax(-1)
    return input.sigmoid() if score == "sigmoid" else functional.softplus(input, threshold=1000).sqrt()


def _largest(x: Tensor, count: int) -> Tensor:
    """Returns the indices of the largest numbers. Of equal ones, the first come first. NaN is the largest number."""
    return torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :count]


def _of_top_groups(x: Tensor, groups: int, top_groups: int, group_score: str) -> Tensor:
    """Returns x in the groups with the largest scores, and -inf in the others."""
    by_group = x.reshape(*x.shape[:-1], groups, -1)
    best = by_group.amax(-1) if group_score == "max" else by_group.topk(2).values.sum(-1)
    chosen = torch.zeros_like(best).scatter(-1, _largest(best, top_groups), 1.0)
    return by_group.masked_fill(chosen.unsqueeze(-1) == 0, -torch.inf).flatten(-2)


def reference(
    input: Tensor, bias: Tensor | None, rows: RowReduce, k: int, score: str, groups: int, top_groups: int,
    group_score: str, normalize: bool, eps: float, scaling_factor: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the weights of the chosen experts and their indices, the first choice first."""
    scores = _scores(input, score)
    choice = input.detach()
    if bias is not None:
        choice = scores.detach() + bias
    elif groups > 1 and group_score == "top2":
        choice = scores.detach()
    if groups > 1:
        choice = _of_top_groups(choice, groups, top_groups, group_score)
    indices = _largest(choice, k)
    return weights_of(scores.gather(-1, indices), normalize, eps, scaling_factor), indices


def weights_of(chosen: Tensor, normalize: bool, eps: float, scaling_factor: float) -> Tensor:
    """Returns the weights of chosen experts from their scores."""
    chosen = chosen / (chosen.sum(-1, keepdim=True) + eps) if normalize else chosen
    return chosen * scaling_factor


def gradient(
    grad: Tensor, input: Tensor, indices: Tensor, rows: RowReduce, k: int, score: str, normalize: bool, eps: float,
    scaling_factor: float,
) -> Tensor:  # fmt: skip
    """Returns the gradient of the logits. That of the score of a chosen expert is ds, and that of the others is 0."""
    scores = _scores(input, score)
    chosen = scores.gather(-1, indices)
    ds = grad * scaling_factor
    if normalize:
        total = chosen.sum(-1, keepdim=True) + eps
        ds = (ds - (ds * chosen).sum(-1, keepdim=True) / total) / total
    if score == "softmax":
        ds = torch.zeros_like(scores).scatter(-1, indices, ds)
        return scores * (ds - rows(ds * scores, "sum"))
    logits = input.gather(-1, indices)
    large = logits.sigmoid()
    slope = large * (-logits).sigmoid() if score == "sigmoid" else large / (2 * chosen)
    return torch.zeros_like(scores).scatter(-1, indices, ds * slope)


def _constants(named: Named) -> Mapping[str, Any]:
    found = {"TOP": named["k"], "SCORE": named["score"], "NORMALIZE": named["normalize"]}
    if "groups" not in named:
        return found
    groups = {"GROUPS": named["groups"], "TOP_GROUPS": named["top_groups"], "GROUP_SCORE": named["group_score"]}
    return {**found, **groups, "EXPERTS": named["input"].shape[-1] // named["groups"]}


def _unsupported(named: Named, dtypes: Sequence[torch.dtype]) -> str | None:
    if named["input"].shape[-1] > MOST_EXPERTS or named["k"] > MOST_CHOSEN:
        return f"kernels choose at most {MOST_CHOSEN} of {MOST_EXPERTS} experts"
    return None


MODULE = "tridal.library.router.kernels.route_top_k"
_STATISTICS = (Statistic("row_max", "max", term="x"), Statistic("row_sum", "sum", term="exp_term"))
_CONSTANTS = (("TOP", 1), ("SCORE", "softmax"), ("NORMALIZE", False))
_NUMBERS = (
    number("score", "softmax", range=SCORES), number("normalize", False),
    number("eps", 0.0, neutral=0.0, range=(0.0, 1e-3)),
    number("scaling_factor", 1.0, neutral=1.0, range=(0.5, 2.5)),
)  # fmt: skip
_K = number("k", type="int", range=(1, 4))
ROUTE_TOP_K = Op(
    name="route_top_k",
    kernels=(
        RowKernel(
            name="route_top_k",
            module=MODULE,
            reads=("x",),
            column_reads=("bias",),
            statistics=(
                *_STATISTICS, Statistic("chosen", "top", term="choice"), Statistic("chosen_sum", "sum", term="score"),
            ),
            row_value="factor",
            writes=(),
            top_writes=("weight", "index"),
            parameters=("eps", "scaling_factor"),
            constants=(*_CONSTANTS, ("GROUPS", 1), ("TOP_GROUPS", 1), ("GROUP_SCORE", "max"), ("EXPERTS", 1)),
            padding=float("-inf"),
            neutral_padding=True,
            live_tiles=5,
        ),
        RowKernel(
            name="route_top_k_backward",
            module=MODULE,
            reads=("x",),
            top_reads=("grad",),
            top_index="position",
            statistics=(
                *_STATISTICS, Statistic("chosen_sum", "sum", term="chosen_score"),
                Statistic("dot", "sum", term="product"),
            ),
            row_value="factor",
            writes=("gradient",),
            parameters=("eps", "scaling_factor"),
            constants=_CONSTANTS,
            padding=float("-inf"),
            neutral_padding=True,
            live_tiles=5,
        ),
    ),
    arguments=(
        per_element("input"), per_column("bias", optional=True, differentiable=False), _K, DTYPE,
        _NUMBERS[0], number("groups", 1, range=(1, 7)), number("top_groups", 1, range=(1, 2)),
        number("group_score", "max", range=GROUP_SCORES), *_NUMBERS[1:],
    ),
    results=(
        Result("weights", "top", lambda named: named["dtype"], gradient="grad"),
        Result("indices", "top_index"),
    ),
    reference=reference,
    gradient=gradient,
    saves=("input", "indices"),
    gradient_numbers=(_K, *_NUMBERS),
    dim=-1,
    constants=_constants,
    unsupported=_unsupported,
    cases="tridal.library.router.cases:ROUTE_TOP_K",
    benchmark="tridal.library.router.benchmark:ROUTE_TOP_K",
)  # fmt: skip
