"""Cross-entropy: its kernels, its declaration, and the steps of a call.

Classes are dim 1, or dim 0 of one row of logits. Targets are indices of classes (int64 or uint8) or probabilities
(floating point, of the shape of the logits), which torch's ops compute.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tridal.library.losses import loss_math
from tridal.library.losses.loss_math import MEAN, NONE, REDUCTIONS, Options, check_range, classes_dim
from tridal.ops import (
    DTYPE,
    Named,
    NoKernel,
    Op,
    Result,
    RowKernel,
    Statistic,
    accumulator,
    index_per_row,
    number,
    per_column,
    per_element,
)
from tridal.pytorch import Steps

Tensor = torch.Tensor
MODULE = "tridal.library.losses.kernels.cross_entropy"
EXACT = 2**24
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
    name="cross_entropy_backward", module=MODULE, reads=("x",), row_reads=("row_lse", "grad", "denominator"),
    row_index="index", column_reads=("weight", "weight_sum"), statistics=(), row_value="target_gradient",
    writes=("gradient",), parameters=("label_smoothing", "z_loss"), live_tiles=1, constants=_CONSTANTS,
)  # fmt: skip
BACKWARD_WITH_LSE = replace(
    BACKWARD, name="cross_entropy_with_lse_backward", row_reads=("grad", "denominator", "lse_grad"),
    statistics=_LSE, writes=("gradient_of_statistics",), padding=float("-inf"), neutral_padding=True, live_tiles=2,
)  # fmt: skip
WITH_GRADIENT = replace(
    BACKWARD_WITH_LSE, name="cross_entropy_with_gradient", row_reads=("grad", "target_logit"),
    column_reads=("weight",), row_writes=("loss_of_logit",), parameters=("z_loss",),
    constants=(*((name, None) for name in ("label_smoothing", "lse_grad", "weight_sum", "denominator")), *_CONSTANTS),
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
_masked = functools.cache(functools.partial(replace, neutral_padding=False))


def launch(
    call: Steps, kernel: RowKernel, inputs: Sequence[Tensor | None], ignore_index: int | None, softcap: float | None,
    **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Launches a kernel of logits, or raises NoKernel. The options are those of `Steps.kernel`."""
    if ignore_index is not None and not -(2**31) < ignore_index < 2**31:  # wider target indices are alike to kernels
        raise NoKernel("kernels compare 32 bits of ignore_index")
    if softcap is not None:  # capped logits beyond the end of a row are not -inf
        kernel = _masked(kernel)
    return call.kernel(kernel, *inputs, IGNORE_INDEX=ignore_index, SOFTCAP=softcap, **options)


def _rows_last(input: Tensor) -> tuple[Tensor, int] | None:
    """Returns the input or its view with the classes last, whichever is contiguous, and the dim of the classes."""
    if input.is_neg():
        return None
    if input.is_contiguous() or input.dim() == 1:
        return (input, classes_dim(input)) if input.is_contiguous() else None
    moved = input.movedim(1, -1)
    return (moved, moved.dim() - 1) if moved.is_contiguous() else None


def _new_gradient(named: Named) -> Tensor:
    """Returns a new tensor with the strides of the logits if classes are the first or the last dim in memory.

    For other strides, it is contiguous.
    """
    input = named["input"]
    x, dim = _rows_last(input) or (input, classes_dim(input))
    return input.new_empty(x.shape).movedim(dim, classes_dim(input))  # type: ignore[no-any-return]


class Logits:
    """Logits with indices of targets. Kernels read views of at least two dims, with the classes along `dim`.

    The constructor and all methods raise NoKernel if no kernel computes the tensors.
    """

    def __init__(self, call: Steps, input: Tensor, target: Tensor, weight: Tensor | None, options: Options) -> None:
        if target.is_floating_point():
            raise NoKernel("no kernel computes targets that are probabilities")
        self.call, self.input, self.target, self.weight, self.options = call, input, target, weight, options
        found, self.one_row, self.wide = _rows_last(input), input.dim() == 1, accumulator(input, target, weight)
        self.dim = 1 if found is None else max(found[1], 1)
        self.x, self.index = input, target
        if self.one_row:
            self.x, self.index = call.view(Tensor.unsqueeze, input, 0), call.view(Tensor.reshape, target, 1)
        elif self.dim > 1:
            self.x = call.view(Tensor.movedim, input, 1, self.dim)

    def _restored(self, tensor: Tensor) -> Tensor:
        if self.one_row:
            return self.call.view(Tensor.squeeze, tensor, 0)  # type: ignore[no-any-return]
        return self.call.view(Tensor.movedim, tensor, self.dim, 1) if self.dim > 1 else tensor

    def _launch(self, kernel: RowKernel, *inputs: Tensor | None, **options: Any) -> tuple[Any, ...]:
        _, ignore_index, smoothing, z_loss, softcap = self.options
        values = {"label_smoothing": smoothing or None, "z_loss": z_loss or None}
        options |= {name: values[name] for name in kernel.parameters}
        return launch(self.call, kernel, (self.x, *inputs), ignore_index, softcap, dim=self.dim, **options)

    def _check_targets(self) -> None:
        if self.call.interpreted:
            classes = self.input.shape[classes_dim(self.input)]
            self.call.run(check_range, self.call.op.name, self.target, classes, self.options.ignore_index)

    def losses(self, dtype: torch.dtype | None, needs_lse: bool) -> tuple[Tensor, Tensor | None]:
        """Returns loss and log-sum-exp of each row. The log-sum-exp may be None if it is not needed.

        The loss has the dtype `dtype`, by default the accumulator's.
        """
        dtype = self.wide if dtype is None or self.wide is torch.float64 else dtype
        smooth, index, weight = self.options.label_smoothing > 0, self.index, self.weight
        self._check_targets()
        if not needs_lse and not smooth:
            return self._launch(FORWARD, index, weight, dtypes=(dtype,), writes=("loss",))[0], None
        loss, lse = self._launch(FORWARD, index, weight, dtypes=(self.wide if smooth else dtype, self.wide))
        if smooth:
            (loss,) = self._launch(SMOOTH, loss, lse, index, weight, dtypes=(dtype,))
        return loss, lse

    def losses_with_gradient(self, row_grad: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the loss of each row, and the gradient of the logits (N, C, ...), which one kernel writes into them.

        `row_grad` is the gradient of each row's loss, in the accumulator's dtype. There is no such kernel for label
        smoothing, and with `batch_invariant`, where the losses must equal those of a call without gradients.
        """
        input, target, classes = self.input, self.target, self.input.shape[1]
        if self.options.label_smoothing or self.call.batch_invariant or not classes:
            raise NoKernel
        self._check_targets()
        logit = input.gather(1, target.clamp(0, classes - 1).unsqueeze(1)).squeeze(1).to(self.wide)
        logit.masked_fill_((target < 0) | (target >= classes), torch.nan)  # the kernel ignores it for ignored targets
        inputs, dtypes = (row_grad, logit, target, self.weight), (input.dtype, self.wide)
        dx, rows = self._launch(WITH_GRADIENT, *inputs, dtypes=dtypes, out=self.x)
        return rows, self._restored(dx)

    def gradient(
        self, lse: Tensor, grad: Tensor, denominator: Tensor | None, lse_grad: Tensor | None, overwrites: bool
    ) -> Tensor:
        """Returns the gradient of the logits. It may overwrite them.

        `grad` / `denominator` is the gradient of each row's loss. Both may be one number for all rows.
        """
        weight, weight_sum = self.weight, None
        if weight is not None and self.options.label_smoothing > 0:
            dtype = self.wide
            weight_sum = self.call.torch(lambda weight: weight.sum(dtype=dtype).expand(weight.shape), weight)
        rows = (lse, grad, denominator) if lse_grad is None else (grad, denominator, lse_grad)
        kernel = BACKWARD if lse_grad is None else BACKWARD_WITH_LSE
        options: Any = {"dtypes": (self.input.dtype,), "out": self.x if overwrites else None}
        return self._restored(self._launch(kernel, *rows, self.index, weight, weight_sum, **options)[0])


def _reduced(call: Steps, rows: Tensor, named: Named) -> tuple[Tensor, Tensor | None]:
    """Returns the loss, and for the mean the sum of the targets' weights, which may be None.

    A kernel reads the losses of all rows as one row.
    """
    target, weight, dtype, options = named["target"], named["weight"], named["dtype"], Options.of(named)
    classes, mean = named["input"].shape[classes_dim(named["input"])], options.reduction == MEAN
    exact = rows.dtype is torch.float64 or max(classes, abs(options.ignore_index)) <= EXACT or not mean
    if target.numel() and exact and not (rows.dtype is torch.float64 and dtype.itemsize == 2):
        flat = rows if rows.dim() == 1 else call.view(Tensor.reshape, rows, -1)
        try:
            if not mean:
                return call.kernel(REDUCE_ALL, flat, dtypes=(dtype,))[0], None
            index = target if target.dim() == 1 else call.view(Tensor.reshape, target, -1)
            if weight is not None:
                weight = call.torch(lambda weight, index: weight.take(index.clamp(0, classes - 1)), weight, index)
            count = 1 + call.wanted[2]
            given: Any = {"dtypes": (dtype, rows.dtype)[:count], "writes": REDUCE.row_writes[:count]}
            loss, *total = call.kernel(REDUCE, flat, index, weight, **given, IGNORE_INDEX=options.ignore_index)
            return loss, total[0] if total else None
        except NoKernel:
            pass
    return call.torch(loss_math.reduce_rows, rows, target, named["weight"], options, dtype)  # type: ignore[no-any-return]


def steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    """Returns the loss, the log-sum-exp of each row, and the denominator of the mean."""
    options, dtype, input = Options.of(named), named["dtype"], named["input"]
    logits = Logits(call, input, named["target"], named["weight"], options)
    rows, lse = logits.losses(dtype if options.reduction == NONE else None, needs_lse=call.wanted[1])
    if input.dim() == 1:
        rows, lse = call.view(Tensor.squeeze, rows, 0), None if lse is None else call.view(Tensor.squeeze, lse, 0)
    if options.reduction == NONE:
        return rows if rows.dtype is dtype else call.torch(Tensor.to, rows, dtype), lse, None
    loss, denominator = _reduced(call, rows, named)
    return loss, lse, denominator


def gradient_steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    """Returns the gradient of the logits."""
    grad, lse_grad, input, target, weight, lse, denominator, *_ = named.values()
    options = Options.of(named)
    logits = Logits(call, input, target, weight, options)
    if not call.wanted[0]:
        raise NoKernel
    if grad is None:
        grad = call.torch(torch.zeros_like, lse)
    elif grad.dtype is torch.float64 and lse.dtype is not torch.float64:
        grad = call.torch(Tensor.to, grad, lse.dtype)
    return logits.gradient(lse, grad, denominator, lse_grad, overwrites=False), None


NUMBERS = (
    number("reduction", type="int", range=tuple(REDUCTIONS)), number("ignore_index", type="int", range=(-200, -100)),
    number("label_smoothing", neutral=0.0, range=(0.0, 1.0)), number("z_loss", neutral=0.0, range=(0.0, 0.1)),
    number("softcap", optional=True, range=(1.0, 60.0)),
)  # fmt: skip
CROSS_ENTROPY = Op(
    name="cross_entropy",
    arguments=(
        per_element("input"), index_per_row("target", or_per_element=True),
        per_column("weight", optional=True, differentiable=False), *NUMBERS, DTYPE,
    ),
    results=(
        Result(
            "loss", lambda named: "row" if named["reduction"] == NONE else "number",
            dtype=operator.itemgetter("dtype"), gradient="grad",
        ),
        Result("lse", "row", gradient="lse_grad"),
        Result(
            "denominator", "number", returned=False,
            needs=lambda named: named["reduction"] == MEAN and not named["target"].is_floating_point(),
        ),
    ),
    kernels=(FORWARD, BACKWARD, BACKWARD_WITH_LSE, WITH_GRADIENT, SMOOTH),
    reference=loss_math.reference,
    gradient=loss_math.gradient,
    steps=steps,
    gradient_steps=gradient_steps,
    any_rows=True,
    dim=1,
    saves=("input", "target", "weight", "lse", "denominator"),
    gradient_numbers=NUMBERS,
    gradient_results=(
        Result("input", "element", lambda named: named["input"].dtype, new=_new_gradient),
        Result(
            "target", "element", lambda named: named["target"].dtype,
            needs=lambda named: named["target"].is_floating_point(),
        ),
    ),
    cases="tridal.library.losses.cases:CROSS_ENTROPY",
    benchmark="tridal.library.losses.benchmark:CROSS_ENTROPY",
)  # fmt: skip
