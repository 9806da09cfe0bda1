"""swiglu and geglu: their kernels, their math in torch's ops, and their gradients.

The gate and the tensor that its activation is multiplied with are `input` and `up`. Without `up`, they are the two
columns of each row of `input`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tridal.ops import Argument, Named, Op, Result, Role, RowKernel, RowReduce, number, per_element
from tridal.pytorch import Steps

Tensor = torch.Tensor
MODULE = "tridal.library.glu.kernels.glu"
_SQRT_8_PI = math.sqrt(8 / math.pi)


def _factor(gate: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Returns the factor of the gate in its activation, and the derivative of the factor."""
    if activation == "gelu":
        factor = (1 + torch.special.erf(gate * math.sqrt(0.5))) * 0.5
        return factor, (gate * gate * -0.5).exp() / math.sqrt(2 * math.pi)
    if activation == "silu":
        factor = torch.sigmoid(gate)
        return factor, factor * torch.sigmoid(-gate)
    # Beyond |gate| = 100, the factor is 0 or 1 and its derivative 0, in float64, too. An infinite square gives 0 * inf.
    square = (gate * gate).clamp(max=1e4)
    x = gate * (1 + 0.044715 * square) * _SQRT_8_PI
    factor = torch.sigmoid(x)
    return factor, factor * torch.sigmoid(-x) * (1 + 3 * 0.044715 * square) * _SQRT_8_PI


def _columns(input: Tensor, up: Tensor | None, reduce: RowReduce) -> tuple[Tensor, Tensor]:
    """The gate and up, which without `up` have a number per row."""
    if up is not None:
        return input, up
    first = reduce.columns(input) == 0
    return reduce(torch.where(first, input, 0.0), "sum"), reduce(torch.where(first, 0.0, input), "sum")


def _views(call: Steps, input: Tensor, up: Tensor | None, dim: int) -> tuple[Tensor, Tensor]:
    """The gate and up, which without `up` are views of the input."""
    if up is not None:
        return input, up
    return call.view(Tensor.select, input, dim, 0), call.view(Tensor.select, input, dim, 1)


def _limited(gate: Tensor, up: Tensor, limit: float | None) -> tuple[Tensor, Tensor]:
    """Clamps the gate to at most `limit`, and up to between -limit and limit."""
    if limit is None:
        return gate, up
    largest = gate.new_full((), limit)
    up = torch.where(up < -largest, -largest, up)
    return torch.where(gate > largest, largest, gate), torch.where(up > largest, largest, up)


_empty_like = partial(torch.empty_like, memory_format=torch.contiguous_format)


def _role(named: Named) -> Role:
    return "row" if named["up"] is None else "element"


def _dtype_of(name: str) -> Callable[[Named], torch.dtype]:
    return lambda named: named["input" if named[name] is None else name].dtype


class _Glu:
    """The math and the steps of a gated linear unit. `activation` returns the name of its activation in a call."""

    def __init__(self, name: str, activation: Callable[[Named], str], *numbers: Argument) -> None:
        self.activation = activation
        constants = (("ACTIVATION", activation({n.name: n.default for n in numbers})), ("LIMIT", None))
        self.forward = RowKernel(
            name=name, module=MODULE, reads=("gate", "up"), statistics=(), writes=("glu",),
            constants=(*constants, ("ROUNDS", False), ("GATE_DTYPE", "float32")),
        )  # fmt: skip
        self.backward = RowKernel(
            name=f"{name}_backward", module=MODULE, reads=("dy", "gate", "up"), statistics=(),
            writes=("gate_gradient", "up_gradient"), constants=constants, live_tiles=6,
        )  # fmt: skip
        self.op = Op(
            name=name,
            arguments=(
                per_element("input"), per_element("up", optional=True), *numbers,
                number("casting", "", range=("", "transformers")),
            ),
            results=(Result("output", _role, lambda named: named["dtype"], gradient="dy"),),
            kernels=(self.forward, self.backward),
            reference=self.reference,
            gradient=self.gradient,
            steps=self.steps,
            gradient_steps=self.gradient_steps,
            any_rows=True,
            saves=("input", "up"),
            gradient_numbers=tuple(replace(n, default=None) for n in numbers),  # no default before `output_mask`
            gradient_results=(
                Result("input", "element", _dtype_of("input")), Result("up", "element", _dtype_of("up"), "up"),
            ),
            cases="tridal.library.glu.cases:GLU",
            benchmark=f"tridal.library.glu.benchmark:{name.upper()}",
        )  # fmt: skip

    def reference(
        self, input: Tensor, up: Tensor | None, reduce: RowReduce, casting: str, limit: float | None = None,
        **named: Any,
    ) -> Tensor:  # fmt: skip
        """Returns activation(gate) * up."""
        gate, up = _limited(*_columns(input, up, reduce), limit)
        activated = gate * _factor(gate, self.activation(named))[0]
        return (reduce.rounded(activated, reduce.dtypes["input"]) if casting else activated) * up

    def gradient(
        self, dy: Tensor, input: Tensor, up: Tensor | None, reduce: RowReduce, limit: float | None = None, **named: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the gradients of both tensors. They do not depend on `casting`: they pass through the rounding."""
        given = _columns(input, up, reduce)
        gate, other = _limited(*given, limit)
        factor, slope = _factor(gate, self.activation(named))
        gradients = dy * other * (factor + gate * slope), dy * (gate * factor)
        if limit is not None:
            beyond = given[0] > gate, (given[1] > other) | (given[1] < other)
            gradients = torch.where(beyond[0], 0.0, gradients[0]), torch.where(beyond[1], 0.0, gradients[1])
        return gradients if up is not None else (torch.where(reduce.columns(input) == 0, *gradients), None)

    def steps(self, call: Steps, named: Named) -> tuple[Any, ...]:
        gate, up = _views(call, named["input"], named["up"], named["dim"])
        options: Any = {
            "LIMIT": named.get("limit"),
            "ROUNDS": named["casting"] != "",
            "GATE_DTYPE": str(gate.dtype).removeprefix("torch."),
        }
        return call.kernel(
            self.forward, gate, up, dtypes=(named["dtype"],), ACTIVATION=self.activation(named), **options
        )

    def gradient_steps(self, call: Steps, named: Named) -> tuple[Any, ...]:
        """Computes the gradients that are needed with one kernel. Those of halves are halves of one tensor."""
        input, up, dim = named["input"], named["up"], named["dim"]
        gate, other = _views(call, input, up, dim)
        if not any(call.wanted):
            return None, None
        wanted = [index for index in (0, 1) if up is None or call.wanted[index]]
        gradient = call.torch(_empty_like, input) if up is None else None
        found = call.kernel(
            self.backward, named["dy"], gate, other, dtypes=[(gate, other)[i].dtype for i in wanted],
            writes=[self.backward.writes[i] for i in wanted], ACTIVATION=self.activation(named),
            LIMIT=named.get("limit"), out=None if gradient is None else _views(call, gradient, None, dim),
        )  # fmt: skip
        gradients = dict(zip(wanted, found, strict=True))
        return (gradients.get(0), gradients.get(1)) if gradient is None else (gradient, None)


_APPROXIMATE = number("approximate", "none", range=("none", "tanh"))
_LIMIT = number("limit", optional=True, range=(0.5, 4.0))
SWIGLU = _Glu("swiglu", lambda named: "silu", _LIMIT).op
GEGLU = _Glu("geglu", lambda named: "gelu_tanh" if named["approximate"] == "tanh" else "gelu", _APPROXIMATE).op
