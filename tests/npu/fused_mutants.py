"""Faults that the tests seed into the maths of ops of several tensors. A case of the conformance suite finds each."""

from __future__ import annotations

import ast
from functools import partial
from typing import Any, NamedTuple

from tridal.testing.cases import Case, Direction

from .ast_edits import find_function, replace_expression


class FusedMutant(NamedTuple):
    """A fault in one Triton function: one expression is replaced by another."""

    module: str
    function: str
    fault: str
    """What the fault breaks."""
    old: str
    new: str
    case: Case
    """The case that finds it."""

    def __str__(self) -> str:
        return f"{self.module}.{self.function}: {self.fault}"

    def source(self, source: str) -> str:
        """Returns the module's source with the fault. Raises EditError if it does not have the expression."""
        tree = ast.parse(source)
        replace_expression(find_function(tree, self.function), self.old, self.new)
        return ast.unparse(ast.fix_missing_locations(tree))


FORWARD: Direction = "forward"
BACKWARD: Direction = "backward"
_EXPANDED_PROJECTION = "tl.expand_dims(dot / count, AXIS)"
_READ_ADDED = "tl.load(addends, mask=in_bounds, other=0).to(ACC_DTYPE)"


def rms(direction: Direction, **options: Any) -> Case:
    """A case of rms_norm."""
    return Case("rms_norm", direction, (9, 57), **options)


def layer(direction: Direction, **options: Any) -> Case:
    """A case of layer_norm."""
    return Case("layer_norm", direction, (9, 57), **options)


def loss(direction: Direction, weight: bool = False, op: str = "cross_entropy", **numbers: Any) -> Case:
    """A case of a loss of each row."""
    absent = () if weight else ("weight",)
    return Case(op, direction, (9, 57), absent=absent, numbers=tuple(numbers.items()))


linear = partial(loss, op="linear_cross_entropy", reduction="mean")

MUTANTS = [
    FusedMutant(module, function, fault, old, new, case)
    for module, function, fault, old, new, case in (
        ("rms_norm", "square", "the residual is not in the sum of squares", "total * total", "x * x",
         rms(FORWARD)),
        ("rms_norm", "square", "elements are not squared", "total * total", "tl.abs(total)", rms(FORWARD)),
        ("rms_norm", "inverse_rms", "eps is dropped", "squares / count + eps", "squares / count",
         rms(FORWARD, values="small")),
        ("rms_norm", "inverse_rms", "the sum is not divided", "squares / count + eps", "squares + eps", rms(FORWARD)),
        ("rms_norm", "rms_norm", "the weight's offset is dropped", "weight + weight_offset", "weight",
         rms(FORWARD, numbers=(("weight_offset", 1.0),))),
        ("rms_norm", "rms_norm", "the weight is dropped",
         "y * (weight if weight_offset is None else weight + weight_offset)", "y", rms(FORWARD)),
        ("rms_norm", "weighted", "the gradient drops the weight's offset", "weight + weight_offset", "weight",
         rms(BACKWARD, numbers=(("weight_offset", 1.0),))),
        ("rms_norm", "weighted_product", "dot is not normalised", "x * tl.expand_dims(inverse_rms, AXIS)", "x",
         rms(BACKWARD)),
        ("rms_norm", "rms_norm_gradient", "the projection is dropped",
         "weighted(dy, weight, weight_offset) - projection", "weighted(dy, weight, weight_offset)", rms(BACKWARD)),
        ("rms_norm", "weight_gradient", "the weight's gradient is not normalised",
         "x * tl.expand_dims(inverse_rms, AXIS)", "x", rms(BACKWARD)),
        ("tiles", "store_tile", "the gradient of the sum is dropped", _READ_ADDED, "0.0",
         rms(BACKWARD)),
        ("tiles", "store_tile", "the gradient of the sum is subtracted", _READ_ADDED, f"-{_READ_ADDED}",
         layer(BACKWARD)),
        ("tiles", "store_tile", "a block of columns adds the first block", "column", "column * 0",
         Case("rms_norm", BACKWARD, (3, 40_000))),
        ("layer_norm", "deviation", "the mean is not subtracted", "tl.expand_dims(total / count, AXIS)", "0.0",
         layer(FORWARD)),
        ("layer_norm", "square_deviation", "elements beyond the end of a row count",
         "tl.where(in_bounds, deviation(x, residual, total, count, SUM_DTYPE, AXIS), 0.0)",
         "deviation(x, residual, total, count, SUM_DTYPE, AXIS)", layer(FORWARD)),
        ("layer_norm", "mean", "the saved mean is the sum", "total / count", "total", layer(BACKWARD)),
        ("layer_norm", "inverse_deviation", "eps is dropped", "squares / count + eps", "squares / count",
         layer(FORWARD, values="small")),
        ("layer_norm", "rebase_squares", "parts are not moved to the mean of the row",
         "squares + part_count * shift * shift", "squares",
         Case("layer_norm", FORWARD, (3, 40_000), values="dominant")),
        ("layer_norm", "layer_norm", "the bias is dropped", "y + bias", "y", layer(FORWARD)),
        ("layer_norm", "layer_norm", "the weight is dropped", "y * weight", "y", layer(FORWARD)),
        ("layer_norm", "layer_norm_gradient", "the mean of the gradient is not subtracted",
         "tl.expand_dims(total / count, AXIS)", "0.0", layer(BACKWARD)),
        ("layer_norm", "layer_norm_gradient", "the projection is dropped", _EXPANDED_PROJECTION, "0.0",
         layer(BACKWARD)),
        ("layer_norm", "weight_gradient", "the weight's gradient is not normalised",
         "normalised(x, mean, inverse_deviation, AXIS)", "x", layer(BACKWARD)),
        ("layer_norm", "bias_gradient", "the bias's gradient is zero", "dy", "dy * 0.0", layer(BACKWARD)),
        ("cross_entropy", "loss", "the logarithm of the sum is dropped", "tl.log(row_sum)", "0.0", loss(FORWARD)),
        ("cross_entropy", "loss", "ignored targets have a loss", "index == IGNORE_INDEX", "index == -1",
         loss(FORWARD)),
        ("cross_entropy", "loss", "the class weight is dropped", "_times(number, picked_weight)", "number",
         loss(FORWARD, weight=True)),
        ("cross_entropy", "loss", "z_loss is not squared", "z_loss * lse * lse", "z_loss * lse",
         loss(FORWARD, z_loss=0.1)),
        ("cross_entropy", "loss_of_logit", "the logit of the target is dropped", "target_logit", "target_logit * 0.0",
         linear(BACKWARD)),
        ("cross_entropy", "lse", "the maximum is dropped", "row_max + tl.log(row_sum)", "tl.log(row_sum)",
         loss(FORWARD, return_lse=True)),
        ("cross_entropy", "capped", "negative logits are capped as positive ones", "-magnitude", "magnitude",
         loss(FORWARD, softcap=5.0)),
        ("cross_entropy", "through_cap", "the gradient does not pass the cap",
         "dy * (4.0 * small / ((1.0 + small) * (1.0 + small)))", "dy", loss(BACKWARD, softcap=5.0)),
        ("cross_entropy", "smooth_loss", "ignored targets have a smooth loss", "index == IGNORE_INDEX", "index == -1",
         loss(FORWARD, label_smoothing=0.1)),
        ("cross_entropy", "smooth_loss", "smoothing is not divided by the classes", "label_smoothing / count",
         "label_smoothing", loss(FORWARD, label_smoothing=0.1)),
        ("cross_entropy", "target_gradient", "ignored targets have a gradient", "index == IGNORE_INDEX",
         "index == -1", loss(BACKWARD)),
        ("cross_entropy", "_index_gradient", "the target's one is not subtracted",
         "column == tl.expand_dims(index, AXIS)", "column == -1", loss(BACKWARD)),
        ("cross_entropy", "_index_gradient", "the gradient of z_loss lacks a factor",
         "2.0 * z_loss * row_lse * target_gradient", "z_loss * row_lse * target_gradient",
         loss(BACKWARD, z_loss=0.1)),
        ("cross_entropy", "_index_gradient", "the gradient of the log-sum-exp is dropped", "lse_grad", "lse_grad * 0.0",
         loss(BACKWARD, return_lse=True)),
        ("reduction", "row_weight", "ignored targets count in the mean", "target == IGNORE_INDEX", "target == -1",
         loss(FORWARD, reduction="mean")),
        ("reduction", "row_weight", "the class weight does not count in the mean", "weight", "weight * 0.0 + 1.0",
         loss(FORWARD, reduction="mean", weight=True)),
        ("reduction", "weighted_mean", "the mean is the sum", "loss_sum / weight_sum", "loss_sum",
         loss(FORWARD, reduction="mean")),
    )
]  # fmt: skip
