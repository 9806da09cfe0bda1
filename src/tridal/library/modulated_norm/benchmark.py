"""The benchmarks of modulated norms beside torch's ops, over the last dim, with one scale and shift for all rows."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from tridal.benchmarks.op_benchmark import Function, OpBenchmark, of_last_dim
from tridal.library.modulated_norm.functions import modulated_layer_norm, modulated_rms_norm
from tridal.ops import per_element

_EPS = 1e-6


def _ours(function: Function) -> Function:
    def compute(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return function(x, scale[:1], x.shape[-1:], eps=_EPS, shift=shift[:1])  # type: ignore[no-any-return]

    return compute


def _of_torch(norm: Function) -> Function:
    def compute(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return norm(x, list(x.shape[-1:]), eps=_EPS) * (1 + scale[:1]) + shift[:1]  # type: ignore[no-any-return]

    return compute


def _benchmark(ours: Function, norm: Function) -> OpBenchmark:
    return OpBenchmark(
        functions={"tridal": of_last_dim(lambda: _ours(ours)), "torch": of_last_dim(lambda: _of_torch(norm))},
        tensors=(per_element("input"), per_element("scale"), per_element("shift")),
        traffic={"forward": 2, "backward": 3},
        suite="hidden",
    )


MODULATED_LAYER_NORM = _benchmark(modulated_layer_norm, functional.layer_norm)
MODULATED_RMS_NORM = _benchmark(modulated_rms_norm, functional.rms_norm)
