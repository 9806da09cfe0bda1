"""Log-probabilities of the logits of a linear layer in chunks: their declaration, their maths, and their steps.

The op's tensors are input (N, H), linear_weight (C, H), and a target for each row (N). The backward computes the logits
of each chunk again.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from tridal.library.log_probs import log_probs as of_logits
from tridal.library.log_probs.log_probs import LOG_PROBS, NUMBERS, RETURN_ENTROPY, numbers_of
from tridal.library.losses import linear_chunks
from tridal.library.losses.linear_chunks import CHUNK_NUMBERS, LAYER_TENSORS, in_chunks, logits_of
from tridal.ops import Named, NoKernel, Op, Result, accumulator, compute, compute_gradient
from tridal.pytorch import Steps

Tensor = torch.Tensor


def reference(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None, reduce: Any, **numbers: Any
) -> tuple[Tensor | None, ...]:
    """Returns the results of log_probs. It computes all logits at once."""
    logits = logits_of(input, linear_weight, linear_bias, numbers["matmul_dtype"])
    return compute(LOG_PROBS, logits, target, *numbers_of(numbers), numbers["return_entropy"])


def gradient(
    grad: Tensor | None, entropy_grad: Tensor | None, input: Tensor, linear_weight: Tensor, target: Tensor,
    linear_bias: Tensor | None, row_max: Tensor, log_sum: Tensor, entropy: Tensor | None, *_: Any,
    output_mask: list[bool], **numbers: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of input, weight and bias. It computes all logits at once."""
    logits = logits_of(input, linear_weight, linear_bias, numbers["matmul_dtype"])
    given = (grad, entropy_grad, logits, target, row_max, log_sum, entropy, *numbers_of(numbers))
    dlogits = compute_gradient(LOG_PROBS, *given)[0]
    assert dlogits is not None
    return linear_chunks.layer_gradients(dlogits, input, linear_weight, numbers["matmul_dtype"], output_mask)


def _steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    target, numbers = named["target"], numbers_of(named)
    results = [_per_row(named) if want else None for want in call.wanted]

    def of_chunk(logits: Tensor, rows: slice) -> None:
        try:
            found = of_logits.row_results(call, logits, target[rows], numbers, call.wanted)
        except NoKernel:
            found = compute(LOG_PROBS, logits, target[rows], *numbers, named["return_entropy"])
        for result, part in zip(results, found, strict=True):
            if result is not None and part is not None:
                result[rows] = part

    in_chunks(call, named, [False] * 3, of_chunk)
    return tuple(results)


def _gradient_steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    grad, entropy_grad, _, _, target, _, row_max, log_sum, entropy, *_ = named.values()
    numbers, grad = numbers_of(named), torch.zeros_like(log_sum) if grad is None else grad
    per_row = (row_max, log_sum, grad, entropy_grad, None if entropy_grad is None else entropy)

    def of_chunk(logits: Tensor, rows: slice) -> Tensor:
        given = [None if tensor is None else tensor[rows] for tensor in per_row]
        try:
            return of_logits.logits_gradient(call, logits, target[rows], given, numbers, out=logits)
        except NoKernel:
            saved = (*given[2:4], logits, target[rows], *given[:2], given[4])
            return compute_gradient(LOG_PROBS, *saved, *numbers)[0]  # type: ignore[return-value]

    return linear_chunks.as_tensors(in_chunks(call, named, named["output_mask"], of_chunk), named)


def _per_row(named: Named) -> Tensor:
    input = named["input"]
    return input.new_empty(input.shape[:1], dtype=accumulator(input))  # type: ignore[no-any-return]


TOKEN_LOG_PROBS = Op(
    name="token_log_probs",
    arguments=(*LAYER_TENSORS, *NUMBERS, RETURN_ENTROPY, *CHUNK_NUMBERS),
    results=(
        Result("log_prob", "whole", new=_per_row, gradient="grad"),
        Result("entropy", "whole", needs=operator.itemgetter("return_entropy"), new=_per_row, gradient="entropy_grad"),
        Result("row_max", "whole", new=_per_row, returned=False),
        Result("log_sum", "whole", new=_per_row, returned=False),
    ),
    kernels=(),
    reference=reference,
    gradient=gradient,
    steps=_steps,
    gradient_steps=_gradient_steps,
    prepares=False,
    dim=-1,
    saves=("input", "linear_weight", "target", "linear_bias", "row_max", "log_sum", "entropy"),
    gradient_numbers=(*NUMBERS, *CHUNK_NUMBERS),
    cases="tridal.library.log_probs.cases:TOKEN_LOG_PROBS",
)  # fmt: skip
"""It has no kernels of its own: it runs torch's matmul and the kernels of log_probs."""
