"""The declaration of an op: its kernels, its maths in torch's ops, and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tridal.ops.names import name_fault, parameter_fault
from tridal.ops.row_reduce import RowReduce
from tridal.runtime.row_kernel import RowKernel


@dataclass(frozen=True, eq=False)
class RowOp:
    """An op that computes each row of a tensor on its own, along one dim, and keeps the tensor's shape.

    The registered op in `torch.ops.tridal`, its gradient, the conformance cases, the benchmarks, the choices of the
    commands and the plans of all backends are derived from it. Compared and hashed by identity.

    Attributes:
        name: lower-case letters, digits and underscores; no keyword of Python.
        forward: the kernel of the op. It reads one tensor and has the op's name.
        backward: the kernel of the gradient, named "<op>_backward". It reads the output's gradient, then the saved
            tensor.
        reference: the op in torch's ops: `reference(x, reduce, **parameters)`. Autograd can differentiate it. In
            float64, it is the reference of the conformance suite. It also computes tensors that no kernel supports,
            higher-order and forward-mode derivatives, and rows that are sharded over ranks. For sharded rows, `reduce`
            spans the ranks.
        gradient: the gradient in torch's ops: `gradient(dy, saved, reduce, **parameters)`.
        saves: the tensor that the gradient needs: "output" or "input".
        parameters: keyword arguments that are numbers, with their defaults.
        torch_function: torch's own function for the op, if there is one: `f(input, dim, dtype=dtype)`. It computes
            calls without a kernel, and benchmarks compare with it.
        aten: name of the ATen op that `tridal.override_torch` replaces, for example "_softmax". Only tridal's own ops
            replace one.
        autocast: whether autocast computes the op in float32, as torch does for softmax. If not, the op computes in the
            input's dtype under autocast.
        bounds: the error bounds of the conformance suite: an object with the methods `forward`, `backward` and
            `second_order` of `tridal.testing.tolerance.DerivedBounds`, which is the default. It measures how sensitive
            the reference is to rounding errors.
        benchmark: what `tridal bench` measures, a `tridal.benchmarks.op_benchmark.OpBenchmark`; None derives it.
    """

    name: str
    forward: RowKernel
    backward: RowKernel
    reference: Callable[..., torch.Tensor]
    gradient: Callable[..., torch.Tensor]
    saves: Literal["output", "input"] = "output"
    parameters: Mapping[str, float] = field(default_factory=dict)
    torch_function: Callable[..., torch.Tensor] | None = None
    aten: str | None = None
    autocast: bool = False
    bounds: Any = None
    benchmark: Any = None

    def __repr__(self) -> str:
        return f"RowOp({self.name!r})"

    @property
    def kernels(self) -> tuple[RowKernel, ...]:
        """The kernel of the op and that of its gradient."""
        return self.forward, self.backward

    @property
    def scale_mask(self) -> bool:
        """Whether the op takes `scale`, `mask`, `causal` and `masked_rows`."""
        return self.forward.scale_mask

    def backward_parameters(self, parameters: tuple[float, ...], scale: float = 1.0) -> tuple[float | None, ...]:
        """Returns the values of the gradient's parameters, from the op's values in order. A scale of 1 becomes None."""
        values: dict[str, float | None] = dict(zip(self.parameters, parameters, strict=True))
        values["scale"] = None if scale == 1 else float(scale)
        return tuple(values[name] for name in self.backward.parameters)

    def keywords(self, kernel: RowKernel, values: tuple[float | None, ...]) -> dict[str, float]:
        """Returns the values of a kernel's parameters by name. A scale of None becomes 1."""
        return {n: 1.0 if value is None else value for n, value in zip(kernel.parameters, values, strict=True)}

    def compute(self, x: torch.Tensor, dim: int, parameters: tuple[float, ...] = ()) -> torch.Tensor:
        """Computes the reference in x's dtype, for rows that are not sharded."""
        if x.dim() == 0:
            return self.compute(x.reshape(1), 0, parameters).reshape(())
        return self.reference(x, RowReduce(x, dim), **self.keywords(self.forward, parameters))

    def compute_gradient(
        self, dy: torch.Tensor, saved: torch.Tensor, dim: int, parameters: tuple[float | None, ...]
    ) -> torch.Tensor:
        """Computes the gradient in the tensors' dtype, for rows that are not sharded."""
        if saved.dim() == 0:
            return self.compute_gradient(dy.reshape(1), saved.reshape(1), 0, parameters).reshape(())
        return self.gradient(dy, saved, RowReduce(saved, dim), **self.keywords(self.backward, parameters))

    def fault(self) -> str | None:
        """Returns a description of a fault in the declaration, or None if there is none."""
        for kernel, reads in ((self.forward, 1), (self.backward, 2)):
            if not isinstance(kernel, RowKernel):
                return f"expected a RowKernel, found {kernel!r}"
            if (found := kernel.fault()) is not None:
                return found
            if len(kernel.reads) != reads:
                return f"kernel {kernel.name!r} reads {', '.join(kernel.reads)}: expected {reads} tensor(s)"
            if len(kernel.pointers) != 1 + reads:
                return f"kernel {kernel.name!r}: a RowOp has no tensors per row or per column, and writes one tensor"
        for fault in (name_fault(self.name), *map(parameter_fault, self.parameters)):
            if fault is not None:
                return fault
        for name, value in self.parameters.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return f"parameters: expected a number as the default of {name!r}, found {value!r}"
        if (self.forward.name, self.backward.name) != (self.name, f"{self.name}_backward"):
            return f"its kernels are called {self.forward.name!r} and {self.backward.name!r}: expected the op's name"
        if not callable(self.reference) or not callable(self.gradient):
            return "it has no reference: expected functions `reference` and `gradient` made of torch's ops"
        if self.saves not in ("output", "input"):
            return f"saves: expected 'output' or 'input', found {self.saves!r}"
        if self.forward.parameters != tuple(self.parameters):
            return f"the parameters {list(self.parameters)} differ from its kernel's {list(self.forward.parameters)}"
        unknown = set(self.backward.parameters) - {*self.parameters, "scale"}
        return f"the gradient has unknown parameters: {', '.join(sorted(unknown))}" if unknown else None
