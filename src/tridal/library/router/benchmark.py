"""The benchmark of route_top_k beside torch's ops, as transformers' Mixtral and Qwen3-MoE choose 8 experts."""

from __future__ import annotations

import torch
from torch import Tensor

from tridal.benchmarks.op_benchmark import OpBenchmark, of_last_dim
from tridal.library.router.functions import route_top_k
from tridal.ops import per_element

_K = 8


def _distinct(x: Tensor) -> Tensor:
    """Returns rows of different logits, because torch and tridal may choose different ones of equal logits.

    16-bit dtypes represent up to 512 logits exactly.
    """
    return ((x.argsort(-1).argsort(-1) - x.shape[-1] // 2) / 32).to(x.dtype)


def _of_torch(x: Tensor) -> tuple[Tensor, Tensor]:
    weights, indices = torch.topk(torch.softmax(x, -1, dtype=torch.float32), min(_K, x.shape[-1]))
    return weights / weights.sum(-1, keepdim=True), indices


def _ours(x: Tensor) -> tuple[Tensor, Tensor]:
    return route_top_k(x, min(_K, x.shape[-1]), normalize=True, dtype=torch.float32)


ROUTE_TOP_K = OpBenchmark(
    functions={"tridal": of_last_dim(lambda: _ours), "torch": of_last_dim(lambda: _of_torch)},
    tensors=(per_element("input"),),
    traffic={"forward": 1, "backward": 2},
    first=_distinct,
    suite="experts",
)
