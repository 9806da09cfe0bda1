"""The benchmarks of softmax and log_softmax: the tutorial's baselines, functions of other libraries, and aims."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from pkgutil import resolve_name

import torch
from torch import Tensor

from tridal.benchmarks.op_benchmark import Function, MakeFunction, OpBenchmark, of_last_dim
from tridal.benchmarks.providers import flag_gems_kernels


def _naive_softmax(x: Tensor, dim: int) -> Tensor:
    z = x - x.max(dim, keepdim=True)[0]
    numerator = z.exp()
    return numerator / numerator.sum(dim, keepdim=True)


def _naive_log_softmax(x: Tensor, dim: int) -> Tensor:
    z = x - x.max(dim, keepdim=True)[0]
    return z - z.exp().sum(dim, keepdim=True).log()


def _script(function: Function, dim: int) -> Function:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.script warns that it is deprecated
        scripted = torch.jit.script(function)
    return lambda x: scripted(x, dim)


def _benchmark(naive: Function, of_torch: Function, others: Mapping[str, MakeFunction]) -> OpBenchmark:
    """Returns the benchmark of an op with the two baselines of Triton's softmax tutorial."""
    functions: dict[str, MakeFunction] = {
        "FlagGems": lambda dim: partial(of_torch, dim=dim),
        "naive": lambda dim: partial(naive, dim=dim),
        "torch.jit.script": partial(_script, naive),
        **others,
    }
    return OpBenchmark(functions, {"FlagGems": partial(flag_gems_kernels, of_torch.__name__)}, aims=_AIMS)


_AIMS: Mapping[str, Mapping[str, float]] = {
    "rows": {"forward": 0.97, "backward": 1.0},
    "wide": {"forward": 0.95, "backward": 1.0},
    "odd": {"forward": 0.92, "backward": 0.90},
    "few": {"forward": 0.80, "backward": 0.85},
    "small": {"backward": 1.0},
    "inner": {"forward": 0.85, "backward": 0.85},
    "outer": {"forward": 0.85, "backward": 0.85},
}
_LIGER, _QUACK = "liger_kernel.ops.softmax:LigerSoftmaxFunction.apply", "quack.softmax:softmax"
SOFTMAX = _benchmark(
    _naive_softmax,
    torch.softmax,
    {
        "Liger-Kernel": of_last_dim(lambda: resolve_name(_LIGER)),
        "quack": of_last_dim(lambda: resolve_name(_QUACK)),
    },
)
LOG_SOFTMAX = _benchmark(_naive_log_softmax, torch.log_softmax, {})
