"""The kernels of cross-entropy, and the steps of a call: the loss of each row, their reduction, and the gradient."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tridal.library.losses.layout import Layout
from tridal.library.losses.maths import MEAN, NONE, check_range, classes_dim, reduce_rows, row_gradient
from tridal.ops import Named, NoKernel, RowKernel, Statistic, accumulator
from tridal.pytorch import Steps

Tensor = torch.Tensor
Numbers = tuple[int, float, float, float | None]
"""ignore_index, label_smoothing, z_loss and softcap."""
MODULE = "tridal.library.losses.kernels.cross_entropy"
_EXACT = 2**24
"""Integers up to this number are exact in float32."""

_LSE = (
    Statistic("row_max", "max", term="logit"),
    Statistic("row_sum", "accurate_sum", term="exp_term", rebase="rebase"),
)
_CONSTANTS = (("SOFTCAP", None), ("IGNORE_INDEX", -100))
FORWARD = RowKernel(
    name="cross_entropy", module=MODULE, reads=("x",), row_index="index", column_reads=("weight",), statistics=_LSE,
    row_value="lse", writes=(), row_writes=("loss", "lse"), parameters=("label_smoothing", "z_loss"),
    padding=float("-inf"), neutral_padding=True, live_tiles=1, constants=_CONSTANTS,
)  # fmt: skip
BACKWARD = RowKernel(
    name="cross_entropy_backward", module=MODULE, reads=("x",), row_reads=("row_lse", "grad"), row_index="index",
    column_reads=("weight", "weight_sum"), statistics=(), row_value="target_gradient", writes=("gradient",),
    parameters=("label_smoothing", "z_loss"), live_tiles=1, constants=_CONSTANTS,
)  # fmt: skip
BACKWARD_WITH_LSE = RowKernel(
    name="cross_entropy_with_lse_backward", module=MODULE, reads=("x",), row_reads=("grad", "lse_grad"),
    row_index="index", column_reads=("weight", "weight_sum"), statistics=_LSE, row_value="target_gradient",
    writes=("gradient_of_statistics",), parameters=("label_smoothing", "z_loss"), padding=float("-inf"),
    neutral_padding=True, live_tiles=2, constants=_CONSTANTS,
)  # fmt: skip
WITH_GRADIENT = RowKernel(
    name="cross_entropy_with_gradient", module=MODULE, reads=("x",), row_reads=("grad", "target_logit"),
    row_index="index", column_reads=("weight",), statistics=_LSE, row_value="target_gradient",
    writes=("gradient_of_statistics",), row_writes=("loss_of_logit",), parameters=("z_loss",), padding=float("-inf"),
    neutral_padding=True, live_tiles=2,
    constants=(("label_smoothing", None), ("lse_grad", None), ("weight_sum", None), *_CONSTANTS),
)  # fmt: skip
"""Losses and gradients in one kernel. The targets' logits are an input, because the gradient may overwrite them."""
SMOOTH = RowKernel(
    name="cross_entropy_smooth", module=MODULE, reads=("x",), row_reads=("row_loss", "row_lse"), row_index="index",
    column_reads=("weight",), statistics=(Statistic("distances", "sum", term="distance"),), writes=(),
    row_writes=("smooth_loss",), parameters=("label_smoothing",), live_tiles=1, constants=_CONSTANTS,
)  # fmt: skip
REDUCE = RowKernel(
    name="cross_entropy_reduce", module="tridal.library.losses.kernels.reduction", reads=("x",),
    column_reads=("target", "weight"),
    statistics=(Statistic("loss_sum", "sum", term="x"), Statistic("weight_sum", "sum", term="row_weight")),
    writes=(), row_writes=("weighted_mean", "weight_sum"), live_tiles=1, constants=_CONSTANTS[1:2],
)  # fmt: skip
REDUCE_ALL = replace(
    REDUCE, name="cross_entropy_reduce_all", column_reads=(), statistics=REDUCE.statistics[:1],
    row_writes=("loss_sum",), constants=(),
)  # fmt: skip
_PROBABILITIES = "no kernel computes targets that are probabilities"


_masked = functools.cache(functools.partial(replace, neutral_padding=False))


def launch(
    call: Steps, kernel: RowKernel, inputs: Sequence[Tensor | None], *, ignore_index: int | None,
    softcap: float | None, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Launches a kernel of logits. The options are those of `Steps.kernel`.

    Raises:
        NoKernel: no kernel computes the tensors.
    """
    if ignore_index is not None and not -(2**31) < ignore_index < 2**31:  # wider target indices are alike to kernels
        raise NoKernel("kernels compare 32 bits of ignore_index")
    if softcap is not None:  # capped logits beyond the end of a row are not -inf
        kernel = _masked(kernel)
    return call.kernel(kernel, *inputs, IGNORE_INDEX=ignore_index, SOFTCAP=softcap, **options)


def _kernel(
    call: Steps, kernel: RowKernel, inputs: Sequence[Tensor | None], dim: int, numbers: Numbers, **options: Any
) -> tuple[Any, ...]:
    """Launches a kernel of cross-entropy."""
    ignore_index, label_smoothing, z_loss, softcap = numbers
    values = {"label_smoothing": label_smoothing or None, "z_loss": z_loss or None}
    options |= {name: values[name] for name in kernel.parameters}
    return launch(call, kernel, inputs, ignore_index=ignore_index, softcap=softcap, dim=dim, **options)


KERNELS = FORWARD, BACKWARD, BACKWARD_WITH_LSE, WITH_GRADIENT, SMOOTH


def losses(
    call: Steps, input: Tensor, target: Tensor, weight: Tensor | None, numbers: Numbers,
    dtype: torch.dtype | None = None, *, needs_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Returns loss and log-sum-exp of each row. The log-sum-exp may be None if it is not needed.

    The loss has the dtype `dtype`, by default the accumulator's.

    Raises:
        NoKernel: no kernel computes the tensors.
    """
    if target.is_floating_point():
        raise NoKernel(_PROBABILITIES)
    layout, wide, smooth = Layout(call, input), accumulator(input, target, weight), numbers[1] > 0
    x, launch = layout.of(input), functools.partial(_kernel, call, dim=layout.dim, numbers=numbers)
    dtype = wide if dtype is None or wide is torch.float64 else dtype
    if call.interpreted:
        call.run(check_range, call.op.name, target, input.shape[classes_dim(input)], numbers[0])
    index = layout.index(target)
    if not needs_lse and not smooth:
        return launch(FORWARD, [x, index, weight], dtypes=(dtype,), writes=("loss",))[0], None
    loss, lse = launch(FORWARD, [x, index, weight], dtypes=(wide if smooth else dtype, wide))
    if smooth:
        (loss,) = launch(SMOOTH, [x, loss, lse, index, weight], dtypes=(dtype,))
    return loss, lse


def losses_with_gradient(
    call: Steps, input: Tensor, target: Tensor, weight: Tensor | None, row_grad: Tensor, numbers: Numbers
) -> tuple[Tensor, Tensor]:
    """Returns the loss of each row, and the gradient of the logits (N, C, ...), which one kernel writes into them.

    `row_grad` is the gradient of each row's loss, in the accumulator's dtype.

    Raises:
        NoKernel: no kernel computes the tensors, with label smoothing, and with `batch_invariant`, where the losses
            must equal those of a call without gradients.
    """
    if target.is_floating_point() or numbers[1] or call.batch_invariant:
        raise NoKernel
    layout, wide, classes = Layout(call, input), accumulator(input, target, weight), input.shape[1]
    if call.interpreted:
        call.run(check_range, call.op.name, target, classes, numbers[0])
    logit = input.gather(1, target.clamp(0, classes - 1).unsqueeze(1)).squeeze(1).to(wide)
    logit.masked_fill_((target < 0) | (target >= classes), torch.nan)  # the kernel ignores it for ignored targets
    x = layout.of(input)
    inputs, dtypes = [x, row_grad, logit, target, weight], (input.dtype, wide)
    dx, rows = _kernel(call, WITH_GRADIENT, inputs, layout.dim, numbers, dtypes=dtypes, out=x)
    return rows, layout.restored(dx)


def logits_gradient(
    call: Steps, input: Tensor, target: Tensor, weight: Tensor | None, lse: Tensor, row_grad: Tensor,
    lse_grad: Tensor | None, numbers: Numbers, overwrites: bool,
) -> Tensor:  # fmt: skip
    """Returns the gradient of the logits. It may overwrite them.

    `row_grad` is the gradient of each row's loss. It has any shape.

    Raises:
        NoKernel: no kernel computes the tensors.
    """
    if target.is_floating_point():
        raise NoKernel(_PROBABILITIES)
    layout = Layout(call, input)
    x, with_sum = layout.of(input), weight is not None and numbers[1] > 0
    columns = layout.index(target), weight, call.torch(_total, weight, lse.dtype) if with_sum else None
    if lse_grad is None:
        kernel, inputs = BACKWARD, [x, lse, row_grad, *columns]
    else:
        kernel, inputs = BACKWARD_WITH_LSE, [x, row_grad, lse_grad, *columns]
    dtypes, out = (input.dtype,), x if overwrites else None
    return layout.restored(_kernel(call, kernel, inputs, layout.dim, numbers, dtypes=dtypes, out=out)[0])


def _total(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.sum(dtype=dtype).expand(weight.shape)


def _reduced(call: Steps, rows: Tensor, named: Named) -> tuple[Tensor, Tensor | None]:
    """Returns the loss, and for the mean the sum of the targets' weights, which may be None.

    A kernel reads the losses of all rows as one row.
    """
    target, weight, reduction, ignore_index = (named[n] for n in ("target", "weight", "reduction", "ignore_index"))
    dtype, classes = named["dtype"], named["input"].shape[classes_dim(named["input"])]
    exact = rows.dtype is torch.float64 or max(classes, abs(ignore_index)) <= _EXACT or reduction != MEAN
    if target.numel() and exact and not (rows.dtype is torch.float64 and dtype.itemsize == 2):
        flat = rows if rows.dim() == 1 else call.view(Tensor.reshape, rows, -1)
        try:
            if reduction != MEAN:
                return call.kernel(REDUCE_ALL, flat, dtypes=(dtype,))[0], None
            index = target if target.dim() == 1 else call.view(Tensor.reshape, target, -1)
            weights = None if weight is None else call.torch(_weights, weight, index, classes)
            count = 1 + call.wanted[2]
            options: Any = {"dtypes": (dtype, rows.dtype)[:count], "writes": REDUCE.row_writes[:count]}
            loss, *total = call.kernel(REDUCE, flat, index, weights, **options, IGNORE_INDEX=ignore_index)
            return loss, total[0] if total else None
        except NoKernel:
            pass
    return call.torch(_by_torch, rows, target, weight, reduction, ignore_index, dtype)  # type: ignore[no-any-return]


def _weights(weight: Tensor, target: Tensor, classes: int) -> Tensor:
    return weight.take(target.clamp(0, classes - 1))


def _by_torch(rows: Tensor, *arguments: Any) -> tuple[Tensor, Tensor | None]:
    *others, dtype = arguments
    loss, denominator = reduce_rows(rows, *others)
    return loss.to(dtype), denominator


def steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    """Returns the loss, the log-sum-exp of each row, and the denominator of the mean."""
    input, target, weight, reduction, *numbers, dtype = named.values()
    row_dtype = dtype if reduction == NONE else None
    rows, lse = losses(call, input, target, weight, tuple(numbers), row_dtype, needs_lse=call.wanted[1])
    if input.dim() == 1:
        rows, lse = call.view(Tensor.squeeze, rows, 0), None if lse is None else call.view(Tensor.squeeze, lse, 0)
    if reduction == NONE:
        return rows if rows.dtype is dtype else call.torch(Tensor.to, rows, dtype), lse, None
    loss, denominator = _reduced(call, rows, named)
    return loss, lse, denominator


def gradient_steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    """Returns the gradient of the logits."""
    grad, lse_grad, input, target, weight, lse, denominator, reduction, *numbers, _ = named.values()
    if not call.wanted[0]:  # only the gradient of the target is needed
        raise NoKernel(_PROBABILITIES)
    rows = call.torch(_row_grad, grad, lse, denominator, reduction)
    given = (input, target, weight, lse, rows, lse_grad, tuple(numbers))
    return logits_gradient(call, *given, overwrites=False), None


def _row_grad(grad: Tensor | None, lse: Tensor, denominator: Tensor | None, reduction: int) -> Tensor:
    """Returns the gradient of each row's loss."""
    if grad is None:
        return torch.zeros_like(lse)
    if denominator is not None:
        return torch.div(grad, denominator.expand(lse.numel()))
    return row_gradient(grad.to(lse.dtype), lse.numel(), None, reduction).expand(lse.shape)
