"""Cross-entropy. Classes are dim 1, or dim 0 of one row of logits.

Targets are indices of classes (int64 or uint8) or probabilities (floating point, of the shape of the logits).
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

from tridal.library.losses import steps
from tridal.library.losses.layout import new_gradient
from tridal.library.losses.maths import MEAN, NONE, REDUCTIONS, gradient, reference
from tridal.ops import DTYPE, Named, Op, Result, Role, index_per_row, number, per_column, per_element


def _dtype_of(name: str) -> Callable[[Named], torch.dtype]:
    return lambda named: named[name].dtype


def _loss_role(named: Named) -> Role:
    return "row" if named["reduction"] == NONE else "number"


def _has_denominator(named: Named) -> bool:
    return named["reduction"] == MEAN and not named["target"].is_floating_point()


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
        Result("loss", _loss_role, dtype=operator.itemgetter("dtype"), gradient="grad"),
        Result("lse", "row", gradient="lse_grad"),
        Result("denominator", "number", needs=_has_denominator, returned=False),
    ),
    kernels=steps.KERNELS,
    reference=reference,
    gradient=gradient,
    steps=steps.steps,
    gradient_steps=steps.gradient_steps,
    any_rows=True,
    dim=1,
    saves=("input", "target", "weight", "lse", "denominator"),
    gradient_numbers=NUMBERS,
    gradient_results=(
        Result("input", "element", _dtype_of("input"), new=lambda named: new_gradient(named["input"])),
        Result("target", "element", _dtype_of("target"), needs=lambda named: named["target"].is_floating_point()),
    ),
    cases="tridal.library.losses.cases:CROSS_ENTROPY",
    benchmark="tridal.library.losses.benchmark:CROSS_ENTROPY",
)  # fmt: skip
