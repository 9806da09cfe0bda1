"""The benchmarks of modulated norms beside torch's ops, over the last dim.

Gate, scale and shift are those of a batch, or of all rows if the input is a matrix.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from tridal.benchmarks.op_benchmark import Function, OpBenchmark, of_last_dim
from tridal.library.modulated_norm.functions import modulated_layer_norm, modulated_rms_norm
from tridal.ops import Argument, per_element

_EPS = 1e-6


def _ours(function: Function) -> Function:
    def compute(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return function(x, scale, x.shape[-1:], eps=_EPS, shift=shift)  # type: ignore[no-any-return]

    return compute


def _of_torch(norm: Function) -> Function:
    def compute(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return norm(x, list(x.shape[-1:]), eps=_EPS) * (1 + scale) + shift  # type: ignore[no-any-return]

    return compute


def _our_gated(function: Function) -> Function:
    def compute(x: Tensor, residual: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        return function(  # type: ignore[no-any-return]
            x, scale, x.shape[-1:], eps=_EPS, shift=shift, residual=residual, gate=gate
        )

    return compute


def _gated_of_torch(norm: Function) -> Function:
    def compute(x: Tensor, residual: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        total = residual + gate * x
        return _of_torch(norm)(total, scale, shift), total

    return compute


def _per_block(*names: str) -> tuple[Argument, ...]:
    return tuple(Argument(name, role="block", differentiable=True) for name in names)


def _benchmark(ours: Function, norm: Function) -> OpBenchmark:
    return OpBenchmark(
        functions={"tridal": of_last_dim(lambda: _ours(ours)), "torch": of_last_dim(lambda: _of_torch(norm))},
        tensors=(per_element("input"), *_per_block("scale", "shift")),
        traffic={"forward": 2, "backward": 3},
        suite="modulated",
    )


def _gated_benchmark(ours: Function, norm: Function) -> OpBenchmark:
    return OpBenchmark(
        functions={
            "tridal": of_last_dim(lambda: _our_gated(ours)), "torch": of_last_dim(lambda: _gated_of_torch(norm)),
        },
        tensors=(per_element("input"), per_element("residual"), *_per_block("gate", "scale", "shift")),
        traffic={"forward": 4, "backward": 6},
        suite="modulated",
        gradients=2,
    )  # fmt: skip


MODULATED_LAYER_NORM = _benchmark(modulated_layer_norm, functional.layer_norm)
MODULATED_RMS_NORM = _benchmark(modulated_rms_norm, functional.rms_norm)
GATED_MODULATED_LAYER_NORM = _gated_benchmark(modulated_layer_norm, functional.layer_norm)
GATED_MODULATED_RMS_NORM = _gated_benchmark(modulated_rms_norm, functional.rms_norm)
