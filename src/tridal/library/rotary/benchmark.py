"""The benchmark of rotary embedding: torch's operations for the halves of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name

import torch
from torch import Tensor

from tridal.benchmarks.op_benchmark import Function, OpBenchmark, of_last_dim
from tridal.ops import per_element


def _of_even_width(function: Callable[..., Tensor]) -> Function:
    """Returns the function of tensors without their last column if their width is odd."""
    return lambda *tensors: function(*(tensor[..., : tensor.shape[-1] // 2 * 2] for tensor in tensors))


def _of_torch(input: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = input.chunk(2, -1)
    return input * cos + torch.cat((-second, first), -1) * sin


def _ours(input: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    functions = resolve_name("tridal.library.rotary.functions")
    halves = (functions._split(tensor) for tensor in (input, cos, sin))
    return functions._rotary(*halves, -2).flatten(-2)  # type: ignore[no-any-return]


ROTARY = OpBenchmark(
    functions={
        "tridal": of_last_dim(lambda: _of_even_width(_ours)), "torch": of_last_dim(lambda: _of_even_width(_of_torch)),
    },
    tensors=(per_element("input"), per_element("cos", differentiable=False), per_element("sin", differentiable=False)),
    traffic={"forward": 4, "backward": 4},
    suite="halves",
)  # fmt: skip
