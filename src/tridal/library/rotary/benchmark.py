"""The benchmark of rotary embedding: torch's operations for the halves of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name

import torch
from torch import Tensor

from tridal.benchmarks.op_benchmark import Function, OpBenchmark, of_last_dim
from tridal.ops import per_element


def _of_query(function: Callable[..., Tensor]) -> Function:
    """Returns function(query, None, cos, sin) as one of matrices, without their last column if their width is odd."""

    def of_matrices(input: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        input, cos, sin = (tensor[..., : tensor.shape[-1] // 2 * 2] for tensor in (input, cos, sin))
        return function(input[None, None], None, cos, sin)

    return of_matrices


def _of_torch(query: Tensor, key: None, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = query.chunk(2, -1)
    return query * cos + torch.cat((-second, first), -1) * sin


ROTARY = OpBenchmark(
    functions={
        "tridal": of_last_dim(lambda: _of_query(resolve_name("tridal.library.rotary.functions").rotary_embedding)),
        "torch": of_last_dim(lambda: _of_query(_of_torch)),
    },
    tensors=(per_element("input"), per_element("cos", differentiable=False), per_element("sin", differentiable=False)),
    traffic={"forward": 4, "backward": 4},
    suite="halves",
)
