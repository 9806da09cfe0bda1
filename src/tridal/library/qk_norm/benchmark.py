"""The benchmark of qk_norm_rotary beside torch's ops: the heads of a query [length, heads, dim]."""

from __future__ import annotations

from torch import Tensor, cat
from torch.nn import functional

from tridal.benchmarks.op_benchmark import Function, OpBenchmark, of_last_dim
from tridal.library.qk_norm.functions import qk_norm_rotary
from tridal.ops import Argument, per_column, per_element

_EPS = 1e-6


def _of_heads(function: Function) -> Function:
    """Returns a function of heads, without their last column if their width is odd. A matrix has one token."""

    def compute(*given: Tensor) -> Tensor:
        x, cos, sin, weight = (tensor[..., : tensor.shape[-1] // 2 * 2] for tensor in given)
        x, cos, sin = (tensor if tensor.dim() == 3 else tensor.unsqueeze(0) for tensor in (x, cos, sin))
        return function(x, cos, sin, weight)  # type: ignore[no-any-return]

    return compute


def _of_torch(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor) -> Tensor:
    n = functional.rms_norm(x, list(x.shape[-1:]), weight, _EPS)
    first, second = n.chunk(2, -1)
    return n * cos + cat((-second, first), -1) * sin


def _ours(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor) -> Tensor:
    return qk_norm_rotary(x, None, weight, None, cos[:, 0], sin[:, 0], _EPS, unsqueeze_dim=1)


QK_NORM_ROTARY = OpBenchmark(
    functions={
        "tridal": of_last_dim(lambda: _of_heads(_ours)), "torch": of_last_dim(lambda: _of_heads(_of_torch)),
    },
    tensors=(
        per_element("query"), Argument("cos", role="block"), Argument("sin", role="block"), per_column("weight"),
    ),
    traffic={"forward": 2, "backward": 3},
    suite="query",
)  # fmt: skip
