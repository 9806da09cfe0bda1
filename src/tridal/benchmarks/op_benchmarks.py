"""The table of what `tridal bench` measures for an op: its implementations, arguments, useful traffic and aims.

An op of one tensor without an entry is measured too, because everything is derived from its declaration. An entry
replaces or adds what cannot be derived. A third party declares its entry as `Op.benchmark`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import tridal
from tridal.benchmarks.op_benchmark import Function, MakeFunction, OpBenchmark
from tridal.benchmarks.providers import OURS
from tridal.errors import PlanError
from tridal.ops import row_maths, table
from tridal.ops.op import Op
from tridal.testing.implementation import public_function

_EPS = 1e-6


def benchmark_of(name: str) -> OpBenchmark:
    """Returns the entry of an op, completed from the op's declaration.

    Raises:
        PlanError: the op is unknown, or `tridal bench` does not measure it.
    """
    measured = measured_ops()
    if name in table.ops() and name not in measured:
        raise PlanError(f"tridal bench does not measure {name!r}; it measures {', '.join(measured)}")
    op = table.op_named(name, measured)
    if not op.one_tensor:
        return OP_BENCHMARKS[name]
    entry: OpBenchmark = op.benchmark or OP_BENCHMARKS.get(name, OpBenchmark())
    kernels = {"forward": op.forward, "backward": op.backward}
    passes = {direction: len(kernel.reads) + len(kernel.writes) for direction, kernel in kernels.items()}
    return replace(entry, functions={**_derived(op), **entry.functions}, passes={**passes, **entry.passes})


def measured_ops() -> dict[str, Op]:
    """Returns the ops that `tridal bench` measures, by name."""
    return {name: op for name, op in table.ops().items() if op.one_tensor or name in OP_BENCHMARKS}


def _derived(op: Op) -> dict[str, MakeFunction]:
    """Returns the implementations that follow from an op's declaration."""

    def reference(dim: int) -> Function:
        """Computes the op's reference in at least float32."""
        values = tuple(op.parameters.values())
        wide = torch.promote_types
        return lambda x: row_maths.reference_of(op, x.to(wide(x.dtype, torch.float32)), dim, values).to(x.dtype)

    def of_torch(dim: int) -> Function:
        return partial(op.torch_function, dim=dim)  # type: ignore[arg-type, misc]

    name, eager = ("reference", reference) if op.torch_function is None else ("torch", of_torch)
    functions: dict[str, MakeFunction] = {
        OURS: lambda dim: partial(public_function(op.name), dim=dim),
        name: eager,
        "torch.compile": lambda dim: _compiled(eager(dim)),
    }
    if op.torch_function is not None:
        functions["FlagGems"] = of_torch  # FlagGems replaces the kernels of torch's function
    return functions


def _compiled(function: Function) -> Function:
    """Returns the function, compiled by torch for each shape."""
    torch.compiler.reset()  # compile every shape again; otherwise dynamo's recompile limit makes later shapes eager
    return torch.compile(lambda *arguments: function(*arguments), dynamic=False)


def _naive_softmax(x: Tensor, dim: int) -> Tensor:
    z = x - x.max(dim, keepdim=True)[0]
    numerator = z.exp()
    return numerator / numerator.sum(dim, keepdim=True)


def _naive_log_softmax(x: Tensor, dim: int) -> Tensor:
    z = x - x.max(dim, keepdim=True)[0]
    return z - z.exp().sum(dim, keepdim=True).log()


def _tutorial(function: Function) -> dict[str, MakeFunction]:
    """Returns the two baselines of Triton's softmax tutorial."""

    def script(dim: int) -> Function:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit.script warns that it is deprecated
            scripted = torch.jit.script(function)
        return lambda x: scripted(x, dim)

    return {"naive": lambda dim: partial(function, dim=dim), "torch.jit.script": script}


def _of_last_dim(make: Callable[[], Function]) -> MakeFunction:
    """Returns the functions of an implementation that supports only the last dim. `make` may import a library."""

    def make_function(dim: int) -> Function:
        if dim != -1:
            raise NotImplementedError("supports only the last dimension")
        return make()

    return make_function


def _of_libraries(
    function: Callable[[Any], Function], others: Mapping[str, Callable[[], Function]]
) -> dict[str, MakeFunction]:
    """Returns the implementations of an op of several tensors. `function(library)` calls the op of a library.

    tridal, torch.nn.functional and FlagGems have the same signatures.
    """
    by_torch = function(functional)
    made = {OURS: lambda: function(tridal), "torch": lambda: by_torch, "torch.compile": lambda: _compiled(by_torch)}
    return {name: _of_last_dim(make) for name, make in {**made, **others}.items()}


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


def _cross_entropy(library: Any) -> Function:
    return lambda x, target: library.cross_entropy(x, target, reduction="none")


def _flag_gems_cross_entropy() -> Function:
    return partial(resolve_name("flag_gems.fused:cross_entropy_loss"), reduction="none")


def _weights(number: int, x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return tuple(torch.rand(x.shape[dim], device=x.device, dtype=x.dtype) + 0.5 for _ in range(number))


def _targets(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return (torch.randint(x.shape[dim], (x.shape[0],), device=x.device),)


_SOFTMAX_AIMS: Mapping[str, Mapping[str, float]] = {
    "rows": {"forward": 0.97, "backward": 1.0},
    "wide": {"forward": 0.95, "backward": 1.0},
    "odd": {"forward": 0.92, "backward": 0.90},
    "few": {"forward": 0.80, "backward": 0.85},
    "small": {"backward": 1.0},
    "inner": {"forward": 0.85, "backward": 0.85},
    "outer": {"forward": 0.85, "backward": 0.85},
}
_NORM_AIMS: Mapping[str, Mapping[str, float]] = {
    "hidden": {"forward": 0.97, "backward": 0.95},
    "hidden_wide": {"forward": 0.97, "backward": 0.92},
    "hidden_65536": {"forward": 0.95, "backward": 0.92},
    "hidden_262144": {"forward": 0.95, "backward": 0.85},
    "hidden_odd": {"forward": 0.95, "backward": 0.90},
    "heads": {"forward": 0.97, "backward": 0.90},
}
_LOSS_AIMS: Mapping[str, Mapping[str, float]] = {
    "vocabulary": {"forward": 0.95, "backward": 0.95},
    "vocabulary_odd": {"forward": 0.92, "backward": 0.90},
    "few_classes": {"forward": 0.85, "backward": 0.95},
}
_NORM_PASSES = {"forward": 2, "backward": 3}
_LIGER_SOFTMAX, _QUACK_SOFTMAX = "liger_kernel.ops.softmax:LigerSoftmaxFunction.apply", "quack.softmax:softmax"
OP_BENCHMARKS: Mapping[str, OpBenchmark] = {
    "softmax": OpBenchmark(
        {
            **_tutorial(_naive_softmax),
            "Liger-Kernel": _of_last_dim(lambda: resolve_name(_LIGER_SOFTMAX)),
            "quack": _of_last_dim(lambda: resolve_name(_QUACK_SOFTMAX)),
        },
        aims=_SOFTMAX_AIMS,
    ),
    "log_softmax": OpBenchmark(_tutorial(_naive_log_softmax), aims=_SOFTMAX_AIMS),
    "rms_norm": OpBenchmark(
        _of_libraries(
            _rms_norm, {"Liger-Kernel": _liger_rms_norm, "FlagGems": lambda: _rms_norm(import_module("flag_gems"))}
        ),
        partial(_weights, 1), _NORM_PASSES, _NORM_AIMS, "hidden",
    ),
    "layer_norm": OpBenchmark(
        _of_libraries(_layer_norm, {"Liger-Kernel": _liger_layer_norm, "FlagGems": lambda: _layer_norm(functional)}),
        partial(_weights, 2), _NORM_PASSES, _NORM_AIMS, "hidden",
    ),
    # Liger-Kernel 0.8 computes the gradient of its cross-entropy in the forward, so it is not comparable by direction.
    "cross_entropy": OpBenchmark(
        _of_libraries(_cross_entropy, {"FlagGems": _flag_gems_cross_entropy}),
        _targets, {"forward": 1, "backward": 2}, _LOSS_AIMS, "vocabularies",
    ),
}  # fmt: skip
"""The entries of tridal's ops by name."""
