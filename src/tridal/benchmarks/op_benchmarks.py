"""The table of what `tridal bench` measures for an op: its implementations, arguments, useful traffic and aims.

An op without an entry is measured too, because everything is derived from its declaration. An entry replaces or adds
what cannot be derived. A third party declares its entry as `RowOp.benchmark`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tridal.benchmarks.fused_benchmarks import FUSED_BENCHMARKS
from tridal.benchmarks.op_benchmark import Function, MakeFunction, OpBenchmark, check_last, compiled
from tridal.benchmarks.providers import OURS
from tridal.errors import PlanError
from tridal.ops import table
from tridal.ops.fused_op import FusedOp
from tridal.ops.row_op import RowOp
from tridal.testing.implementation import public_function


def benchmark_of(name: str) -> OpBenchmark:
    """Returns the entry of an op, completed from the op's declaration.

    Raises:
        PlanError: the op is unknown, or `tridal bench` does not measure it.
    """
    measured = measured_ops()
    if name in table.ops() and name not in measured:
        raise PlanError(f"tridal bench does not measure {name!r}; it measures {', '.join(measured)}")
    op = table.op_named(name, measured)
    if not isinstance(op, RowOp):
        return FUSED_BENCHMARKS[name]
    entry: OpBenchmark = op.benchmark or OP_BENCHMARKS.get(name, OpBenchmark())
    kernels = {"forward": op.forward, "backward": op.backward}
    passes = {direction: len(kernel.reads) + len(kernel.writes) for direction, kernel in kernels.items()}
    return replace(entry, functions={**_derived(op), **entry.functions}, passes={**passes, **entry.passes})


def measured_ops() -> dict[str, RowOp | FusedOp]:
    """Returns the ops that `tridal bench` measures, by name."""
    return {name: op for name, op in table.ops().items() if isinstance(op, RowOp) or name in FUSED_BENCHMARKS}


def _derived(op: RowOp) -> dict[str, MakeFunction]:
    """Returns the implementations that follow from an op's declaration."""

    def ours(dim: int) -> Function:
        return partial(public_function(op.name), dim=dim)

    def reference(dim: int) -> Function:
        """Computes the op's reference in at least float32."""
        values = tuple(op.parameters.values())
        return lambda x: op.compute(x.to(torch.promote_types(x.dtype, torch.float32)), dim, values).to(x.dtype)

    if op.torch_function is None:
        return {OURS: ours, "reference": reference, "torch.compile": lambda dim: compiled(reference(dim))}
    function = op.torch_function

    def of_torch(dim: int) -> Function:
        return partial(function, dim=dim)

    # FlagGems replaces the kernels of torch's function.
    by_inductor = partial(_compile_torch, function)
    return {OURS: ours, "torch": of_torch, "torch.compile": by_inductor, "FlagGems": of_torch}


def _compile_torch(function: Function, dim: int) -> Function:
    return compiled(lambda x: function(x, dim))


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


def _liger_softmax(dim: int) -> Function:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    check_last(dim)
    return LigerSoftmaxFunction.apply  # type: ignore[no-any-return]


def _quack_softmax(dim: int) -> Function:
    from quack.softmax import softmax

    check_last(dim)
    return softmax  # type: ignore[no-any-return]


_SOFTMAX_AIMS: Mapping[str, Mapping[str, float]] = {
    "rows": {"forward": 0.97, "backward": 1.0},
    "wide": {"forward": 0.95, "backward": 1.0},
    "odd": {"forward": 0.92, "backward": 0.90},
    "few": {"forward": 0.80, "backward": 0.85},
    "small": {"backward": 1.0},
    "inner": {"forward": 0.85, "backward": 0.85},
    "outer": {"forward": 0.85, "backward": 0.85},
}
OP_BENCHMARKS: Mapping[str, OpBenchmark] = {
    "softmax": OpBenchmark(
        {**_tutorial(_naive_softmax), "Liger-Kernel": _liger_softmax, "quack": _quack_softmax}, aims=_SOFTMAX_AIMS
    ),
    "log_softmax": OpBenchmark(_tutorial(_naive_log_softmax), aims=_SOFTMAX_AIMS),
}
"""The entries of tridal's ops by name."""
