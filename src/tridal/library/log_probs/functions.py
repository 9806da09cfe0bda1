"""Log-probabilities and entropies of tokens: the public functions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch

from tridal.errors import ShapeError
from tridal.library.log_probs.log_probs import LOG_PROBS
from tridal.library.log_probs.token_log_probs import TOKEN_LOG_PROBS
from tridal.library.losses.checks import check_layer, check_numbers
from tridal.ops import Arguments, check_bool, check_floating, check_index, check_shape, wrong
from tridal.pytorch import autocast_enabled, call_op, check_tensors, is_distributed, op_function, transforms_active

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tensor = torch.Tensor
_compiling = torch.compiler.is_dynamo_compiling


class _Options(TypedDict, total=False):
    """The arguments of `log_probs` that do not change the type of the result."""

    temperature: float
    softcap: float | None
    ignore_index: int | None
    stream: Any


class _TokenOptions(_Options, total=False):
    """The same of `token_log_probs`."""

    linear_bias: Tensor | None
    chunk_size: int | None
    accum_dtype: torch.dtype | None


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
@op_function(LOG_PROBS, names={"logits": "input"})
def log_probs(
    call: Any, logits: Tensor, target: Tensor, *, temperature: float = 1.0, softcap: float | None = None,
    ignore_index: int | None = None, return_entropy: bool = False, stream: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The log-probability of each target token: log_softmax(logits / temperature) at the target.

    Args:
        logits: shape (..., C), with any strides, in a floating-point dtype.
        target: a class for each row, of shape (...), in int64 or uint8.
        temperature: a positive number, by which the logits are divided. A softcap is part of the model, so it is
            applied before, as generation does.
        softcap: the logits are replaced by softcap * tanh(logits / softcap).
        ignore_index: rows with this target have the log-probability 0, the entropy 0 and the gradient zero. None: no
            target is ignored.
        return_entropy: also returns the entropy of each row's distribution, -sum(p * log(p)). Both are differentiable.
        stream: see `tridal.softmax`. The backward uses it, too.

    Returns:
        The log-probabilities of shape (...), in float32 (float64 for float64), also under autocast. With
        `return_entropy`, (log-probabilities, entropies).

    Raises:
        TypeError, ValueError, RuntimeError, DTypeError, LayoutError, ShapeError, StreamError: an argument is wrong.
        IndexError: a target is out of range, on the CPU. On other devices, the log-probability and the gradient of the
            row are NaN.
        NoBackendError: no backend serves the tensor and the setting `fallback` is "error".

    Example:
        >>> logits, target = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
        >>> tridal.log_probs(logits, target)
        tensor([-0.2395, -1.5514])
        >>> tridal.log_probs(logits, target, temperature=0.5, return_entropy=True)
        (tensor([-0.0360, -2.2395]), tensor([0.1773, 0.6656]))
    """
    op = LOG_PROBS.name
    check_tensors(LOG_PROBS.signature, logits=logits, target=target)
    numbers = _checked_numbers(op, temperature, softcap, ignore_index, return_entropy)
    check_floating(op, "logits", logits)
    if not logits.dim():
        raise ShapeError(wrong(op, "logits", "have the shape (..., C)", "()"))
    target = _checked_target(op, target, "logits", logits)
    if is_distributed(logits, target):
        from tridal.library.losses.dtensor import distributed

        logits, target = distributed(logits, target)
    return call(logits, target, *numbers, results=1 + return_entropy, checked=True)  # type: ignore[no-any-return]


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
@op_function(TOKEN_LOG_PROBS)
def token_log_probs(
    call: Any, input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None,
    temperature: float = 1.0, softcap: float | None = None, ignore_index: int | None = None,
    return_entropy: bool = False, chunk_size: int | None = None, accum_dtype: torch.dtype | None = None,
    stream: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """log_probs(linear(input, linear_weight, linear_bias), target), without the memory of the logits.

    The forward and the backward compute the logits of a chunk of rows at a time. The backward computes them again.

    Args:
        input: shape (..., H).
        linear_weight: shape (C, H).
        target: a class for each row of the input, of shape (...), in int64 or uint8.
        linear_bias: shape (C,).
        temperature, softcap, ignore_index, return_entropy: see `tridal.log_probs`.
        chunk_size, accum_dtype: see `tridal.linear_cross_entropy`.
        stream: see `tridal.softmax`. Matmuls and the backward use it, too.

    Returns:
        The log-probabilities of shape (...), in float32 (float64 for float64), also under autocast. With
        `return_entropy`, (log-probabilities, entropies).

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
    numbers = _checked_numbers(op, temperature, softcap, ignore_index, return_entropy)
    if linear_weight.dim() != 2:
        raise ShapeError(wrong(op, "linear_weight", "have the shape (C, H)", tuple(linear_weight.shape)))
    autocast = autocast_enabled(input.device.type)
    _, chunks = check_layer(op, input, linear_weight, linear_bias, chunk_size, accum_dtype, autocast)
    shape, target = input.shape[:-1], _checked_target(op, target, "input", input)
    one_dim = len(shape) == 1  # a view of the same shape would make compiled gradients of DTensors fail
    x, index = (input, target) if one_dim else (input.reshape(-1, input.shape[-1]), target.reshape(-1))
    arguments = (x, linear_weight, index, linear_bias, *numbers, *chunks)
    # A transform hides the placements of its tensors, and `call` computes it with torch's ops.
    if is_distributed(*given) and (_compiling() or not transforms_active()):
        from tridal.library.losses.dtensor import in_chunks

        found: Any = in_chunks(Arguments(signature, arguments).named, functools.partial(_of_logits, numbers))
    else:
        found = call(*arguments, results=2, checked=True)
    results = tuple(result if one_dim else result.view(shape) for result in found[: 1 + return_entropy])
    return results if return_entropy else results[0]


def _checked_numbers(
    op: str, temperature: float, softcap: float | None, ignore_index: int | None, return_entropy: bool
) -> tuple[float, float | None, int | None, bool]:
    """Checks the arguments that are not tensors. Returns them as those of the registered ops."""
    if ignore_index is not None:
        check_numbers(op, ignore_index=ignore_index)
        ignore_index = int(ignore_index)
    check_numbers(op, softcap=softcap, temperature=temperature)
    check_bool(op, "return_entropy", return_entropy)
    return float(temperature), None if softcap is None else float(softcap), ignore_index, return_entropy


def _checked_target(op: str, target: Tensor, name: str, rows: Tensor) -> Tensor:
    """Checks the targets of the rows of a tensor. Returns them in int64."""
    check_index(op, "target", target)
    hint = f"an index per row of {name}, which has the shape {tuple(rows.shape)}"
    check_shape(op, "target", target, rows.shape[:-1], hint)
    return target.long()  # an ignore_index of -100 would wrap to 156 in uint8


def _of_logits(numbers: tuple[Any, ...], logits: Tensor, target: Tensor) -> Any:
    found = call_op(LOG_PROBS, None, (), logits, target, *numbers, results=1 + numbers[-1])
    return found if numbers[-1] else (found,)
