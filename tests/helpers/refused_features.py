"""Pairs of values of `feature_axes.py` that raise an error: those that torch refuses, and the limits of tridal."""

from __future__ import annotations

import itertools

from torch_versions import TORCH as VERSION

TORCH = "2.13."
"""The version of torch that refuses these on the CPU. Others refuse more or less."""

DISTRIBUTED = ("replicated", "sharded batch", "sharded rows")
_NEED_GRAD = ("gradient", "backward in compiled", "second gradient", "batched gradients")
_TRANSFORMS = ("functional gradient", "batched gradients", "jvp", "dual number", "vmap", "vmap of gradient")
_MASKS = ("boolean mask", "float mask", "causal", "zero rows", "all at once")
_FORWARD_MODE = ("jvp", "dual number")
_BY_TORCH: dict[str, tuple[str, ...]] = {
    "no_grad": _NEED_GRAD,
    "inference": (*_NEED_GRAD, "dual number"),
    "enable_grad in inference": (*_NEED_GRAD, "dual number"),
    "torch dispatch mode": ("compiled",),
    "compiled": ("jvp", "nested"),
    "compiled dynamic": (
        "second gradient", "functional gradient", "jvp", "vmap", "vmap of gradient", "subclass", "nested",
        "torch dispatch mode",
    ),
    "log_softmax": ("nested",),
    "compiled whole": ("second gradient", "subclass"),
    "compiled autograd": ("batched gradients",),
    "exported": ("nested", "jagged"),
    "integers": ("plain", "dim 1", "scale", *_MASKS[:-1], *_NEED_GRAD, *_TRANSFORMS[:-2], "vmap of gradient"),
    "expanded": _FORWARD_MODE,
    "replicated": _FORWARD_MODE,
    "sharded batch": _FORWARD_MODE,
    "sharded rows": _FORWARD_MODE,
    "nested": (*_NEED_GRAD, *_TRANSFORMS, *_MASKS),
    "jagged": _TRANSFORMS,
}  # fmt: skip
REFUSED = {frozenset({one, other}) for one, others in _BY_TORCH.items() for other in others}
"""torch's functions raise an error of the same kind."""
_INFERENCE = ("inference", "enable_grad in inference")
_OF_SEVERAL = [
    *itertools.product(["jagged"], ["log_softmax", "compiled autograd"], _NEED_GRAD[:3]),
    *itertools.product(DISTRIBUTED, ["exported"], ["boolean mask", "float mask", "zero rows", "all at once"]),
    *itertools.product(DISTRIBUTED, ["exported", "traced", "vmap", "vmap of gradient"], _INFERENCE),
    *itertools.product(["jagged"], ["override_torch"], ["scale"], _NEED_GRAD[:3]),
    *itertools.product(DISTRIBUTED, ["compiled whole"], ["batched gradients"]),
]
REFUSED |= set(map(frozenset, _OF_SEVERAL))

UNSTABLE_IN_TORCH = {frozenset({kind, "compiled whole", "backward in compiled"}) for kind in DISTRIBUTED}
"""torch raises an error, or computes the result, depending on what it compiled before."""

LIMITS = {frozenset({"jagged", mask}) for mask in _MASKS}
"""torch computes some of these. `tridal.softmax` raises a LayoutError with a proposal."""

WRONG_IN_TORCH = {frozenset({"jagged", "dim 1", gradient}) for gradient in _NEED_GRAD}
"""torch computes nested tensors for tridal, and its gradient along the ragged dim is wrong."""

_LEAKING = ("layer_norm", "layer_norm with residual", "cross_entropy", "linear_cross_entropy")
LEAKS_IN_TORCH = {frozenset({*pair, "compiled whole"}) for pair in itertools.product(_LEAKING, _FORWARD_MODE)}
"""torch raises an error and leaves its state changed, so that later tests fail.

A level of forward-mode AD stays open. The garbage collector destroys guards in a later test, and each sets the dispatch
keys of the thread to those of its creation.
"""
if VERSION < (2, 9):
    # After one of these, a compiled transform raises "Unsupported functorch tracing attempt", or nothing is compiled.
    LEAKS_IN_TORCH |= {frozenset({kind, "compiled whole", "torch dispatch mode"}) for kind in _TRANSFORMS}
    LEAKS_IN_TORCH |= {frozenset({kind, "backward in compiled", "torch dispatch mode"}) for kind in DISTRIBUTED}
