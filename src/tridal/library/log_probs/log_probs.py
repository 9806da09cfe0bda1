"""Log-probabilities of target classes, and entropies: their declaration, their math in torch's ops, and their steps.

Classes are the last dim of the logits. Scores are the logits, capped by `softcap` and then divided by `temperature`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tridal.library.log_probs.classes import Numbers, is_ignored, scaled, through_score
from tridal.library.losses.cross_entropy import EXACT, launch
from tridal.library.losses.loss_math import capped, check_range
from tridal.ops import (
    Named,
    NoKernel,
    Op,
    Result,
    RowKernel,
    RowReduce,
    Statistic,
    accumulator,
    index_per_row,
    number,
    per_element,
)
from tridal.pytorch import Steps, has_values

Tensor = torch.Tensor
numbers_of = operator.itemgetter("temperature", "softcap", "ignore_index")

WITH_ENTROPY = RowKernel(
    name="log_probs_and_entropy", module="tridal.library.log_probs.kernels.log_probs", reads=("x",), row_index="index",
    statistics=(
        Statistic("row_max", "max", term="score"),
        Statistic("row_sum", "accurate_sum", term="exp_term", rebase="rebase"),
        Statistic("moment", "accurate_sum", term="moment_term", rebase="rebase_moment"),
    ),
    row_value="log_sum", writes=(), row_writes=("log_prob", "entropy", "row_max", "log_sum"),
    parameters=("inverse_temperature",), padding=float("-inf"), neutral_padding=True, live_tiles=2,
    constants=(("SOFTCAP", None), ("IGNORE_INDEX", None)),
)  # fmt: skip
FORWARD = replace(
    WITH_ENTROPY, name="log_probs", statistics=WITH_ENTROPY.statistics[:2],
    row_writes=("log_prob", "row_max", "log_sum"), live_tiles=1,
)  # fmt: skip
"""Without the entropy, there are two statistics, which programs can exchange."""


def _with_correct(kernel: RowKernel) -> RowKernel:
    """Returns the kernel that also writes whether the target is the argmax."""
    return replace(
        kernel, name=f"{kernel.name}_and_correct",
        row_writes=(*kernel.row_writes[:-2], "correct", *kernel.row_writes[-2:]),
        statistics=(*kernel.statistics, Statistic("first", "max", term="first_term", rebase="rebase_first")),
        live_tiles=kernel.live_tiles + 1,
    )  # fmt: skip


_FORWARDS = {
    (False, False): FORWARD, (True, False): WITH_ENTROPY, (False, True): _with_correct(FORWARD),
    (True, True): _with_correct(WITH_ENTROPY),
}  # fmt: skip
"""The kernels without and with the entropy, and whether the target is the argmax."""
ROW_RESULTS = ("log_prob", "entropy", "correct", "row_max", "log_sum")
"""The numbers of a row that kernels write. They are the results of the op."""
BACKWARD = replace(
    WITH_ENTROPY, name="log_probs_backward",
    row_reads=("row_max", "row_log_sum", "grad", "entropy_grad", "row_entropy"), statistics=(),
    row_value="target_gradient", writes=("gradient",), row_writes=(), padding=0.0, neutral_padding=False,
)  # fmt: skip


def row_results(
    call: Steps, logits: Tensor, target: Tensor, numbers: Numbers, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Returns for each row the `ROW_RESULTS` that are wanted, or None. The first one always is."""
    temperature, softcap, ignore_index = numbers
    if call.interpreted:
        call.run(check_range, call.op.name, target, logits.shape[-1], ignore_index)
    if wanted[2] and logits.shape[-1] > EXACT:
        raise NoKernel("kernels find the argmax of at most 16,777,216 classes")
    kernel, names = _FORWARDS[bool(wanted[1]), bool(wanted[2])], ROW_RESULTS
    writes = [name for name, want in zip(names, wanted, strict=True) if want]
    found = launch(
        call, kernel, (logits, target), ignore_index, softcap, writes=writes,
        dtypes=(accumulator(logits),) * len(writes), inverse_temperature=_inverse(temperature),
    )  # fmt: skip
    results = dict(zip(writes, found, strict=True))
    if wanted[2]:
        results["correct"] = call.torch(Tensor.bool, results["correct"])
    return tuple(results.get(name) for name in names)


def logits_gradient(
    call: Steps, logits: Tensor, target: Tensor, rows: Sequence[Tensor | None], numbers: Numbers,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Returns the gradient of the logits. `rows` are the `row_reads` of the kernel; the last two may be None."""
    temperature, softcap, ignore_index = numbers
    found = launch(
        call, BACKWARD, (logits, *rows, target), ignore_index, softcap, dtypes=(logits.dtype,), out=out,
        inverse_temperature=_inverse(temperature),
    )  # fmt: skip
    return found[0]  # type: ignore[no-any-return]


def _inverse(temperature: float) -> float | None:
    return None if temperature == 1 else 1 / temperature


def _steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    return row_results(call, named["input"], named["target"], numbers_of(named), call.wanted)


def _gradient_steps(call: Steps, named: Named) -> tuple[Tensor]:
    grad, entropy_grad, input, target, row_max, log_sum, entropy, *_ = named.values()
    grad = call.torch(torch.zeros_like, log_sum) if grad is None else grad
    rows = (row_max, log_sum, grad, entropy_grad, None if entropy_grad is None else entropy)
    return (logits_gradient(call, input, target, rows, numbers_of(named)),)


def _of_scores(
    input: Tensor, target: Tensor, reduce: RowReduce, numbers: Numbers
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the capped logits, the maximum of the scores, the scores minus it, their exponentials, and their sum.

    Also returns whether each target is ignored, and whether it is a class.
    """
    temperature, softcap, ignore_index = numbers
    y = capped(input, softcap)
    x = scaled(y, temperature)
    row_max = reduce(x, "max").detach()  # it cancels out
    row_max = torch.where(row_max == -torch.inf, 0.0, row_max)
    differences = x - row_max
    exp = differences.exp()
    valid = (target >= 0) & (target < reduce.count)
    return y, row_max, differences, exp, reduce(exp, "sum"), is_ignored(target, ignore_index), valid


def _entropy(differences: Tensor, exp: Tensor, row_sum: Tensor, reduce: RowReduce) -> Tensor:
    """Returns -sum(p * log(p)). The term of p = 0 is 0."""
    return row_sum.log() - reduce(exp * differences.masked_fill(exp == 0, 0.0), "sum") / row_sum


def _correct(scores: Tensor, target: Tensor, reduce: RowReduce) -> Tensor:
    """Returns whether the target is the first class with the largest score, or the first NaN of its row."""
    exact = reduce.count <= EXACT
    columns, far = reduce.columns(scores).to(scores.dtype if exact else torch.float64), EXACT if exact else 2**53
    best = torch.where(scores == reduce(scores, "max"), -columns, -torch.inf)
    first = reduce(torch.where(scores.isnan(), far - columns, best), "max")
    return torch.where(first > 0, far - first, -first) == target


def reference(input: Tensor, target: Tensor, reduce: RowReduce, **numbers: Any) -> tuple[Tensor | None, ...]:
    """Returns `ROW_RESULTS`: numbers of each row's target, the entropy, the maximum m, and log(sum(exp(score - m)))."""
    y, row_max, differences, exp, row_sum, ignored, valid = _of_scores(input, target, reduce, numbers_of(numbers))
    if reduce.sharded:
        picked = reduce(torch.where(reduce.columns(differences) == target, differences, 0.0), "sum")
    else:
        if input.is_cpu and has_values(input, target):
            check_range(LOG_PROBS.name, target, reduce.count, numbers["ignore_index"])
        picked = differences.gather(reduce.dim, target.clamp(0, reduce.count - 1))
    log_prob = torch.where(ignored, 0.0, torch.where(valid, picked, torch.nan) - row_sum.log())
    entropy = correct = None
    if numbers["return_entropy"]:
        entropy = torch.where(ignored, 0.0, _entropy(differences, exp, row_sum, reduce))
    if numbers["return_correct"]:
        correct = ~ignored & _correct(scaled(y.detach(), numbers["temperature"]), target, reduce)
    return log_prob, entropy, correct, row_max, row_sum.log()


def gradient(
    grad: Tensor | None, entropy_grad: Tensor | None, input: Tensor, target: Tensor, row_max: Tensor, log_sum: Tensor,
    entropy: Tensor | None, reduce: RowReduce, **numbers: Any,
) -> Tensor:  # fmt: skip
    """Returns (grad * (1 of the target - p) - entropy_grad * p * (log(p) + entropy)) / temperature, through the cap."""
    given = numbers_of(numbers)
    y, _, differences, exp, row_sum, ignored, valid = _of_scores(input, target, reduce, given)
    p, peak = exp / row_sum, torch.zeros_like(row_sum) if grad is None else grad
    peak = torch.where(valid, peak, torch.nan)
    dx = torch.where(reduce.columns(y) == target, peak, 0.0) - p * peak
    if entropy_grad is not None:
        deviation = (differences - row_sum.log()).masked_fill(exp == 0, 0.0)
        deviation = deviation + _entropy(differences, exp, row_sum, reduce)
        dx = dx - p * deviation * entropy_grad
    return through_score(dx, y, given).masked_fill(ignored, 0.0)


NUMBERS = (
    number("temperature", neutral=1.0, range=(0.5, 2.0)), number("softcap", optional=True, range=(1.0, 60.0)),
    number("ignore_index", type="int", optional=True, range=(-200, -100)),
)  # fmt: skip
RETURN_ENTROPY = number("return_entropy", type="bool", range=(True, False))
RETURN_CORRECT = number("return_correct", False)


LOG_PROBS = Op(
    name="log_probs",
    arguments=(per_element("input"), index_per_row("target"), *NUMBERS, RETURN_ENTROPY, RETURN_CORRECT),
    results=(
        Result("log_prob", "row", gradient="grad"),
        Result("entropy", "row", needs=operator.itemgetter("return_entropy"), gradient="entropy_grad"),
        Result("correct", "row", torch.bool, needs=operator.itemgetter("return_correct")),
        Result("row_max", "row", returned=False),
        Result("log_sum", "row", returned=False),
    ),
    kernels=(FORWARD, BACKWARD, *[kernel for kernel in _FORWARDS.values() if kernel is not FORWARD]),
    reference=reference,
    gradient=gradient,
    steps=_steps,
    gradient_steps=_gradient_steps,
    any_rows=True,
    dim=-1,
    saves=("input", "target", "row_max", "log_sum", "entropy"),
    gradient_numbers=NUMBERS,
    cases="tridal.library.log_probs.cases:LOG_PROBS",
    benchmark="tridal.library.log_probs.benchmark:LOG_PROBS",
)  # fmt: skip
