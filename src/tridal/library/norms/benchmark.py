"""The benchmarks of rms_norm and layer_norm: functions of tridal, torch and other libraries over the last dim, aims."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

from torch.nn import functional

from tridal.benchmarks.op_benchmark import Function, OpBenchmark, of_last_dim
from tridal.benchmarks.providers import flag_gems_kernels
from tridal.library.norms import functions as norms
from tridal.ops import per_column, per_element

_EPS = 1e-6


def _rms_norm(library: Any) -> Function:
    return lambda x, weight: library.rms_norm(x, list(x.shape[-1:]), weight, _EPS)


def _liger_rms_norm() -> Function:
    apply = resolve_name("liger_kernel.ops.rms_norm:LigerRMSNormFunction.apply")
    return lambda x, weight: apply(x, weight, _EPS, 0.0, "gemma", False)


def _layer_norm(library: Any) -> Function:
    return lambda x, weight, bias: library.layer_norm(x, list(x.shape[-1:]), weight, bias, _EPS)


def _liger_layer_norm() -> Function:
    apply = resolve_name("liger_kernel.ops.layer_norm:LigerLayerNormFunction.apply")
    return lambda x, weight, bias: apply(x, weight, bias, _EPS)


_AIMS: Mapping[str, Mapping[str, float]] = {
    "hidden": {"forward": 0.97, "backward": 0.95},
    "hidden_wide": {"forward": 0.97, "backward": 0.92},
    "hidden_65536": {"forward": 0.95, "backward": 0.92},
    "hidden_262144": {"forward": 0.95, "backward": 0.85},
    "hidden_odd": {"forward": 0.95, "backward": 0.90},
    "heads": {"forward": 0.97, "backward": 0.90},
}
RMS_NORM = OpBenchmark(
    functions={
        "tridal": of_last_dim(lambda: _rms_norm(norms)),
        "torch": of_last_dim(lambda: _rms_norm(functional)),
        "Liger-Kernel": of_last_dim(_liger_rms_norm),
        "FlagGems": of_last_dim(lambda: _rms_norm(import_module("flag_gems"))),
    },
    tensors=(per_element("input"), per_column("weight")),
    aims=_AIMS,
    suite="hidden",
)
LAYER_NORM = OpBenchmark(
    functions={
        "tridal": of_last_dim(lambda: _layer_norm(norms)),
        "torch": of_last_dim(lambda: _layer_norm(functional)),
        "Liger-Kernel": of_last_dim(_liger_layer_norm),
        "FlagGems": of_last_dim(lambda: _layer_norm(functional)),
    },
    contexts={"FlagGems": partial(flag_gems_kernels, "layer_norm")},
    tensors=(per_element("input"), per_column("weight"), per_column("bias")),
    aims=_AIMS,
    suite="hidden",
)
