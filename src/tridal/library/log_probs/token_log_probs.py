"""Log-probabilities of the logits of a linear layer in chunks: their declaration, their math, and their steps.

The op's tensors are input (N, H), linear_weight (C, H), and a target for each row (N). The backward computes the logits
of each chunk again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tridal.library.log_probs import log_probs as of_logits
from tridal.library.log_probs.classes import AtClasses, Numbers, check_ids, log_probs_at, total_gradient
from tridal.library.log_probs.log_probs import LOG_PROBS, NUMBERS, RETURN_CORRECT, RETURN_ENTROPY, numbers_of
from tridal.library.losses import linear_chunks
from tridal.library.losses.linear_chunks import CHUNK_NUMBERS, LAYER_TENSORS, in_chunks, logits_buffer, logits_of
from tridal.ops import Named, NoKernel, Op, Result, accumulator, compute, compute_gradient, number, whole
from tridal.pytorch import Steps, record_torch_call

Tensor = torch.Tensor


def reference(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None, ids: Tensor | None, reduce: Any,
    **numbers: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the results of log_probs and the log-probabilities of ids. It computes all logits at once."""
    logits = logits_of(input, linear_weight, linear_bias, numbers["matmul_dtype"])
    found = _of_logits(logits, target, numbers)
    at_ids = None
    if ids is not None:
        check_ids(TOKEN_LOG_PROBS.name, logits, target, ids, numbers["ignore_index"])
        at_ids = log_probs_at(logits, target, ids, found[-2:], numbers_of(numbers))
    return *found[:2], at_ids, *found[2:], None


def _of_logits(logits: Tensor, target: Tensor, numbers: Named) -> tuple[Tensor | None, ...]:
    return compute(
        LOG_PROBS, logits, target, *numbers_of(numbers), numbers["return_entropy"], numbers["return_correct"]
    )


def gradient(
    grad: Tensor | None, entropy_grad: Tensor | None, ids_grad: Tensor | None, input: Tensor, linear_weight: Tensor,
    target: Tensor, linear_bias: Tensor | None, ids: Tensor | None, row_max: Tensor, log_sum: Tensor,
    entropy: Tensor | None, *_: Any, output_mask: list[bool], **numbers: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of input, weight and bias. It computes all logits again."""
    logits, of_ids = logits_of(input, linear_weight, linear_bias, numbers["matmul_dtype"]), None
    if ids is not None and ids_grad is not None:
        of_ids, grad = (ids, ids_grad), torch.zeros_like(log_sum) if grad is None else grad
        # The saved numbers have no gradient.
        options = {**numbers, "return_entropy": entropy_grad is not None, "return_correct": False}
        _, entropy, _, row_max, log_sum = _of_logits(logits, target, options)  # type: ignore[assignment]
    rows = (row_max, log_sum, grad, entropy_grad, entropy)
    dlogits = _with_ids(_by_torch(logits, target, numbers_of(numbers)), logits, target, rows, of_ids, numbers)
    return linear_chunks.layer_gradients(dlogits, input, linear_weight, numbers["matmul_dtype"], output_mask)


def _by_torch(logits: Tensor, target: Tensor, numbers: Numbers) -> Callable[[Sequence[Tensor | None]], Tensor]:
    """Returns the function that computes the gradient of logits from the `row_reads` of the kernel."""

    def logits_gradient(rows: Sequence[Tensor | None]) -> Tensor:
        row_max, log_sum, grad, entropy_grad, entropy = rows
        given = (grad, entropy_grad, logits, target, row_max, log_sum, entropy)
        return compute_gradient(LOG_PROBS, *given, *numbers)[0]  # type: ignore[return-value]

    return logits_gradient


def _with_ids(
    logits_gradient: Callable[[Sequence[Tensor | None]], Tensor], logits: Tensor, target: Tensor,
    rows: Sequence[Tensor | None], of_ids: tuple[Tensor, Tensor] | None, numbers: Named, in_place: bool = False,
) -> Tensor:  # fmt: skip
    """Returns the gradient of logits for that of the `row_reads`, and of the log-probabilities of ids if there is one.

    `of_ids` are the ids and this gradient.
    """
    if of_ids is None:
        return logits_gradient(rows)
    ids, ids_grad = of_ids
    at_classes = AtClasses(logits, target, ids, numbers_of(numbers))
    grad = rows[2]
    assert grad is not None
    total = total_gradient(grad, target, ids, ids_grad, logits.shape[-1])
    dlogits = logits_gradient((*rows[:2], total, *rows[3:]))
    return at_classes.replaced(dlogits, total, ids_grad, rows, in_place)


def _steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    target, ids, numbers = named["target"], named["ids"], numbers_of(named)
    log_prob, entropy, at_ids, correct, *statistics, kept = (
        result.new(named) if want else None  # type: ignore[misc]
        for result, want in zip(TOKEN_LOG_PROBS.results, call.wanted, strict=True)
    )
    results = (log_prob, entropy, correct, *statistics)
    wanted = [want is not None for want in results]
    if ids is not None:
        wanted[-2:] = [True] * 2

    def of_chunk(logits: Tensor, rows: slice) -> None:
        try:
            found = of_logits.row_results(call, logits, target[rows], numbers, wanted)
        except NoKernel as reason:
            record_torch_call(LOG_PROBS.name, None, logits, target, otherwise=str(reason) or None)
            found = _of_logits(logits, target[rows], named)
        for result, part in zip(results, found, strict=True):
            if result is not None and part is not None:
                result[rows] = part
        if at_ids is not None:
            check_ids(call.op.name, logits, target[rows], ids[rows], numbers[2])
            at_ids[rows] = log_probs_at(logits, target[rows], ids[rows], found[-2:], numbers)

    in_chunks(call, named, [False] * 3, of_chunk, kept, at_once=kept is not None)
    return log_prob, entropy, at_ids, correct, *statistics, kept


def _gradient_steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    grad, entropy_grad, ids_grad, _, _, target, _, ids, row_max, log_sum, entropy, kept, *_ = named.values()
    numbers, grad = numbers_of(named), torch.zeros_like(log_sum) if grad is None else grad
    per_row = (row_max, log_sum, grad, entropy_grad, None if entropy_grad is None else entropy)
    may_overwrite = kept is None or call.overwrites

    def of_chunk(logits: Tensor, rows: slice) -> Tensor:
        index = target[rows]

        def logits_gradient(given: Sequence[Tensor | None]) -> Tensor:
            try:
                out = logits if may_overwrite else None
                return of_logits.logits_gradient(call, logits, index, given, numbers, out=out)
            except NoKernel as reason:
                name = LOG_PROBS.gradient_signature.name
                record_torch_call(name, None, logits, target, otherwise=str(reason) or None)
                return _by_torch(logits, index, numbers)(given)

        given = [None if tensor is None else tensor[rows] for tensor in per_row]
        of_ids = None if ids is None or ids_grad is None else (ids[rows], ids_grad[rows])
        return _with_ids(logits_gradient, logits, index, given, of_ids, named, in_place=True)

    saved = kept is not None
    at_once = saved and may_overwrite  # else, the gradient of all logits would need as much memory again
    found = in_chunks(call, named, named["output_mask"], of_chunk, kept, filled=saved, at_once=at_once)
    return linear_chunks.as_tensors(found, named)


def _per_row(named: Named) -> Tensor:
    input = named["input"]
    return input.new_empty(input.shape[:1], dtype=accumulator(input))  # type: ignore[no-any-return]


def _flags(named: Named) -> Tensor:
    input = named["input"]
    return input.new_empty(input.shape[:1], dtype=torch.bool)  # type: ignore[no-any-return]


def _has_ids(named: Named) -> bool:
    return named["ids"] is not None


def _per_id(named: Named) -> Tensor:
    return named["input"].new_empty(named["ids"].shape, dtype=accumulator(named["input"]))  # type: ignore[no-any-return]


def _kept_logits(named: Named) -> Tensor:
    return logits_buffer(named["input"], named["linear_weight"], named["matmul_dtype"])


SAVE_LOGITS = number("save_logits", False)
"""Whether the forward keeps the logits of all rows for the backward."""
TOKEN_LOG_PROBS = Op(
    name="token_log_probs",
    arguments=(
        *LAYER_TENSORS, whole("ids", optional=True), *NUMBERS, RETURN_ENTROPY, *CHUNK_NUMBERS, RETURN_CORRECT,
        SAVE_LOGITS,
    ),
    results=(
        Result("log_prob", "whole", new=_per_row, gradient="grad"),
        Result("entropy", "whole", needs=operator.itemgetter("return_entropy"), new=_per_row, gradient="entropy_grad"),
        Result("ids_log_prob", "whole", needs=_has_ids, new=_per_id, gradient="ids_grad"),
        Result("correct", "whole", needs=operator.itemgetter("return_correct"), new=_flags),
        Result("row_max", "whole", new=_per_row, returned=False),
        Result("log_sum", "whole", new=_per_row, returned=False),
        Result(
            "logits", "whole", needs=operator.itemgetter("save_logits"), new=_kept_logits, returned=False,
        ),
    ),
    kernels=(),
    reference=reference,
    gradient=gradient,
    steps=_steps,
    gradient_steps=_gradient_steps,
    prepares=False,
    dim=-1,
    saves=("input", "linear_weight", "target", "linear_bias", "ids", "row_max", "log_sum", "entropy", "logits"),
    gradient_numbers=(*NUMBERS, *CHUNK_NUMBERS),
    cases="tridal.library.log_probs.cases:TOKEN_LOG_PROBS",
)  # fmt: skip
"""It has no kernels of its own: it runs torch's matmul and the kernels of log_probs."""
