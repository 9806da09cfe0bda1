"""`OpBenchmark`: what `tridal bench` measures for an op. Everything that an op does not declare follows from its roles.

`Op.benchmark` names the declaration of an op as "module:object". The module may import what benchmarks need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tridal.benchmarks.providers import OURS
from tridal.errors import PlanError, PluginError
from tridal.ops import row_math, table
from tridal.ops.arguments import Argument, element_dtype
from tridal.ops.op import Op
from tridal.pytorch.torch.private import repeatable_backward
from tridal.testing.implementation import public_function

__all__ = ["Function", "MakeFunction", "OpBenchmark", "of_last_dim"]
__dir__ = __all__.copy

Function: TypeAlias = Callable[..., Any]
"""`function(*tensors)` computes rows along a fixed dim. Returns a tensor, or a tuple of them."""
MakeFunction: TypeAlias = Callable[[int], Function]
"""`make(dim)` returns the function. It imports the library, and raises NotImplementedError for an unsupported dim."""


@dataclass(frozen=True, slots=True)
class OpBenchmark:
    """How to measure an op."""

    functions: Mapping[str, MakeFunction] = field(default_factory=dict)
    """Further implementations by provider name. Results are compared with "torch" or, without it, with "reference".
    Those of "tridal", "reference", "torch" and "torch.compile" are derived."""
    contexts: Mapping[str, Callable[[], AbstractContextManager[Any]]] = field(default_factory=dict)
    """By provider name: makes a context that is active during the calls."""
    tensors: tuple[Argument, ...] = ()
    """The tensors of a call, with their roles, in the order of the functions' arguments. By default, all tensors of
    the op, optional ones last. Backward computes the gradients of those that are differentiable."""
    traffic: Mapping[str, int] = field(default_factory=dict)
    """Useful traffic by direction: how many tensors with a number per element are read or written, each once. By
    default, the tensors of the call and its results; for backward, gradients and saved tensors. Numbers per row and
    per column do not count. An op without a gradient has no "backward"."""
    aims: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Target share of `copy_`'s rate by shape class and direction."""
    first: Callable[[Tensor], Tensor] = Tensor.detach
    """Returns the first tensor, from random numbers of its shape and dtype."""
    suite: str = "rows"
    """The suite of shape classes, a key of `workloads.SUITES`."""
    gradients: int = 1
    """How many results have a gradient. These are the first ones. Derived for an op of rows."""


def measured_ops() -> dict[str, Op]:
    """The ops that `tridal bench` measures, by name: those that declare how, and those with a derived call."""
    return {name: op for name, op in table.ops().items() if op.benchmark is not None or "dim" in op.signature.names}


def benchmark_of(name: str) -> OpBenchmark:
    """Completes the benchmark of an op from its declaration.

    Raises:
        PlanError: the op is unknown, or `tridal bench` does not measure it.
        PluginError: what `Op.benchmark` names cannot be loaded.
    """
    measured = measured_ops()
    if name in table.ops() and name not in measured:
        raise PlanError(f"tridal bench does not measure {name!r}; it measures {', '.join(measured)}")
    op = table.op_named(name, measured)
    declared = OpBenchmark() if op.benchmark is None else _load(op)
    in_order = sorted((a for a in op.arguments if a.type == "Tensor"), key=lambda argument: argument.optional)
    tensors = declared.tensors or tuple(in_order)
    functions = {**(_derived(op, tensors) if "dim" in op.signature.names else {}), **declared.functions}
    eager = functions.get("torch") or functions["reference"]
    functions.setdefault("torch.compile", lambda dim: _compiled(eager(dim)))
    traffic, gradients = ({}, declared.gradients) if declared.traffic else _traffic(op, tensors)
    return replace(
        declared,
        functions=functions,
        contexts={"torch.compile": repeatable_backward, **declared.contexts},
        tensors=tensors,
        traffic={**traffic, **declared.traffic},
        gradients=gradients,
    )


def _load(op: Op) -> OpBenchmark:
    found = op.load("benchmark")
    if not isinstance(found, OpBenchmark):
        raise PluginError(f"op {op.name!r}: benchmark {op.benchmark!r}: expected an OpBenchmark, found {found!r}")
    return found


def _traffic(op: Op, tensors: tuple[Argument, ...]) -> tuple[dict[str, int], int]:
    """Counts the useful traffic by direction, and the results of the call that have a gradient."""
    given = {argument.name: argument.role for argument in tensors}
    results = [result for result in op.results if result.needs is None or result.needs in given]
    known = {**given, **{result.name: result.role for result in results}}
    traffic = {"forward": [*known.values()].count("element")}
    incoming = [result.role for result in results if result.gradient is not None]
    groups = [[known[name] for name in names if name in given] for names in op.gradient_groups]
    outgoing = [roles[0] for roles in groups if roles]
    if incoming and outgoing:
        present = ([known[name] for name in sources if name in known] for sources in op.saved.values())
        saved = [*given.values()] if op.gradient is None else [roles[0] for roles in present if roles]
        traffic["backward"] = (incoming + saved + outgoing).count("element")
    return traffic, len(incoming)


def _derived(op: Op, tensors: tuple[Argument, ...]) -> dict[str, MakeFunction]:
    """Derives implementations from the declaration of an op along `dim`."""
    names = [argument.name for argument in tensors]
    numbers = [argument.default for argument in op.arguments if argument.type != "Tensor"]

    def ours(dim: int) -> Function:
        function = partial(public_function(op.name), dim=dim)
        return function if len(names) == 1 else lambda *given: function(**dict(zip(names, given, strict=True)))

    def reference(dim: int) -> Function:
        """Computes the op's reference in at least float32."""

        def function(*given: Tensor) -> tuple[Tensor, ...]:
            named = dict(zip(names, given, strict=True))
            in_order = [named.get(argument.name) for argument in op.arguments if argument.type == "Tensor"]
            arguments = (*in_order, dim, element_dtype(op.arguments, in_order), *numbers)
            found = row_math.compute(op, *arguments)
            return tuple(result for result in found[: op.returned] if result is not None)

        return function

    def of_torch(dim: int) -> Function:
        return partial(op.torch_function, dim=dim)  # type: ignore[arg-type, misc]

    return {OURS: ours, **({"reference": reference} if op.torch_function is None else {"torch": of_torch})}


def _compiled(function: Function) -> Function:
    """Lets torch compile a function for each shape."""
    torch.compiler.reset()  # compile every shape again; otherwise dynamo's recompile limit makes later shapes eager
    return torch.compile(lambda *arguments: function(*arguments), dynamic=False)


def of_last_dim(make: Callable[[], Function]) -> MakeFunction:
    """Restricts an implementation to the last dim. `make` may import a library.

    Example:
        >>> from tridal.benchmarks.op_benchmark import of_last_dim
        >>> make = of_last_dim(lambda: torch.nn.functional.silu)
        >>> make(-1)(torch.tensor([0.0]))
        tensor([0.])
    """

    def make_function(dim: int) -> Function:
        if dim != -1:
            raise NotImplementedError("supports only the last dimension")
        return make()

    return make_function


def random_tensor(argument: Argument, x: Tensor, dim: int) -> Tensor:
    """Draws a tensor with a role for a call whose first tensor is x, in x's dtype. An index is int64.

    The blocks of rows are the batches of x, or all rows of a matrix.
    """
    if argument.role == "element":
        return torch.randn(x.shape, device=x.device, dtype=x.dtype)
    if argument.role == "block":
        sizes = (*x.shape[: x.dim() > 2], *[1] * (x.dim() - 1 - (x.dim() > 2)), x.shape[-1])
        return torch.randn(sizes, device=x.device, dtype=x.dtype)
    shape = [*x.shape]
    cols = shape.pop(dim)
    if argument.role == "index":
        return torch.randint(cols, shape, device=x.device)
    shape = [cols] if argument.role == "column" else shape
    return torch.rand(shape, device=x.device, dtype=x.dtype) + 0.5
