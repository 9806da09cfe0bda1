"""Runs one case: makes its input, calls the subject, and compares with float64 on the CPU within derived bounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tridal.devices.types import Backend
from tridal.testing import tolerance
from tridal.testing.cases import Case
from tridal.testing.inputs import mask, place, values

_REFERENCE = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
_REFERENCE_BACKWARD = {
    "softmax": torch.ops.aten._softmax_backward_data.default,
    "log_softmax": torch.ops.aten._log_softmax_backward_data.default,
}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is held to the suite: two functions that are called as torch's are, and where their tensors live."""

    device: torch.device
    softmax: Callable[..., torch.Tensor]
    log_softmax: Callable[..., torch.Tensor]
    interpreted: bool = False
    """Whether Triton's interpreter computes: `tolerance` knows where that is less exact than a device."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a case. It passed if nothing is wrong and `error <= tolerance`."""

    name: str
    passed: bool
    error: float
    """Difference to float64 at the element that comes nearest to its tolerance, or exceeds it most."""
    tolerance: float
    """What is allowed at that element."""
    message: str | None
    """What is wrong, or None."""
    seconds: float


def run_case(case: Case, backend: Backend) -> Result:
    """Checks a case on a backend that is available here."""
    from tridal.testing.forcing import subject

    index = backend.device_count() - 1 if case.last_device else None
    with subject(backend, case.plan, index) as tested:
        return check(case, tested)


def check(case: Case, subject: Subject) -> Result:
    """Checks a case on any two functions. What they raise is the case's failure."""
    start = time.perf_counter()
    try:
        error, allowed, message = _compare(case, subject)
    except Exception as raised:
        error, allowed, message = float("nan"), 0.0, f"raised {type(raised).__name__}: {raised}"
    return Result(case.name, message is None, error, allowed, message, time.perf_counter() - start)


def _compare(case: Case, subject: Subject) -> tuple[float, float, str | None]:
    function = getattr(subject, case.op)
    kwargs: dict[str, Any] = {} if case.cast is None else {"dtype": getattr(torch, case.cast)}
    if case.stream:
        kwargs["stream"] = torch.get_device_module(subject.device.type).current_stream(subject.device)
    if case.weighed:
        kwargs |= {"scale": case.scale, "causal": case.causal, "masked_rows": case.masked_rows}
        kwargs["mask"] = None if case.mask is None else mask(case.mask, case.shape, subject.device)
    x = place(values(case.values, case.shape, case.dim), case.layout, case.dtype, subject.device)
    before = x.detach().clone()
    exact_x = before.cpu().to(getattr(torch, case.out_dtype)).double()
    if case.direction == "forward":
        got = function(x, case.dim, **kwargs)
        exact, bound = _exact(case, subject, exact_x)
    else:
        x.requires_grad_()
        y = function(x, case.dim, **kwargs)
        dy = place(values("normal", case.shape, case.dim, seed=1), case.grad_layout, case.out_dtype, subject.device)
        got = _gradient(x, y, dy, case.direction == "double")
        exact, bound = _exact_gradient(case, subject, exact_x, *(t.detach().cpu().double() for t in (y, dy)))
    wanted_dtype = case.out_dtype if case.direction == "forward" else case.dtype
    message = _wrong_form(got, case, wanted_dtype, subject)
    if message is None and not torch.equal(before.nan_to_num(), x.detach().nan_to_num()):
        message = "the input was changed"
    if message is not None:
        return float("nan"), 0.0, message
    return _difference(got.detach().cpu().double(), exact, bound)


def _wrong_form(got: torch.Tensor, case: Case, dtype: str, subject: Subject) -> str | None:
    if got.shape != case.shape:
        return f"shape {tuple(got.shape)} instead of {case.shape}"
    if got.dtype != getattr(torch, dtype):
        return f"{got.dtype} instead of {dtype}"
    if got.device.type != subject.device.type:
        return f"on {got.device} instead of {subject.device}"
    return None


def _difference(got: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> tuple[float, float, str | None]:
    if got.numel() == 0:
        return 0.0, 0.0, None
    same = (got == exact) | (got.isnan() & exact.isnan())
    error = torch.where(same, 0.0, (got - exact).abs().nan_to_num(nan=torch.inf))
    bound = torch.where(exact.isfinite(), bound.nan_to_num(nan=0.0), 0.0)
    share = torch.where(same, 0.0, error / bound)
    worst = int(share.argmax())
    at, allowed = float(error.flatten()[worst]), float(bound.flatten()[worst])
    if at <= allowed:
        return at, allowed, None
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape))
    many = int((error > bound).sum())
    return at, allowed, (
        f"{many} of {got.numel()} elements are off; at {where} {got.flatten()[worst]:.9g} instead of "
        f"{exact.flatten()[worst]:.9g}: {at:.3g} apart, {allowed:.3g} allowed"
    )  # fmt: skip


def _gradient(x: torch.Tensor, y: torch.Tensor, dy: torch.Tensor, second: bool) -> torch.Tensor:
    """dX of sum(Y dY), or of sum(dX^2)."""
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=second)
    if second:
        (dx,) = torch.autograd.grad(dx.square().sum(), x)
    return dx


def _exact(case: Case, subject: Subject, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact Y, and how far from it each element may be."""
    scaled = x * (1.0 if case.scale is None else case.scale)
    x = _masked(case, scaled)
    y = _REFERENCE[case.op](x, case.dim)
    if case.masked_rows == "zero":
        y = torch.where((x == -torch.inf).all(case.dim, keepdim=True), 0.0, y)
    arithmetic = _arithmetic(case, subject, case.out_dtype)
    before = _as_row(scaled) if case.weighed else None
    bound = tolerance.forward(case.op == "log_softmax", _as_row(x), _as_row(y), case.dim, arithmetic, before)
    return y, bound.reshape(y.shape)


def _masked(case: Case, x: torch.Tensor) -> torch.Tensor:
    """What a case's mask and causality leave of scaled scores."""
    if case.mask is not None:
        given = mask(case.mask, case.shape, x.device)
        x = x.masked_fill(~given, -torch.inf) if given.dtype is torch.bool else x + given
    if case.causal:
        x = x.masked_fill(torch.ones(x.shape[-2:]).tril() == 0, -torch.inf)
    return x


def _exact_gradient(
    case: Case, subject: Subject, x: torch.Tensor, y: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact dX that follows from the stored Y, or the exact second derivative; and how far from it it may be."""
    log, arithmetic = case.op == "log_softmax", _arithmetic(case, subject, case.out_dtype, case.dtype)
    if case.direction == "double":
        x = x.requires_grad_()
        exact = _gradient(x, _REFERENCE[case.op](x, case.dim), dy, second=True)
        bound = tolerance.second_order(log, _as_row(dy), case.dim, arithmetic)
    else:
        scale = 1.0 if case.scale is None else case.scale
        exact = _REFERENCE_BACKWARD[case.op](dy, y, case.dim, torch.float64) * scale
        bound = tolerance.backward(log, _as_row(y), _as_row(dy), _as_row(exact), case.dim, arithmetic, scale)
    return exact, bound.reshape(y.shape)


def _arithmetic(case: Case, subject: Subject, *stored: str) -> tolerance.Arithmetic:
    rank = max(len(case.shape), 1)
    cols = case.shape[case.dim] if case.shape else 1
    rows = case.dim % rank == rank - 1
    return tolerance.Arithmetic.of(stored, case.out_dtype, cols, subject.interpreted, rows)


def _as_row(x: torch.Tensor) -> torch.Tensor:
    """A 0-d tensor as a row of one element."""
    return x.reshape(1) if x.dim() == 0 else x
