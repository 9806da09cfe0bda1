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
from tridal.testing import tolerance
from tridal.testing.cases import Case
from tridal.testing.gradients import gradient, second_gradient
from tridal.testing.implementation import Implementation, implementation
from tridal.testing.inputs import make_mask, make_values, with_layout


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a case."""

    name: str
    passed: bool
    error: float
    """Absolute error, compared with float64, of the element with the largest ratio of error to tolerance."""
    tolerance: float
    """The error bound of the same element."""
    message: str | None
    """A description of the failure; None if the case passed."""
    seconds: float
    """Duration of the case."""


def run_case(case: Case, backend: Backend) -> Result:
    """Checks a case on a backend that is available here. Never raises because of the implementation: see `check`."""
    index = backend.device_count() - 1 if case.last_device else None
    with implementation(backend, case.plan, index) as tested:
        return check(case, tested)


def check(case: Case, implementation: Implementation) -> Result:
    """Checks a case on any implementation. An exception of the implementation is a failure of the case."""
    start = time.perf_counter()
    try:
        error, bound, message = _compare(case, implementation)
    except Exception as raised:
        error, bound, message = float("nan"), 0.0, f"raised {type(raised).__name__}: {raised}"
    return Result(case.name, message is None, error, bound, message, time.perf_counter() - start)


def reference(op: RowOp, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Computes an op with its default parameters: by torch's own function if there is one, else by its reference.

    torch's function does not depend on tridal, so that it also finds faults of the op's reference.
    """
    return compute(op, x, dim, None, tuple(op.parameters.values()))


def _compare(case: Case, implementation: Implementation) -> tuple[float, float, str | None]:
    """Returns the error, its bound and the failure, as in `Result`."""
    function = implementation.function(case.op)
    kwargs: dict[str, Any] = {} if case.cast is None else {"dtype": getattr(torch, case.cast)}
    if case.stream:
        kwargs["stream"] = torch.get_device_module(implementation.device.type).current_stream(implementation.device)
    if case.modified:
        kwargs |= {"scale": case.scale, "causal": case.causal, "masked_rows": case.masked_rows}
        kwargs["mask"] = None if case.mask is None else make_mask(case.mask, case.shape, implementation.device)
    x = with_layout(make_values(case.values, case.shape, case.dim), case.layout, case.dtype, implementation.device)
    before = x.detach().clone()
    exact_x = before.cpu().to(getattr(torch, case.out_dtype)).double()
    if case.direction == "forward":
        result = function(x, case.dim, **kwargs)
        exact, bound = _exact(case, implementation, exact_x)
    else:
        x.requires_grad_()
        y = function(x, case.dim, **kwargs)
        dy = with_layout(
            make_values("normal", case.shape, case.dim, seed=1), case.grad_layout, case.out_dtype, implementation.device
        )
        result = (second_gradient if case.direction == "double" else gradient)(x, y, dy)
        exact, bound = _exact_gradient(case, implementation, exact_x, *(t.detach().cpu().double() for t in (y, dy)))
    expected_dtype = case.out_dtype if case.direction == "forward" else case.dtype
    message = _wrong_metadata(result, case, expected_dtype, implementation)
    if message is None and not torch.equal(before.nan_to_num(), x.detach().nan_to_num()):
        message = "the input was changed"
    if message is not None:
        return float("nan"), 0.0, message
    return _difference(result.detach().cpu().double(), exact, bound)


def _wrong_metadata(result: torch.Tensor, case: Case, dtype: str, implementation: Implementation) -> str | None:
    """Returns what is wrong with the shape, dtype or device; None if nothing is."""
    if result.shape != case.shape:
        return f"shape {tuple(result.shape)} instead of {case.shape}"
    if result.dtype != getattr(torch, dtype):
        return f"{result.dtype} instead of {dtype}"
    if result.device.type != implementation.device.type:
        return f"on {result.device} instead of {implementation.device}"
    return None


def _difference(result: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> tuple[float, float, str | None]:
    """Returns the error, its bound and the failure, as in `Result`. Equal values and pairs of NaN have no error."""
    if result.numel() == 0:
        return 0.0, 0.0, None
    same = (result == exact) | (result.isnan() & exact.isnan())
    error = torch.where(same, 0.0, (result - exact).abs().nan_to_num(nan=torch.inf))
    bound = torch.where(exact.isfinite(), bound.nan_to_num(nan=0.0), 0.0)
    worst = int(torch.where(same, 0.0, error / bound).argmax())
    worst_error, worst_bound = float(error.flatten()[worst]), float(bound.flatten()[worst])
    if worst_error <= worst_bound:
        return worst_error, worst_bound, None
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), result.shape))
    message = (
        f"{int((error > bound).sum())} of {result.numel()} elements are off; at {index} {result.flatten()[worst]:.9g} "
        f"instead of {exact.flatten()[worst]:.9g}: {worst_error:.3g} apart, {worst_bound:.3g} allowed"
    )
    return worst_error, worst_bound, message


def _exact(case: Case, implementation: Implementation, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the exact Y, and the bound of each element's error."""
    op, scaled, empty = table.op_named(case.op), x * (1.0 if case.scale is None else case.scale), None
    if case.modified:
        mask = None if case.mask is None else make_mask(case.mask, case.shape, x.device)
        modification = ScoreModification(1.0, mask, case.causal, case.masked_rows == "zero")
        x, empty = modify_scores(scaled, case.dim, modification)
    y = reference(op, x, case.dim)
    y = y if empty is None else y.masked_fill(empty, 0.0)
    arithmetic = _arithmetic(case, implementation, case.out_dtype)
    before = _as_row(scaled) if case.modified else None
    bound = tolerance.bounds_of(op).forward(_as_row(x), _as_row(y), case.dim, arithmetic, before)
    return y, bound.reshape(y.shape)


def _exact_gradient(
    case: Case, implementation: Implementation, x: torch.Tensor, y: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the exact dX for the saved tensor, or the exact second derivative, and the bound of each error."""
    op, arithmetic = table.op_named(case.op), _arithmetic(case, implementation, case.out_dtype, case.dtype)
    bounds = tolerance.bounds_of(op)
    if case.direction == "double":
        x = x.requires_grad_()
        exact = second_gradient(x, reference(op, x, case.dim), dy)
        bound = bounds.second_order(_as_row(x), _as_row(dy), _as_row(exact), case.dim, arithmetic)
    else:
        scale = 1.0 if case.scale is None else case.scale
        saved = y if op.saves == "output" else x
        values = op.backward_parameters(tuple(op.parameters.values()), scale)
        exact = op.compute_gradient(dy, saved, case.dim, values)
        bound = bounds.backward(_as_row(saved), _as_row(dy), _as_row(exact), case.dim, arithmetic, scale)
    return exact, bound.reshape(y.shape)


def _arithmetic(case: Case, implementation: Implementation, *writes: str) -> tolerance.Arithmetic:
    rank = max(len(case.shape), 1)
    cols = case.shape[case.dim] if case.shape else 1
    last_dim = case.dim % rank == rank - 1
    return tolerance.Arithmetic.of(writes, case.out_dtype, cols, implementation.interpreted, last_dim)


def _as_row(x: torch.Tensor) -> torch.Tensor:
    """Returns a 0-d tensor as a row of one element, and other tensors unchanged."""
    return x.reshape(1) if x.dim() == 0 else x
