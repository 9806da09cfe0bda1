"""The benchmarks of swiglu and geglu: functions of torch and Liger-Kernel for two tensors, and aims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name

from torch import Tensor
from torch.nn import functional

from tridal.benchmarks.op_benchmark import Function, OpBenchmark, of_last_dim
from tridal.ops import per_element

_AIMS: Mapping[str, Mapping[str, float]] = {
    "hidden": {"forward": 0.97, "backward": 0.97},
    "hidden_wide": {"forward": 0.97, "backward": 0.97},
    "hidden_odd": {"forward": 0.93, "backward": 0.93},
}


def _of_torch(activation: Callable[[Tensor], Tensor]) -> Function:
    return lambda input, up: activation(input) * up


def _benchmark(ours: str, activation: Callable[[Tensor], Tensor], liger: str) -> OpBenchmark:
    return OpBenchmark(
        functions={
            "tridal": of_last_dim(lambda: resolve_name(f"tridal.library.glu.functions:{ours}")),
            "torch": of_last_dim(lambda: _of_torch(activation)),
            "Liger-Kernel": of_last_dim(lambda: resolve_name(f"liger_kernel.ops.{liger}.apply")),
        },
        tensors=(per_element("input"), per_element("up")),
        traffic={"forward": 3, "backward": 5},
        aims=_AIMS,
        suite="hidden",
    )


SWIGLU = _benchmark("swiglu", functional.silu, "swiglu:LigerSiLUMulFunction")
GEGLU = _benchmark("geglu", partial(functional.gelu, approximate="none"), "geglu:LigerGELUMulFunction")
