"""Log-probabilities of the logits of a linear layer in chunks: their declaration, their maths, and their steps.

The op's tensors are input (N, H), linear_weight (C, H), and a target for each row (N). The backward computes the logits
of each chunk again.
"""

from __future__ import annotations

from typing import Any

import torch

from tridal.library.log_probs.log_probs import (
    LOG_PROBS,
    NUMBERS,
    RETURN_ENTROPY,
    Numbers,
    has_entropy,
    logits_gradient,
    row_results,
)
from tridal.library.losses.linear_chunks import CHUNK_NUMBERS, as_tensors, in_chunks, layer_gradients, logits_of
from tridal.ops import Named, NoKernel, Op, Result, RowReduce, accumulator, compute, compute_gradient, whole
from tridal.pytorch import Steps, without_autocast

Tensor = torch.Tensor


def reference(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None, reduce: RowReduce, **numbers: Any
) -> tuple[Tensor | None, ...]:
    """Returns the results of log_probs. It computes all logits at once."""
    logits = logits_of(input, linear_weight, linear_bias, numbers["matmul_dtype"])
    return compute(LOG_PROBS, logits, target, *_numbers(numbers), numbers["return_entropy"])


def gradient(
    grad: Tensor | None, entropy_grad: Tensor | None, input: Tensor, linear_weight: Tensor, target: Tensor,
    linear_bias: Tensor | None, row_max: Tensor, log_sum: Tensor, entropy: Tensor | None, reduce: RowReduce,
    output_mask: list[bool], **numbers: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of input, weight and bias. It computes all logits at once."""
    dtype = numbers["matmul_dtype"]
    logits = logits_of(input, linear_weight, linear_bias, dtype)
    saved = (logits, target, row_max, log_sum, entropy)
    dlogits = compute_gradient(LOG_PROBS, grad, entropy_grad, *saved, *_numbers(numbers))[0]
    assert dlogits is not None
    return layer_gradients(dlogits, input, linear_weight, dtype, output_mask)


def _numbers(named: Named) -> Numbers:
    return named["temperature"], named["softcap"], named["ignore_index"]


def _steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    target, numbers = named["target"], _numbers(named)
    wanted, entropy = tuple(call.wanted), has_entropy(named)
    results = [_per_row(named) if want else None for want in wanted]

    def of_chunk(logits: Tensor, rows: slice) -> None:
        try:
            found = row_results(call, logits, target[rows], numbers, wanted)
        except NoKernel:
            found = compute(LOG_PROBS, logits, target[rows], *numbers, entropy)
        for result, part in zip(results, found, strict=True):
            if result is not None and part is not None:
                result[rows] = part

    with without_autocast(target.device.type):
        in_chunks(call, named, [False] * 3, of_chunk)
    return tuple(results)


def _gradient_steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    target, numbers = named["target"], _numbers(named)
    row_max, log_sum, grad, entropy_grad, entropy = (
        named[name] for name in ("row_max", "log_sum", "grad", "entropy_grad", "entropy")
    )
    grad = torch.zeros_like(log_sum) if grad is None else grad
    per_row = (row_max, log_sum, grad, entropy_grad, None if entropy_grad is None else entropy)

    def of_chunk(logits: Tensor, rows: slice) -> Tensor:
        given = tuple(None if tensor is None else tensor[rows] for tensor in per_row)
        try:
            return logits_gradient(call, logits, target[rows], given, numbers, out=logits)
        except NoKernel:
            saved = (logits, target[rows], *given[:2], given[4])
            found = compute_gradient(LOG_PROBS, *given[2:4], *saved, *numbers)[0]
            assert found is not None
            return found

    with without_autocast(target.device.type):
        grads = in_chunks(call, named, named["output_mask"], of_chunk)
    return as_tensors(grads, named)


def _per_row(named: Named) -> Tensor:
    """Returns an empty tensor with a number per row."""
    input = named["input"]
    return input.new_empty(input.shape[:1], dtype=accumulator(input))  # type: ignore[no-any-return]


TOKEN_LOG_PROBS = Op(
    name="token_log_probs",
    arguments=(
        whole("input", differentiable=True), whole("linear_weight", differentiable=True), whole("target"),
        whole("linear_bias", optional=True, differentiable=True), *NUMBERS, RETURN_ENTROPY, *CHUNK_NUMBERS,
    ),
    results=(
        Result("log_prob", "whole", new=_per_row, gradient="grad"),
        Result("entropy", "whole", needs=has_entropy, new=_per_row, gradient="entropy_grad"),
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
