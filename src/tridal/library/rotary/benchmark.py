"""The benchmark of rotary embedding: torch's operations for the halves of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name

import torch
from torch import Tensor

from tridal.benchmarks.op_benchmark import Function, OpBenchmark, of_last_dim
from tridal.ops import per_element


def _of_rows(function: Callable[..., tuple[Tensor, ...]]) -> Function:
    """Returns function(query, key, cos, sin) as one of matrices, without their last column if their width is odd.

    The query has the first half of the rows, and the key the second half. Both have the first half of cos and sin, so
    two launches read as many elements as one launch reads of the matrices.
    """

    def of_matrices(input: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        input, cos, sin = (tensor[..., : tensor.shape[-1] // 2 * 2] for tensor in (input, cos, sin))
        half = max(input.shape[0] // 2, 1)
        return function(input[None, None, :half], input[None, None, -half:], cos[:half], sin[:half])

    return of_matrices


def _of_torch(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)

    return query * cos + rotated(query) * sin, key * cos + rotated(key) * sin


ROTARY = OpBenchmark(
    functions={
        "tridal": of_last_dim(lambda: _of_rows(resolve_name("tridal.library.rotary.functions").rotary_embedding)),
        "torch": of_last_dim(lambda: _of_rows(_of_torch)),
    },
    tensors=(per_element("input"), per_element("cos", differentiable=False), per_element("sin", differentiable=False)),
    traffic={"forward": 4, "backward": 4},
    suite="halves",
    gradients=2,
)  # fmt: skip
