"""The benchmarks of rms_norm and layer_norm: functions of tridal, torch and other libraries over the last dim, aims."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pkgutil import resolve_name

from torch.nn import functional

from tridal.benchmarks.op_benchmark import Function, OpBenchmark, of_last_dim
from tridal.benchmarks.providers import flag_gems_kernels
from tridal.library.norms import functions as norms
from tridal.ops import per_column, per_element

_EPS = 1e-6


def _norm(function: Function) -> Function:
    return lambda x, *parameters: function(x, list(x.shape[-1:]), *parameters, _EPS)


def _liger(name: str, *options: object) -> Function:
    apply = resolve_name(f"liger_kernel.ops.{name}.apply")
    return lambda x, *parameters: apply(x, *parameters, _EPS, *options)


_AIMS: Mapping[str, Mapping[str, float]] = {
    "hidden": {"forward": 0.97, "backward": 0.95},
    "hidden_between": {"forward": 0.95, "backward": 0.92},
    "hidden_wide": {"forward": 0.97, "backward": 0.92},
    "hidden_65536": {"forward": 0.95, "backward": 0.92},
    "hidden_262144": {"forward": 0.95, "backward": 0.85},
    "hidden_odd": {"forward": 0.95, "backward": 0.90},
    "heads": {"forward": 0.97, "backward": 0.90},
}
RMS_NORM = OpBenchmark(
    functions={
        "tridal": of_last_dim(lambda: _norm(norms.rms_norm)),
        "torch": of_last_dim(lambda: _norm(functional.rms_norm)),
        "Liger-Kernel": of_last_dim(lambda: _liger("rms_norm:LigerRMSNormFunction", 0.0, "gemma", False)),
        "FlagGems": of_last_dim(lambda: _norm(resolve_name("flag_gems:rms_norm"))),
    },
    tensors=(per_element("input"), per_column("weight")),
    aims=_AIMS,
    suite="hidden",
)
LAYER_NORM = OpBenchmark(
    functions={
        "tridal": of_last_dim(lambda: _norm(norms.layer_norm)),
        "torch": of_last_dim(lambda: _norm(functional.layer_norm)),
        "Liger-Kernel": of_last_dim(lambda: _liger("layer_norm:LigerLayerNormFunction")),
        "FlagGems": of_last_dim(lambda: _norm(functional.layer_norm)),
    },
    contexts={"FlagGems": partial(flag_gems_kernels, "layer_norm")},
    tensors=(per_element("input"), per_column("weight"), per_column("bias")),
    aims=_AIMS,
    suite="hidden",
)
