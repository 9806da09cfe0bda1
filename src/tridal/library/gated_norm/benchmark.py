"""The benchmark of gated_rms_norm beside torch's ops, over the last dim."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from tridal.benchmarks.op_benchmark import OpBenchmark, of_last_dim
from tridal.library.gated_norm.functions import gated_rms_norm
from tridal.ops import per_column, per_element

_EPS = 1e-6


def _of_torch(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, list(x.shape[-1:]), weight, _EPS) * functional.silu(gate)


def _ours(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    return gated_rms_norm(x, gate, x.shape[-1:], weight, _EPS)


GATED_RMS_NORM = OpBenchmark(
    functions={"tridal": of_last_dim(lambda: _ours), "torch": of_last_dim(lambda: _of_torch)},
    tensors=(per_element("input"), per_element("gate"), per_column("weight")),
    traffic={"forward": 3, "backward": 5},
    suite="hidden",
)
