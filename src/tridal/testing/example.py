"""A small softmax and its gradient, with expected values that were calculated by hand."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from tridal.testing.checking import Result
from tridal.testing.implementation import Implementation

X = ((1.0, 2.0, 3.0), (1.0, 3.0, 5.0))
DY = ((0.1, 0.2, 0.7), (0.2, 0.3, 0.5))
Y = ((0.0900, 0.2447, 0.6652), (0.0159, 0.1173, 0.8668))  # softmax(X), to four decimals
DX = ((-0.0381, -0.0792, 0.1173), (-0.0043, -0.0202, 0.0245))  # Y * (DY - sum(Y * DY)), to four decimals

_NAME = "worked 2x3 example"
_ALLOWED = 0.501e-4  # half a unit of the fourth decimal, plus the rounding error of float32


@dataclass(frozen=True, slots=True)
class Worked:
    """The results of the example. `y` and `dx` are empty if the function raised."""

    y: list[list[float]]
    dx: list[list[float]]
    result: Result


def worked_example(implementation: Implementation) -> Worked:
    """Computes softmax(X) and its gradient for DY, and compares them with Y and DX."""
    start = time.perf_counter()
    try:
        x = torch.tensor(X, device=implementation.device, requires_grad=True)
        y = implementation.function("softmax")(x, -1)
        (dx,) = torch.autograd.grad(y, x, torch.tensor(DY, device=implementation.device))
        numbers, gradient = y.detach().cpu(), dx.cpu()
    except Exception as raised:  # an exception is a failure of the example
        message = f"raised {type(raised).__name__}: {raised}"
        return Worked([], [], Result(_NAME, False, float("nan"), _ALLOWED, message, time.perf_counter() - start))
    error = max(float((numbers - torch.tensor(Y)).abs().max()), float((gradient - torch.tensor(DX)).abs().max()))
    wrong = None if error <= _ALLOWED else f"{error:.2g} from the worked numbers, {_ALLOWED:.1g} allowed"
    result = Result(_NAME, wrong is None, error, _ALLOWED, wrong, time.perf_counter() - start)
    return Worked(numbers.tolist(), gradient.tolist(), result)
