"""The example of an op whose result and gradient were calculated by hand, see `Op.example`."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from tridal.ops import table
from tridal.testing.checking import Result
from tridal.testing.implementation import Implementation
from tridal.testing.raised import raised

_ALLOWED = 0.501e-4  # half a unit of the fourth decimal, plus the rounding error of float32


@dataclass(frozen=True, slots=True)
class Worked:
    """The op and the numbers of its example. `y` and `dx` are computed, and empty if the function raised."""

    op: str
    x: list[list[float]]
    dy: list[list[float]]
    y: list[list[float]]
    dx: list[list[float]]
    result: Result


def worked_example(implementation: Implementation) -> Worked:
    """Computes the first op that has an example, and its gradient, and compares them with the example.

    Example:
        >>> backend = tridal.registry.available("interpreter")
        >>> with tridal.testing.implementation(backend) as tested:
        ...     tridal.testing.worked_example(tested).result.passed
        True
    """
    start = time.perf_counter()
    op = next(op for op in table.ops().values() if op.example is not None)
    x, dy, y, dx = map(torch.tensor, op.example or ())
    computed, wrong, error = [torch.zeros(0, 0)] * 2, None, float("nan")
    try:
        input = x.to(implementation.device).requires_grad_()
        result = implementation.function(op.name)(input, -1)
        (gradient,) = torch.autograd.grad(result, input, dy.to(implementation.device))
        computed = [result.detach().cpu(), gradient.cpu()]
    except Exception as exception:  # an exception is a failure of the example
        wrong = raised(exception)
    else:
        error = max(float((found - wanted).abs().max()) for found, wanted in zip(computed, (y, dx), strict=True))
        wrong = None if error <= _ALLOWED else f"{error:.2g} from the worked numbers, {_ALLOWED:.1g} allowed"
    name = f"worked {'x'.join(map(str, x.shape))} example"
    found = Result(name, wrong is None, error, _ALLOWED, wrong, time.perf_counter() - start)
    return Worked(op.name, x.tolist(), dy.tolist(), computed[0].tolist(), computed[1].tolist(), found)
