"""What the conformance cases of log_probs and token_log_probs need besides their declarations."""

from __future__ import annotations

import torch

from tridal.library.losses.cases import is_small_matrix, layer_tensors
from tridal.testing import Case, OpCases

Tensor = torch.Tensor


def _target(case: Case) -> dict[str, Tensor]:
    """Returns targets, some of which are ignored if the case ignores an index."""
    target = torch.randint(case.shape[-1], case.shape[:-1], generator=torch.Generator().manual_seed(3))
    ignored = dict(case.numbers).get("ignore_index")
    if ignored is not None:
        target.view(-1)[2::5] = ignored
    return {"target": target}


def _of_layer(case: Case) -> dict[str, Tensor]:
    """Returns the tensors of a linear layer, its targets, and three classes of each row, two of which are the same."""
    rows, classes = case.shape
    ids = torch.randint(classes, (rows, 3), generator=torch.Generator().manual_seed(4))
    ids[:, 1] = ids[:, 0]
    return layer_tensors(case) | _target(case) | {"ids": ids}


def _has_classes(case: Case) -> bool:
    return len(case.shape) > 0 and case.shape[-1] > 0


LOG_PROBS = OpCases(tensors=_target, is_defined=_has_classes)
TOKEN_LOG_PROBS = OpCases(tensors=_of_layer, is_defined=is_small_matrix)
