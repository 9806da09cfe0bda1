"""Log-probabilities and entropies of tokens: the public functions."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch

from tridal.errors import ShapeError
from tridal.library.log_probs.classes import check_ids, with_ids
from tridal.library.log_probs.log_probs import LOG_PROBS
from tridal.library.log_probs.rows import PerRow
from tridal.library.log_probs.token_log_probs import TOKEN_LOG_PROBS
from tridal.library.losses.checks import check_layer, check_numbers
from tridal.ops import Arguments, check_bool, check_floating, wrong
from tridal.pytorch import (
    autocast_enabled,
    call_op,
    check_tensors,
    is_distributed,
    op_function,
    records_gradient,
    saves_through_hooks,
    transforms_active,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tensor = torch.Tensor
_compiling = torch.compiler.is_dynamo_compiling


class _Options(TypedDict, total=False):
    """The arguments of `log_probs` that do not change the type of the result."""

    temperature: float
    softcap: float | None
    ignore_index: int | None
    mask: Tensor | None
    stream: Any


class _TokenOptions(_Options, total=False):
    """The same of `token_log_probs`."""

    linear_bias: Tensor | None
    chunk_size: int | None
    accum_dtype: torch.dtype | None
    save_logits: bool


@overload
def log_probs(
    logits: Tensor, target: Tensor, *, return_entropy: Literal[False] = False, **options: Unpack[_Options],
) -> Tensor: ...  # fmt: skip
@overload
def log_probs(
    logits: Tensor, target: Tensor, *, return_entropy: Literal[True], **options: Unpack[_Options],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def log_probs(
    logits: Tensor, target: Tensor, *, return_entropy: bool, **options: Unpack[_Options],
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def log_probs(
    logits: Tensor, target: Tensor, *, return_correct: Literal[True], return_entropy: bool = False,
    ids: Tensor | None = None, teacher_log_probs: Tensor | None = None, **options: Unpack[_Options],
) -> tuple[Tensor, ...]: ...  # fmt: skip
@overload
def log_probs(
    logits: Tensor, target: Tensor, *, ids: Tensor, teacher_log_probs: Tensor | None = None,
    return_entropy: bool = False, return_correct: bool = False, **options: Unpack[_Options],
) -> tuple[Tensor, ...]: ...  # fmt: skip
@op_function(LOG_PROBS, names={"logits": "input"})
def log_probs(
    call: Any, logits: Tensor, target: Tensor, *, temperature: float = 1.0, softcap: float | None = None,
    ignore_index: int | None = None, return_entropy: bool = False, return_correct: bool = False,
    mask: Tensor | None = None, ids: Tensor | None = None, teacher_log_probs: Tensor | None = None, stream: Any = None,
) -> Tensor | tuple[Tensor, ...]:  # fmt: skip
    """The log-probability of each target token: log_softmax(logits / temperature) at the target.

    Args:
        logits: shape (..., C), with any strides, in a floating-point dtype.
        target: a class for each row, of shape (...), in int64 or uint8.
        temperature: a positive number that divides the logits. The softcap is part of the model and comes first, as in
            generation.
        softcap: replaces the logits by softcap * tanh(logits / softcap).
        ignore_index: rows with this target have zero log-probability, entropy and gradient. None ignores no target.
        return_entropy: also returns the entropy of each row's distribution, -sum(p * log(p)). Both are differentiable.
        return_correct: also returns whether the target is the first class with the largest logit. The mean is the token
            accuracy.
        mask: a boolean tensor of shape (...). Rows with False are ignored: their log-probability, entropy and gradient
            are zero, and `return_correct` gives False.
        ids: classes of shape (..., K), in int64 or uint8. Also returns their log-probabilities, of shape (..., K).
        teacher_log_probs: the log-probabilities log(p) that another model gives `ids`, of shape (..., K). Also returns
            sum(p * (log(p) - log-probabilities of ids)) over K, the KL divergence to the teacher if the K classes hold
            all of its probability. The teacher gets no gradient.
        stream: see `tridal.softmax`. The backward also uses it.

    Returns:
        The log-probabilities of shape (...), in float32 (float64 for float64), also under autocast. With other results,
        a tuple in this order: log-probabilities, entropies, log-probabilities of ids, divergence, correct.

    Raises:
        TypeError, ValueError, RuntimeError, DTypeError, LayoutError, ShapeError, StreamError: an argument is wrong.
        IndexError: a target on the CPU is out of range. On other devices, the row's log-probability and gradient are
            NaN.
        NoBackendError: no backend serves the tensor and the setting `fallback` is "error".

    Example:
        >>> logits, target = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
        >>> tridal.log_probs(logits, target)
        tensor([-0.2395, -1.5514])
        >>> tridal.log_probs(logits, target, temperature=0.5, return_entropy=True)
        (tensor([-0.0360, -2.2395]), tensor([0.1773, 0.6656]))
        >>> tridal.log_probs(logits, target, mask=torch.tensor([True, False]), return_correct=True)
        (tensor([-0.2395,  0.0000]), tensor([ True, False]))
    """
    op = LOG_PROBS.name
    check_tensors(LOG_PROBS.signature, logits=logits, target=target)
    numbers = _checked_numbers(op, temperature, softcap, ignore_index, return_entropy, return_correct)
    check_floating(op, "logits", logits)
    if not logits.dim():
        raise ShapeError(wrong(op, "logits", "have the shape (..., C)", "()"))
    rows = PerRow(target, ids, teacher_log_probs, mask).checked(op, "logits", logits)
    if is_distributed(logits, *rows):
        from tridal.library.losses.dtensor import distributed

        logits, *tensors = distributed(logits, *rows)
        rows = PerRow(*tensors)
    if rows.ids is None and rows.mask is None:
        entropy = (1,) * return_entropy
        returned: Any = (0, *entropy, 2) if return_correct else 1 + return_entropy
        return call(logits, rows.target, *numbers, results=returned, checked=True)  # type: ignore[no-any-return]
    rows, index = rows.ignoring(numbers[2])
    numbers = (*numbers[:2], index, *numbers[3:])
    results = rows.results(_of_logits(logits, rows.target, rows.ids, numbers), index)
    return results[0] if len(results) == 1 else tuple(results)


@overload
def token_log_probs(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, return_entropy: Literal[False] = False,
    **options: Unpack[_TokenOptions],
) -> Tensor: ...  # fmt: skip
@overload
def token_log_probs(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, return_entropy: Literal[True],
    **options: Unpack[_TokenOptions],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def token_log_probs(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, return_entropy: bool,
    **options: Unpack[_TokenOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def token_log_probs(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, return_correct: Literal[True],
    return_entropy: bool = False, ids: Tensor | None = None, teacher_log_probs: Tensor | None = None,
    **options: Unpack[_TokenOptions],
) -> tuple[Tensor, ...]: ...  # fmt: skip
@overload
def token_log_probs(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, ids: Tensor, teacher_log_probs: Tensor | None = None,
    return_entropy: bool = False, return_correct: bool = False, **options: Unpack[_TokenOptions],
) -> tuple[Tensor, ...]: ...  # fmt: skip
@op_function(TOKEN_LOG_PROBS)
def token_log_probs(
    call: Any, input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None,
    temperature: float = 1.0, softcap: float | None = None, ignore_index: int | None = None,
    return_entropy: bool = False, return_correct: bool = False, mask: Tensor | None = None, ids: Tensor | None = None,
    teacher_log_probs: Tensor | None = None, save_logits: bool = False, chunk_size: int | None = None,
    accum_dtype: torch.dtype | None = None, stream: Any = None,
) -> Tensor | tuple[Tensor, ...]:  # fmt: skip
    """log_probs(linear(input, linear_weight, linear_bias), target), without storing all logits.

    The forward computes the logits of one chunk of rows at a time. The backward recomputes them, unless `save_logits`
    is set.

    Args:
        input: shape (..., H).
        linear_weight: shape (C, H).
        target: a class for each row of the input, of shape (...), in int64 or uint8.
        linear_bias: shape (C,).
        temperature, softcap, ignore_index, return_entropy, return_correct, ids, teacher_log_probs: see
            `tridal.log_probs`.
        mask: see `tridal.log_probs`. Skips the logits of rows with False, except in compiled functions, for DTensors
            and in captured graphs, where the number of rows cannot depend on values.
        save_logits: keeps the logits for the backward, which then takes two matmuls instead of three. This needs the
            memory of all logits in the dtype of the matmuls, and no other tensor of this size.
        chunk_size, accum_dtype: see `tridal.linear_cross_entropy`.
        stream: see `tridal.softmax`. Matmuls and the backward also use it.

    Returns:
        The log-probabilities of shape (...), in float32 (float64 for float64), also under autocast. With other results,
        the tuple of `tridal.log_probs`.

    Raises:
        TypeError, ValueError, RuntimeError, DTypeError, LayoutError, ShapeError, IndexError, StreamError: an argument
            is wrong, see `tridal.log_probs`.

    Example:
        >>> hidden, weight = torch.eye(2, 3), torch.eye(4, 3)
        >>> tridal.token_log_probs(hidden, weight, torch.tensor([0, 3]))
        tensor([-0.7437, -1.7437])
    """
    op, signature, given = TOKEN_LOG_PROBS.name, TOKEN_LOG_PROBS.signature, (input, linear_weight, target, linear_bias)
    check_tensors(signature, input=input, linear_weight=linear_weight, target=target, linear_bias=linear_bias)
    numbers = _checked_numbers(op, temperature, softcap, ignore_index, return_entropy, return_correct)
    check_bool(op, "save_logits", save_logits)
    if linear_weight.dim() != 2:
        raise ShapeError(wrong(op, "linear_weight", "have the shape (C, H)", tuple(linear_weight.shape)))
    autocast = autocast_enabled(input.device.type)
    _, chunks = check_layer(op, input, linear_weight, linear_bias, chunk_size, accum_dtype, autocast)
    x, shape, kept = input, input.shape[:-1], None
    rows = PerRow(target, ids, teacher_log_probs, mask).checked(op, "input", input)
    if len(shape) != 1:  # a view of the same shape would make compiled gradients of DTensors fail
        x, rows = input.reshape(-1, input.shape[-1]), rows.flat(len(shape))
    # A transform hides the placements of its tensors, and `call` computes it with torch's ops.
    by_ranks = is_distributed(*given, *rows) and (_compiling() or not transforms_active())
    if by_ranks:
        from tridal.library.losses.dtensor import check_input, distributed, in_chunks

        check_input(op, input, linear_weight)
        x, *tensors = distributed(x, *rows, like=given)
        rows = PerRow(*tensors)
    if rows.mask is not None:
        mask, kept = rows.mask.unsqueeze(-1), rows.kept(x)
        if kept is not None:
            x, rows = x.index_select(0, kept), rows.selected(kept)
        else:
            x = torch.where(mask, x, 0.0)  # the logits of masked rows are finite then
            rows, index = rows.ignoring(numbers[2])
            numbers = (*numbers[:2], index, *numbers[3:])
    saves = save_logits and records_gradient(input, linear_weight, linear_bias)
    arguments = (x, linear_weight, rows.target, linear_bias, rows.ids, *numbers[:4], *chunks, return_correct, saves)
    found: Any
    if by_ranks:
        named, function = Arguments(signature, arguments).named, functools.partial(_of_logits, numbers=numbers)
        found = in_chunks(named, function, ("target", "ids"), saves)
    else:
        # A hook may keep the saved logits, so the backward must not overwrite them.
        overwrites = saves and not _compiling() and not saves_through_hooks()
        log_prob, entropy, at_ids, correct = call(*arguments, results=4, overwrites=overwrites, checked=True)
        found = *_present(log_prob, entropy, correct, numbers), None if rows.ids is None else at_ids
    results = rows.results(found, numbers[2])
    if kept is not None:
        count = math.prod(shape)
        results = [result.new_zeros((count, *result.shape[1:])).index_copy(0, kept, result) for result in results]
    if len(shape) != 1:
        results = [result.view((*shape, *result.shape[1:])) for result in results]
    return results[0] if len(results) == 1 else tuple(results)


_Numbers = tuple[float, float | None, int | None, bool, bool]
"""The arguments temperature, softcap, ignore_index, return_entropy and return_correct."""


def _checked_numbers(
    op: str, temperature: float, softcap: float | None, ignore_index: int | None, return_entropy: bool,
    return_correct: bool,
) -> _Numbers:  # fmt: skip
    """Checks the arguments that are not tensors. Returns them as those of the registered ops."""
    if ignore_index is not None:
        check_numbers(op, ignore_index=ignore_index)
        ignore_index = int(ignore_index)
    check_numbers(op, softcap=softcap, temperature=temperature)
    check_bool(op, "return_entropy", return_entropy)
    check_bool(op, "return_correct", return_correct)
    cap = None if softcap is None else float(softcap)
    return float(temperature), cap, ignore_index, return_entropy, return_correct


def _of_logits(logits: Tensor, target: Tensor, ids: Tensor | None, numbers: _Numbers) -> tuple[Tensor | None, ...]:
    """Returns log-probability, entropy and correct of targets, and the log-probabilities of ids, or None."""

    def compute(target: Tensor) -> tuple[Tensor | None, ...]:
        log_prob, entropy, correct = call_op(LOG_PROBS, None, (), logits, target, *numbers, results=3)
        return _present(log_prob, entropy, correct, numbers)

    if ids is None:
        return (*compute(target), None)
    check_ids(LOG_PROBS.name, logits, target, ids, numbers[2])
    return with_ids(compute, logits, target, ids, numbers[:3])


def _present(
    log_prob: Tensor, entropy: Tensor | None, correct: Tensor | None, numbers: _Numbers
) -> tuple[Tensor | None, ...]:
    """Returns the results of a call, with None for absent ones, for which a registered op has empty tensors."""
    return log_prob, entropy if numbers[3] else None, correct if numbers[4] else None
