"""The public function route_top_k, and the checks of its arguments."""

from __future__ import annotations

from typing import Any, Literal

import torch

from tridal.errors import ShapeError
from tridal.library.router.route_top_k import GROUP_SCORES, ROUTE_TOP_K, SCORES
from tridal.ops import (
    INTEGERS,
    Arguments,
    check_bool,
    check_choice,
    check_dtype,
    check_floating,
    check_number,
    check_tensor,
    compute,
    wrong,
)
from tridal.pytorch import check_arguments, op_function, torch_computes

Tensor = torch.Tensor


@op_function(ROUTE_TOP_K, names={"logits": "input"})
def route_top_k(
    call: Any, logits: Tensor, k: int, *, score: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax",
    bias: Tensor | None = None, groups: int = 1, top_groups: int = 1, group_score: Literal["max", "top2"] = "max",
    normalize: bool = False, eps: float = 0.0, scaling_factor: float = 1.0, dtype: torch.dtype | None = None,
    stream: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The weights and the indices of the k experts of each token, the router of a mixture of experts.

    The k experts with the largest score + bias are chosen, the first choice first. Ties go to the expert with the lower
    index, and NaN is larger than all numbers. The weights are the scores without the bias. With `normalize=True`, these
    are divided by their sum, which makes the softmax over all experts that of the k largest logits.

    Args:
        logits: a tensor whose last dim contains the experts, with any strides.
        k: the number of experts of each token.
        score: "softmax" over all experts, "sigmoid", or "sqrtsoftplus": sqrt(log(1 + exp(logit))), as in DeepSeek-V4.
        bias: a number per expert that influences the choice only. It has no gradient.
        groups: how many groups of neighboring experts there are. Experts are chosen in `top_groups` of them only, as in
            DeepSeek-V2 and DeepSeek-V3.
        top_groups: how many groups are chosen.
        group_score: the score of a group: "max" is the largest score + bias of its experts, and "top2" the sum of the
            largest two.
        normalize: whether weights are divided by their sum + `eps`.
        eps: added to the sum.
        scaling_factor: multiplies the weights.
        dtype: the dtype of the weights, by default that of the logits. Scores are computed in float32 (float64 for
            float64).
        stream: see `tridal.softmax`.

    Returns:
        The weights and their int64 indices, both with the shape of the logits and k in place of the experts.

    Raises:
        TypeError, ValueError, DTypeError, ShapeError, TensorDeviceError, LayoutError, StreamError: an
            argument is wrong.
        NoBackendError: no backend serves the tensors and the setting `fallback` is "error".

    Example:
        >>> logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
        >>> tridal.route_top_k(logits, 2)
        (tensor([[0.6439, 0.2369]]), tensor([[1, 2]]))
        >>> tridal.route_top_k(logits, 2, normalize=True)
        (tensor([[0.7311, 0.2689]]), tensor([[1, 2]]))
        >>> tridal.route_top_k(logits, 1, score="sigmoid", bias=torch.tensor([1.0, 0.0, 0.0, 0.0]))
        (tensor([[0.7311]]), tensor([[0]]))
    """
    op = ROUTE_TOP_K.name
    check_tensor(op, "logits", logits)
    check_floating(op, "logits", logits)
    if not logits.dim():
        raise ShapeError(wrong(op, "logits", "have a dim of experts", "a tensor without dims"))
    experts = logits.shape[-1]
    check_choice(op, "score", score, SCORES)
    check_choice(op, "group_score", group_score, GROUP_SCORES)
    check_bool(op, "normalize", normalize)
    check_dtype(op, "dtype", dtype)
    check_number(op, "eps", eps, "be at least 0", lambda value: value >= 0)
    check_number(op, "scaling_factor", scaling_factor)
    least = 2 if group_score == "top2" else 1
    _check_int("groups", groups, lambda n: n >= 1 and experts % n == 0, f"be a divisor of {experts}, the experts")
    if groups > 1 and experts // groups < least:
        raise ValueError(wrong(op, "group_score", "be 'max' for groups of one expert", repr(group_score)))
    _check_int("top_groups", top_groups, lambda n: 1 <= n <= groups, f"be from 1 to {groups}, the groups")
    most = experts // groups * top_groups
    of = "the experts" if groups == 1 else "the experts of the chosen groups"
    _check_int("k", k, lambda n: 1 <= n <= most, f"be from 1 to {most}, {of}")
    dtype = logits.dtype if dtype is None else dtype
    arguments = (
        logits, bias, int(k), dtype, score, int(groups), int(top_groups), group_score, normalize, float(eps),
        float(scaling_factor),
    )  # fmt: skip
    check_arguments(Arguments(ROUTE_TOP_K.signature, arguments))
    if torch_computes(op, logits, bias):
        return compute(ROUTE_TOP_K, *arguments)  # type: ignore[return-value]
    return call(*arguments, results=2, checked=True)  # type: ignore[no-any-return]


def _check_int(name: str, value: Any, valid: Any, expected: str) -> None:
    check_number(ROUTE_TOP_K.name, name, value, expected, valid, types=INTEGERS)
