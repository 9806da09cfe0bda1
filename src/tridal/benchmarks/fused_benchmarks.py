"""What `tridal bench` measures for the ops of several tensors: norms and the cross-entropy.

Liger-Kernel 0.8 computes the gradient of its cross-entropy in the forward, so it is not comparable by direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tridal.benchmarks.op_benchmark import Function, MakeFunction, OpBenchmark, check_last, compiled
from tridal.benchmarks.providers import OURS

_EPS = 1e-6


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape[-1:])


def _providers(
    ours: Function, by_torch: Function, others: Mapping[str, Callable[[], Function]]
) -> dict[str, MakeFunction]:
    """Returns the implementations for the last dim. `others` import their library when they are called."""

    def of_last_dim(make: Callable[[], Function]) -> MakeFunction:
        def make_function(dim: int) -> Function:
            check_last(dim)
            return make()

        return make_function

    made: dict[str, Callable[[], Function]] = {
        OURS: lambda: ours,
        "torch": lambda: by_torch,
        "torch.compile": partial(compiled, by_torch),
        **others,
    }
    return {name: of_last_dim(make) for name, make in made.items()}


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    import tridal

    y: Tensor = tridal.rms_norm(x, _shape(x), weight, _EPS)
    return y


def _torch_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, _shape(x), weight, _EPS)


def _liger_rms_norm() -> Function:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return lambda x, weight: LigerRMSNormFunction.apply(x, weight, _EPS, 0.0, "gemma", False)


def _flag_gems_rms_norm() -> Function:
    import flag_gems

    return lambda x, weight: flag_gems.rms_norm(x, list(_shape(x)), weight, _EPS)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    import tridal

    y: Tensor = tridal.layer_norm(x, _shape(x), weight, bias, _EPS)
    return y


def _torch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, _shape(x), weight, bias, _EPS)


def _liger_layer_norm() -> Function:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, _EPS)


def _cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    import tridal

    losses = tridal.cross_entropy(x, target, reduction="none")
    assert isinstance(losses, Tensor)
    return losses


def _torch_cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(x, target, reduction="none")


def _flag_gems_cross_entropy() -> Function:
    from flag_gems.fused import cross_entropy_loss

    return lambda x, target: cross_entropy_loss(x, target, reduction="none")


def _weights(number: int, x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return tuple(torch.rand(x.shape[dim], device=x.device, dtype=x.dtype) + 0.5 for _ in range(number))


def _targets(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return (torch.randint(x.shape[dim], (x.shape[0],), device=x.device),)


_NORM_AIMS: Mapping[str, Mapping[str, float]] = {
    "hidden": {"forward": 0.97, "backward": 0.95},
    "hidden_wide": {"forward": 0.97, "backward": 0.92},
    "hidden_65536": {"forward": 0.95, "backward": 0.92},
    "hidden_262144": {"forward": 0.95, "backward": 0.85},
    "hidden_odd": {"forward": 0.95, "backward": 0.90},
    "heads": {"forward": 0.97, "backward": 0.90},
}
_NORM_PASSES = {"forward": 2, "backward": 3}
FUSED_BENCHMARKS: Mapping[str, OpBenchmark] = {
    "rms_norm": OpBenchmark(
        _providers(
            _rms_norm, _torch_rms_norm, {"Liger-Kernel": _liger_rms_norm, "FlagGems": _flag_gems_rms_norm}
        ),
        arguments=partial(_weights, 1), passes=_NORM_PASSES, aims=_NORM_AIMS, suite="hidden",
    ),
    "layer_norm": OpBenchmark(
        _providers(
            _layer_norm, _torch_layer_norm, {"Liger-Kernel": _liger_layer_norm, "FlagGems": lambda: _torch_layer_norm}
        ),
        arguments=partial(_weights, 2), passes=_NORM_PASSES, aims=_NORM_AIMS, suite="hidden",
    ),
    "cross_entropy": OpBenchmark(
        _providers(_cross_entropy, _torch_cross_entropy, {"FlagGems": _flag_gems_cross_entropy}),
        arguments=_targets, passes={"forward": 1, "backward": 2}, suite="vocabularies",
        aims={
            "vocabulary": {"forward": 0.95, "backward": 0.95},
            "vocabulary_odd": {"forward": 0.92, "backward": 0.90},
            "few_classes": {"forward": 0.85, "backward": 0.95},
        },
    ),
}  # fmt: skip
"""The entries by name of the op."""
