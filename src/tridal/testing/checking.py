"""Runs one case: makes its input, calls the implementation, and compares the result with float64 on the CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from tridal.devices.types import Backend
from tridal.ops import table
from tridal.ops.row_op import RowOp
from tridal.ops.scale_mask import ScoreModification, modify_scores
from tridal.pytorch.reference import compute
from tridal.testing.cases import Case, FusedCase
from tridal.testing.implementation import Implementation, implementation
from tridal.testing.inputs import make_mask, make_values, with_layout
from tridal.testing.tolerance import Arithmetic, bounds_of, second_gradient


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a case."""

    name: str
    passed: bool
    error: float
    """Absolute error of the element with the largest ratio of error to tolerance. The exact value is in float64."""
    tolerance: float
    """The error bound of the same element."""
    message: str | None
    """A description of the failure; None if the case passed."""
    seconds: float


def run_case(case: Case | FusedCase, backend: Backend) -> Result:
    """Checks a case on a backend that is available here. An exception of the backend is a failure of the case."""
    index = backend.device_count() - 1 if case.last_device else None
    with implementation(backend, case.plan, index) as tested:
        return check(case, tested)


def check(case: Case | FusedCase, implementation: Implementation) -> Result:
    """Checks a case on any implementation. An exception of the implementation is a failure of the case."""
    start = time.perf_counter()
    try:
        compared = case.compare(implementation) if isinstance(case, FusedCase) else _compare(case, implementation)
        error, bound, message = compared
    except Exception as raised:
        error, bound, message = float("nan"), 0.0, f"raised {type(raised).__name__}: {raised}"
    return Result(case.name, message is None, error, bound, message, time.perf_counter() - start)


def reference(op: RowOp, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Computes an op with default parameters. Uses torch's function if there is one, else the op's reference.

    torch's function does not depend on tridal, so a comparison with it also finds faults of the op's reference.
    """
    return compute(op, x, dim, None, tuple(op.parameters.values()))


def _compare(case: Case, implementation: Implementation) -> tuple[float, float, str | None]:
    """Returns the error, its bound and the message of a `Result`."""
    device, forward = implementation.device, case.direction == "forward"
    kwargs: dict[str, Any] = {} if case.cast is None else {"dtype": getattr(torch, case.cast)}
    if case.stream:
        kwargs["stream"] = torch.get_device_module(device.type).current_stream(device)
    if case.modified:
        kwargs |= {"scale": case.scale, "causal": case.causal, "masked_rows": case.masked_rows}
        kwargs["mask"] = None if case.mask is None else make_mask(case.mask, case.shape, device)
    x = with_layout(make_values(case.values, case.shape, case.dim), case.layout, case.dtype, device)
    before = x.clone()
    y = implementation.function(case.op)(x.requires_grad_(not forward), case.dim, **kwargs)

    exact_x = _exact_rows(before.cpu().to(getattr(torch, case.out_dtype)))
    writes = (case.out_dtype,) if forward else (case.out_dtype, case.dtype)
    cols, last_dim = exact_x.shape[case.dim], case.dim in (-1, exact_x.dim() - 1)
    arithmetic = Arithmetic.of(writes, case.out_dtype, cols, implementation.interpreted, last_dim)
    if forward:
        result, (exact, bound) = y, _exact(case, arithmetic, exact_x)
    else:
        values = make_values("normal", case.shape, case.dim, seed=1)
        dy = with_layout(values, case.grad_layout, case.out_dtype, device)
        result = second_gradient(x, y, dy) if case.direction == "double" else torch.autograd.grad(y, x, dy)[0]
        exact, bound = _exact_gradient(case, arithmetic, exact_x, _exact_rows(y), _exact_rows(dy))
    expected = {"shape": case.shape, "dtype": getattr(torch, writes[-1]), "device": device.type}
    found = {"shape": tuple(result.shape), "dtype": result.dtype, "device": result.device.type}
    wrong = [f"{name} {found[name]} instead of {expected[name]}" for name in found if found[name] != expected[name]]
    wrong += ["the input was changed"] if not torch.equal(before.nan_to_num(), x.detach().nan_to_num()) else []
    if wrong:
        return float("nan"), 0.0, ", ".join(wrong)
    return difference(result.detach().cpu().double(), exact, bound)


def _exact_rows(x: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in float64 on the CPU. A 0-d tensor becomes a row of one element."""
    return x.detach().cpu().double().reshape(x.shape or (1,))


def difference(result: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> tuple[float, float, str | None]:
    """Returns error, bound and message as in `Result`. The error of two equal values or two NaN values is zero."""
    if result.numel() == 0:
        return 0.0, 0.0, None
    same = (result == exact) | (result.isnan() & exact.isnan())
    error = torch.where(same, 0.0, (result - exact).abs().nan_to_num(nan=torch.inf))
    bound = torch.where(exact.isfinite(), bound.nan_to_num(nan=0.0), 0.0)
    worst = int(torch.where(same, 0.0, error / bound).argmax())
    found, expected, worst_error, worst_bound = (float(t.flatten()[worst]) for t in (result, exact, error, bound))
    if worst_error <= worst_bound:
        return worst_error, worst_bound, None
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), result.shape))
    message = (
        f"{int((error > bound).sum())} of {result.numel()} elements are off; at {index} {found:.9g} instead of "
        f"{expected:.9g}: {worst_error:.3g} apart, {worst_bound:.3g} allowed"
    )
    return worst_error, worst_bound, message


def _exact(case: Case, arithmetic: Arithmetic, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the exact Y and the error bound of each element."""
    op = table.row_op_named(case.op)
    scaled = x * (1.0 if case.scale is None else case.scale)
    mask = None if case.mask is None else make_mask(case.mask, case.shape, x.device)
    modification = ScoreModification(1.0, mask, case.causal, case.masked_rows == "zero")
    x, empty = modify_scores(scaled, case.dim, modification)
    y = reference(op, x, case.dim)
    y = y if empty is None else y.masked_fill(empty, 0.0)
    return y, bounds_of(op).forward(x, y, case.dim, arithmetic, scaled if case.modified else None)


def _exact_gradient(
    case: Case, arithmetic: Arithmetic, x: torch.Tensor, y: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the exact dX, or the exact second derivative, and the error bound of each element."""
    op = table.row_op_named(case.op)
    if case.direction == "double":
        exact = second_gradient(x.requires_grad_(), reference(op, x, case.dim), dy)
        return exact, bounds_of(op).second_order(x.detach(), dy, exact, case.dim, arithmetic)
    scale = 1.0 if case.scale is None else case.scale
    saved = y if op.saves == "output" else x
    values = op.backward_parameters(tuple(op.parameters.values()), scale)
    exact = op.compute_gradient(dy, saved, case.dim, values)
    return exact, bounds_of(op).backward(saved, dy, exact, case.dim, arithmetic, scale)
