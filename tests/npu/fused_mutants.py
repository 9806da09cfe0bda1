"""Faults that the tests seed into ops of several tensors. A case of the conformance suite finds each."""

from __future__ import annotations

from functools import partial
from typing import Any

from tridal.testing.cases import Case, Direction

from .seeding import Mutant

FORWARD: Direction = "forward"
BACKWARD: Direction = "backward"


def rms(direction: Direction, **options: Any) -> Case:
    """A case of rms_norm."""
    return Case("rms_norm", direction, (9, 57), **options)


def gated(direction: Direction, dtype: str = "float32", **numbers: Any) -> Case:
    """A case of gated_rms_norm."""
    return Case("gated_rms_norm", direction, (9, 57), dtype=dtype, numbers=tuple(numbers.items()))


def layer(direction: Direction, **options: Any) -> Case:
    """A case of layer_norm."""
    return Case("layer_norm", direction, (9, 57), **options)


def modulated(direction: Direction, dtype: str = "float32", gated: bool = False, **numbers: Any) -> Case:
    """A case of modulated_layer_norm, whose residual has a gate or not."""
    name = "gated_" * gated + "modulated_layer_norm"
    return Case(name, direction, (9, 57), dtype=dtype, numbers=tuple(numbers.items()))


def route(direction: Direction, **numbers: Any) -> Case:
    """A case of route_top_k."""
    return Case("route_top_k", direction, (9, 57), numbers=tuple(numbers.items()))


def heads(direction: Direction, **options: Any) -> Case:
    """A case of qk_norm_rotary."""
    return Case("qk_norm_rotary", direction, (9, 58), **options)


def loss(direction: Direction, weight: bool = False, op: str = "cross_entropy", **numbers: Any) -> Case:
    """A case of a loss of each row."""
    absent = () if weight else ("weight",)
    return Case(op, direction, (9, 57), absent=absent, numbers=tuple(numbers.items()))


linear = partial(loss, op="linear_cross_entropy", reduction="mean")

MUTANTS = [
    Mutant(place, fault, old, new, case=case)
    for place, fault, old, new, case in (
        ("rms_norm.square", "the residual is not in the sum of squares", "total * total", "x * x",
         rms(FORWARD)),
        ("rms_norm.inverse_rms", "eps is dropped", "squares / count + eps", "squares / count",
         rms(FORWARD, values="small")),
        ("rms_norm.weighted", "the weight's offset is dropped", "weight + weight_offset", "weight",
         rms(FORWARD, numbers=(("weight_offset", 1.0),))),
        ("rms_norm.weighted_product", "dot is not normalized", "x * tl.expand_dims(inverse_rms, AXIS)", "x",
         rms(BACKWARD)),
        ("rms_norm.rms_norm_gradient", "the projection is dropped",
         "weighted(dy, weight, weight_offset) - projection", "weighted(dy, weight, weight_offset)", rms(BACKWARD)),
        ("rms_norm.weight_gradient", "the weight's gradient is not normalized",
         "x * tl.expand_dims(inverse_rms, AXIS)", "x", rms(BACKWARD)),
        ("gated_rms_norm.square", "the gate is not in the sum of squares", "x * activated", "x",
         gated(FORWARD, gate_first=True)),
        ("gated_rms_norm.gated_rms_norm", "the activation is dropped",
         "weighted(x * tl.expand_dims(inverse_rms, AXIS), weight) * activated",
         "weighted(x * tl.expand_dims(inverse_rms, AXIS), weight)", gated(FORWARD)),
        ("gated_rms_norm.gated_rms_norm", "with casting, the activation is dropped",
         "rounded(y, WEIGHTED_DTYPE) * activated", "rounded(y, WEIGHTED_DTYPE)",
         gated(FORWARD, "bfloat16", casting="llama")),
        ("gated_rms_norm.x_gradient", "the projection is not gated", "projection * activated", "projection",
         gated(BACKWARD, gate_first=True)),
        ("gated_rms_norm.gate_gradient", "the derivative of the activation is dropped",
         "dn * (x * tl.expand_dims(inverse_rms, AXIS)) * slope", "dn * (x * tl.expand_dims(inverse_rms, AXIS))",
         gated(BACKWARD)),
        ("layer_norm.deviation", "the mean is not subtracted", "tl.expand_dims(total / count, AXIS)", "0.0",
         layer(FORWARD)),
        ("layer_norm.square_deviation", "elements beyond the end of a row count",
         "tl.where(in_bounds, deviation(x, residual, total, count, SUM_DTYPE, AXIS), 0.0)",
         "deviation(x, residual, total, count, SUM_DTYPE, AXIS)", layer(FORWARD)),
        ("layer_norm.mean", "the saved mean is the sum", "total / count", "total", layer(BACKWARD)),
        ("layer_norm.rebase_squares", "parts are not moved to the mean of the row",
         "squares + part_count * shift * shift", "squares",
         Case("layer_norm", FORWARD, (3, 40_000), values="dominant")),
        ("layer_norm.layer_norm", "the bias is dropped", "y + bias", "y", layer(FORWARD)),
        ("layer_norm.layer_norm", "the weight's offset is dropped", "weight_offset", "None",
         layer(FORWARD, numbers=(("weight_offset", 1.0),))),
        ("layer_norm.layer_norm_gradient", "the mean of the gradient is not subtracted",
         "tl.expand_dims(total / count, AXIS)", "0.0", layer(BACKWARD)),
        ("layer_norm.bias_gradient", "the bias's gradient is zero", "dy", "dy * 0.0", layer(BACKWARD)),
        ("modulated_norm._modulated", "the shift is dropped", "y + shift", "y", modulated(FORWARD)),
        ("modulated_norm._modulated", "the scale is not added to one", "1.0 + scaling", "scaling", modulated(FORWARD)),
        ("modulated_norm.layer_scale_gradient", "the bias has no part in the gradient of the scale", "y + bias", "y",
         modulated(BACKWARD)),
        ("modulated_norm.weighted", "the gradient is not scaled", "1.0 + scaling", "1.0", modulated(BACKWARD)),
        ("modulated_norm._modulated", "with casting, the scale is dropped", "cast(y, SUM_DTYPE, CASTING) * factor",
         "cast(y, SUM_DTYPE, CASTING)", modulated(FORWARD, "bfloat16", casting="llama")),
        ("gated_residual._gated", "the gate is dropped", "x * gate", "x", modulated(FORWARD, gated=True)),
        ("gated_residual.layer_sum_gradient", "the gradient of the sum is dropped", "dsum", "dsum * 0.0",
         modulated(BACKWARD, gated=True)),
        ("gated_residual.layer_branch_gradient", "the gradient of the branch has no gate", "gate", "1.0",
         modulated(BACKWARD, gated=True)),
        ("route_top_k.choice", "the bias is dropped", "score(x, row_max, row_sum, SCORE, AXIS, EXP2_BIAS) + bias", "x",
         route(FORWARD, score="sigmoid")),
        ("route_top_k.chosen_score", "weights are divided by the sum of all scores", "position < TOP",
         "position >= 0", route(BACKWARD, normalize=True)),
        ("route_top_k.factor", "the scaling factor is dropped", "1.0 if scaling_factor is None else scaling_factor",
         "1.0", route(FORWARD, scaling_factor=2.5)),
        ("route_top_k.gradient", "the gradient does not pass the sum", "tl.expand_dims(dot / denominator, AXIS)", "0.0",
         route(BACKWARD, normalize=True)),
        ("route_top_k.gradient", "the gradient does not pass the softmax", "ds - tl.expand_dims(total, AXIS)", "ds",
         route(BACKWARD)),
        ("cross_entropy.loss", "ignored targets have a loss", "index == IGNORE_INDEX", "index == -1",
         loss(FORWARD)),
        ("cross_entropy.loss", "the class weight is dropped", "_times(number, picked_weight)", "number",
         loss(FORWARD, weight=True)),
        ("cross_entropy.loss", "z_loss is not squared", "z_loss * lse * lse", "z_loss * lse",
         loss(FORWARD, z_loss=0.1)),
        ("cross_entropy.loss_of_logit", "the logit of the target is dropped", "target_logit", "target_logit * 0.0",
         linear(BACKWARD)),
        ("cross_entropy.lse", "the maximum is dropped", "row_max + tl.log(row_sum)", "tl.log(row_sum)",
         loss(FORWARD, return_lse=True)),
        ("cross_entropy.capped", "negative logits are capped as positive ones", "-magnitude", "magnitude",
         loss(FORWARD, softcap=5.0)),
        ("cross_entropy.through_cap", "the gradient does not pass the cap",
         "dy * (4.0 * small / ((1.0 + small) * (1.0 + small)))", "dy", loss(BACKWARD, softcap=5.0)),
        ("cross_entropy.smooth_loss", "smoothing is not divided by the classes", "label_smoothing / count",
         "label_smoothing", loss(FORWARD, label_smoothing=0.1)),
        ("cross_entropy.target_gradient", "ignored targets have a gradient", "index == IGNORE_INDEX",
         "index == -1", loss(BACKWARD)),
        ("cross_entropy.row_gradient", "the denominator of the mean is dropped", "grad / denominator", "grad",
         loss(BACKWARD, reduction="mean")),
        ("cross_entropy._index_gradient", "the target's one is not subtracted",
         "column == tl.expand_dims(index, AXIS)", "column == -1", loss(BACKWARD)),
        ("cross_entropy._index_gradient", "the gradient of the log-sum-exp is dropped", "lse_grad", "lse_grad * 0.0",
         loss(BACKWARD, return_lse=True)),
        ("reduction.row_weight", "ignored targets count in the mean", "target == IGNORE_INDEX", "target == -1",
         loss(FORWARD, reduction="mean")),
        ("reduction.row_weight", "the class weight does not count in the mean", "weight", "weight * 0.0 + 1.0",
         loss(FORWARD, reduction="mean", weight=True)),
        ("log_probs.gradient", "the target's one is not subtracted", "column == tl.expand_dims(index, AXIS)",
         "column == -1", Case("log_probs", BACKWARD, (9, 57))),
        ("log_probs.correct", "other classes than the argmax are correct", "tl.cast(argmax, tl.int64) == index",
         "tl.cast(argmax, tl.int64) != index",
         Case("log_probs", FORWARD, (9, 57), numbers=(("return_correct", True),))),
        ("glu.up_gradient", "the gate is not activated", "limited * factor", "limited",
         Case("swiglu", BACKWARD, (9, 57))),
        ("glu._limited", "up has no lower limit", "up < -limit", "up < limit * -1e9",
         Case("swiglu", FORWARD, (9, 57), numbers=(("limit", 0.5),))),
        ("rotary.first_rotated", "the rotation has the wrong sign", "SIGN", "-SIGN",
         Case("rotary_embedding", FORWARD, (9, 58))),
        ("rotary.copied", "elements that are not rotated are dropped", "rest", "rest * 0.0",
         Case("rotary_embedding", FORWARD, (9, 58), numbers=(("rotary_dim", 2),))),
        ("qk_norm_rotary.square", "half of the elements are not in the sum of squares",
         "first * first + second * second", "first * first", heads(FORWARD)),
        ("qk_norm_rotary.inverse_rms", "the mean is that of pairs", "2.0 * count", "count", heads(FORWARD)),
        ("qk_norm_rotary.second_result", "the second elements have the weights of the first", "second_weight",
         "first_weight", heads(FORWARD)),
        ("qk_norm_rotary._dn_first", "the gradient is rotated as the result", "-1.0", "1.0",
         heads(BACKWARD)),
        ("qk_norm_rotary.product", "half of the elements are not in dot",
         "dn_first * first + dn_second * second", "dn_first * first", heads(BACKWARD)),
        ("qk_norm_rotary._gradient", "dot is not normalized", "dot * inverse_rms", "dot", heads(BACKWARD)),
    )
] + [
    Mutant("kernel", "the gradient of the sum is dropped", r" \+ dsum\b", "", ("rms_norm_backward",),
           case=rms(BACKWARD)),
    Mutant("kernel", "a block of columns adds the first block", r"(dsum_ptr .*) \+ begin", r"\1",
           ("rms_norm_backward",), case=Case("rms_norm", BACKWARD, (3, 40_000))),
    Mutant("kernel", "a block of columns has the weights of the first block", r"(weight_ptr \+ )column", r"\1columns",
           ("rms_norm",), case=Case("rms_norm", FORWARD, (3, 40_000))),
    Mutant("kernel", "a program keeps the sum over rows of its last row only", r"(sum_of_\w+) \+=", r"\1 =",
           ("layer_norm_backward",), case=Case("layer_norm", BACKWARD, (90, 57))),
    Mutant("kernel", "a row has the loss of the first row", r"(loss_per_row) \+ row_at", r"\1",
           ("cross_entropy",), case=loss(FORWARD)),
    Mutant("top", "of equal experts, the last one comes first", r"tl\.min\((.*), 2147483647\)", r"tl.max(\1, -1)",
           ("route_top_k",), case=Case("route_top_k", FORWARD, (9, 57), values="constant", absent=("bias",))),
    Mutant("kernel", "a row has the weights of the first row", r"(weight_per_top) \+ top_at", r"\1 + number_top",
           ("route_top_k",), case=route(FORWARD)),
    Mutant("kernel", "a row has the gradients of the first row", r"(grad_ptr) \+ top_row", r"\1",
           ("route_top_k_backward",), case=route(BACKWARD)),
    Mutant("row_index", "the target is the next class", r"tl\.cast\(wide, tl\.int32\)", r"\g<0> + 1",
           ("cross_entropy",), case=loss(FORWARD)),
]  # fmt: skip
