"""Log-probabilities of several given classes of each row, and the KL divergence to a teacher, in torch's ops.

The classes are columns (..., K). Kernels compute statistics of all classes. The functions here compute K numbers per
row from these, so they allocate nothing of the size of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tridal.library.losses.loss_math import capped, check_range
from tridal.ops import accumulator
from tridal.pytorch import has_values, is_distributed

Tensor = torch.Tensor
Numbers = tuple[float, float | None, int | None]
"""temperature, softcap and ignore_index."""


def scaled(x: Tensor, temperature: float) -> Tensor:
    """x / temperature."""
    return x if temperature == 1 else x * (1 / temperature)


def through_score(dx: Tensor, y: Tensor, numbers: Numbers) -> Tensor:
    """Returns the gradient of logits from that of their scores. `y` are the capped logits."""
    temperature, softcap, _ = numbers
    dx = scaled(dx, temperature)
    return dx if softcap is None else dx * (1 - (y / softcap).square())


def is_ignored(target: Tensor, ignore_index: int | None) -> Tensor:
    """Whether each row's target is ignored, as a tensor of bools."""
    return torch.zeros_like(target, dtype=torch.bool) if ignore_index is None else target == ignore_index


def check_ids(op: str, logits: Tensor, target: Tensor, ids: Tensor, ignore_index: int | None) -> None:
    """Raises IndexError if a class of a row that is not ignored is out of range, on the CPU."""
    if logits.is_cpu and has_values(logits, target, ids):
        check_range(op, ids[~is_ignored(target, ignore_index)], logits.shape[-1], None, "ids")


def _is_class(columns: Tensor, classes: int) -> Tensor:
    return (columns >= 0) & (columns < classes)


def _capped_at(logits: Tensor, columns: Tensor, softcap: float | None) -> Tensor:
    """Returns the capped logits of classes, in the dtype of sums. Columns out of range are those of some class."""
    columns = columns.clamp(0, logits.shape[-1] - 1)
    if is_distributed(logits):
        from tridal.library.losses.dtensor import gather

        found = gather(logits, columns)
    else:
        found = logits.gather(-1, columns)
    return capped(found.to(accumulator(logits)), softcap)


def log_probs_at(
    logits: Tensor, target: Tensor, ids: Tensor, statistics: Sequence[Tensor | None], numbers: Numbers
) -> Tensor:
    """Returns log(p) of classes (..., K) from the maximum m of the row's scores and log(sum(exp(score - m)))."""
    (temperature, softcap, ignore_index), (row_max, log_sum) = numbers, statistics
    assert row_max is not None
    assert log_sum is not None
    scores = scaled(_capped_at(logits, ids, softcap), temperature)
    found = (scores - row_max.unsqueeze(-1)) - log_sum.unsqueeze(-1)
    found = torch.where(_is_class(ids, logits.shape[-1]), found, torch.nan)
    return found.masked_fill(is_ignored(target, ignore_index).unsqueeze(-1), 0.0)


def total_gradient(grad: Tensor, target: Tensor, ids: Tensor, ids_grad: Tensor, classes: int) -> Tensor:
    """Returns the factor of -p in the gradient of a row's scores: NaN if the target or an id is out of range."""
    valid = _is_class(torch.cat((target.unsqueeze(-1), ids), -1), classes).all(-1)
    return torch.where(valid, grad + ids_grad.sum(-1), torch.nan)


class AtClasses:
    """The logits of target and ids in a row, from which the gradient of these logits follows, rounded once.

    The kernel of the gradient gets the `total_gradient` as that of the target, so it is right for all other classes.
    The object has to be made before the kernel overwrites the logits.
    """

    def __init__(self, logits: Tensor, target: Tensor, ids: Tensor, numbers: Numbers) -> None:
        self._target, self._numbers = target, numbers
        columns = torch.cat((target.unsqueeze(-1), ids), -1).clamp(0, logits.shape[-1] - 1)
        self._columns, self._order = columns.sort(-1)
        self._y = _capped_at(logits, self._columns, numbers[1])

    def replaced(
        self, dlogits: Tensor, total: Tensor, ids_grad: Tensor, rows: Sequence[Tensor | None], in_place: bool
    ) -> Tensor:
        """Returns the gradient of the logits, in which that of these classes is replaced.

        `rows` are row_max, log_sum, grad, entropy_grad and entropy; the last two may be None.
        """
        columns: list[Any] = [None if row is None else row.unsqueeze(-1) for row in rows]
        row_max, log_sum, grad, entropy_grad, entropy = columns
        given = torch.cat((grad, ids_grad), -1).gather(-1, self._order)
        # A class that occurs several times has the sum of its gradients each time.
        number = self._columns.diff(dim=-1, prepend=self._columns[..., :1]).ne(0).cumsum(-1)
        peaks = torch.zeros_like(given).scatter_add(-1, number, given).gather(-1, number)
        log_p = (scaled(self._y, self._numbers[0]) - row_max) - log_sum
        p = log_p.exp()
        dx = peaks - p * total.unsqueeze(-1)
        if entropy_grad is not None:
            dx = dx - p * (log_p + entropy).masked_fill(p == 0, 0.0) * entropy_grad
        dx = through_score(dx, self._y, self._numbers)
        ignored = is_ignored(self._target, self._numbers[2]).unsqueeze(-1)
        dx = dx.masked_fill(ignored, 0.0).to(dlogits.dtype)
        if in_place:
            return dlogits.scatter_(-1, self._columns, dx)
        # The derivative of a scatter is wrong if an index occurs several times.
        is_first = number.diff(dim=-1, prepend=number[..., :1] - 1) > 0
        missing = torch.where(is_first, dx - dlogits.gather(-1, self._columns), 0.0)
        return dlogits.scatter_add(-1, self._columns, missing)


def with_ids(
    compute: Callable[[Tensor], Sequence[Tensor | None]], logits: Tensor, target: Tensor, ids: Tensor, numbers: Numbers
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns log-probability, entropy and correct of the target, and the log-probabilities of ids (..., K).

    `compute` returns the first three for a class of each row. It is called with the most probable one of target and
    ids, whose log-probability is finite. That of another class differs by the difference of the scores.
    """
    temperature, softcap, ignore_index = numbers
    columns = torch.cat((target.unsqueeze(-1), ids), -1)
    ignored, valid = is_ignored(target, ignore_index), _is_class(columns, logits.shape[-1])
    scores = scaled(_capped_at(logits, columns, softcap), temperature)
    best = scores == scores.detach().amax(-1, keepdim=True)
    last = logits.shape[-1] - 1
    # Of equal scores, the first class, as in the argmax of the row.
    anchor = torch.where(best, columns.clamp(0, last), last).amin(-1)
    position = (columns.clamp(0, last) == anchor.unsqueeze(-1)).to(torch.int8).argmax(-1, keepdim=True)
    log_prob, entropy, correct = compute(torch.where(ignored, target, anchor))
    assert log_prob is not None
    differences = (scores - scores.gather(-1, position)).masked_fill(scores == -torch.inf, -torch.inf)
    found = torch.where(valid, log_prob.unsqueeze(-1) + differences, torch.nan)
    found = found.masked_fill(ignored.unsqueeze(-1), 0.0)
    if correct is not None:
        correct = correct & (anchor == target)
    return found[..., 0], entropy, correct, found[..., 1:]


def divergence(found: Tensor, teacher: Tensor, ignored: Tensor) -> Tensor:
    """Returns sum(p * (log(p) - found)) over the classes of each row, where log(p) are those of a teacher."""
    log_p = teacher.detach().to(found.dtype)
    terms = (log_p.exp() * (log_p - found)).masked_fill(log_p == -torch.inf, 0.0)
    return terms.sum(-1).masked_fill(ignored, 0.0)
