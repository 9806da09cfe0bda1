"""What the conformance cases of cross_entropy and linear_cross_entropy need besides their declarations."""

from __future__ import annotations

import torch

from tridal.library.losses.loss_math import classes_dim
from tridal.ops import number
from tridal.testing import Case, OpCases, make_values

Tensor = torch.Tensor
_FEATURES = 24
"""Number of elements of a row of the input of linear_cross_entropy."""
_FORMULAS = {"_log_softmax": lambda x, dim, half_to_float: x - x.logsumexp(dim, True)}


def _tensors(case: Case) -> dict[str, Tensor]:
    """Returns targets, some of which are ignored, and weights of classes."""
    dim = classes_dim(torch.empty(case.shape, device="meta"))
    classes, rows = case.shape[dim], (*case.shape[:dim], *case.shape[dim + 1 :])
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(classes, rows, generator=generator)
    target.view(-1)[2::5] = dict(case.numbers).get("ignore_index", -100)
    return {"target": target, "weight": torch.rand(classes, generator=generator, dtype=torch.float64)}


def layer_tensors(case: Case) -> dict[str, Tensor]:
    """Returns the tensors of a linear layer, whose logits have the shape of the case."""
    rows, classes = case.shape
    shapes = {"input": (rows, _FEATURES), "linear_weight": (classes, _FEATURES), "linear_bias": (classes,)}
    return {name: make_values("normal", shape, 0, seed=i + 1) * 0.5 for i, (name, shape) in enumerate(shapes.items())}


def _is_defined(case: Case) -> bool:
    """Returns whether there are classes, and weights of classes have the dtype of the logits."""
    return len(case.shape) > 0 and case.shape[case.dim] > 0 and "weight" not in dict(case.dtypes)


def is_small_matrix(case: Case) -> bool:
    """Returns whether an op of a linear layer is defined for a case: for few rows of a few logits."""
    ordinary = case.values == "normal" and case.layout == "contiguous" and case.plan == "planned"
    return ordinary and _is_defined(case) and len(case.shape) == 2 and max(case.shape) < 1000


CROSS_ENTROPY = OpCases(
    tensors=_tensors,
    is_defined=_is_defined,
    options=(number("return_lse", False, range=(False, True)),),
    formulas=_FORMULAS,
)
LINEAR_CROSS_ENTROPY = OpCases(
    tensors=lambda case: _tensors(case) | layer_tensors(case), is_defined=is_small_matrix, formulas=_FORMULAS
)  # fmt: skip
