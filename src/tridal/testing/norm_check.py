"""Norms in the conformance suite: a case is compared with torch in float64, and bounds follow from roundings.

The normalised element is n = (t - m) * s, where t is the sum with the residual, s = 1 / sqrt(v + eps), and m = 0 for
rms_norm. With the unit roundoff a of the statistics, and R = log2(elements of a row) roundings of a term in a sum:

    m        an error of a (R + 2) mean|t| = e
    v        a relative error of a (R + 8) + 4 e s + 4 (e s)^2: the parts of a row are combined by their distance from m
    s, n     half of that, a few a, and e s for the difference t - m
    dt       s (dn - mean(dn) - n mean(dn n)), where dn = dy * w: the errors of n and s, and a (4 R + 32) of each term
    dw, db   one rounding of a term per row

Each result is rounded once more, to its dtype; "llama" rounds n as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tridal.testing.cases import FusedCase, Layout
from tridal.testing.checking import difference
from tridal.testing.implementation import Implementation
from tridal.testing.inputs import make_values, with_layout
from tridal.testing.tolerance import TINY, UNIT, Arithmetic

Tensor = torch.Tensor
EPS = 1e-5


@dataclass(frozen=True, slots=True)
class NormCase(FusedCase):
    """One call of rms_norm or layer_norm, forward or with the gradients of all its tensors."""

    dims: int = 1
    """Number of normalised dims."""
    weight: str | None = "same"
    """The dtype of weight and bias; "same" is the input's, None omits them."""
    residual: str | None = None
    """The dtype of the residual; None if there is none."""
    grad_layout: Layout = "contiguous"
    weight_offset: float = 0.0
    casting: str | None = None

    def compare(self, implementation: Implementation) -> tuple[float, float, str | None]:
        """Returns the error, its bound and the message of a `Result`."""
        return compare(self, implementation)


class _Rounding(NamedTuple):
    """What determines the errors of a call."""

    arithmetic: Arithmetic
    interpreted: bool
    sum_unit: float
    """Unit roundoff of the sum's dtype with casting "llama", else 0."""

    def stored(self, exact: Tensor, error: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the bound of a result that is computed with this error and stored in `dtype`."""
        name = _name(dtype)
        unit = UNIT[name] * (2 if self.interpreted and name == "bfloat16" else 1)  # the interpreter truncates
        return error + unit * (exact.abs() + error) + TINY[name]


def compare(case: NormCase, implementation: Implementation) -> tuple[float, float, str | None]:
    """Returns the error, its bound and the message of a `Result`: those of the result that is closest to its bound."""
    device, grad, name = implementation.device, case.direction == "backward", case.op
    dims = slice(len(case.shape) - case.dims, None)
    x = with_layout(make_values(case.values, case.shape, -1), case.layout, case.dtype, device).requires_grad_(grad)
    options: dict[str, Any] = {"residual": None}
    if case.residual is not None:
        values = make_values("normal", case.shape, -1, seed=4)
        options["residual"] = with_layout(values, "contiguous", case.residual, device).requires_grad_(grad)
    parameters: list[Tensor] = []
    if case.weight is not None:
        total_dtype = x.dtype if case.residual is None else (x + options["residual"]).dtype
        dtype = total_dtype if case.weight == "same" else getattr(torch, case.weight)
        for seed in (5,) if name == "rms_norm" else (5, 6):
            values = make_values("normal", case.shape[dims], -1, seed=seed)
            parameters.append(values.to(device, dtype).requires_grad_(grad))
    if name == "rms_norm":
        options |= {"weight_offset": case.weight_offset, "casting": case.casting}
    given = [*parameters, *[None] * ((1 if name == "rms_norm" else 2) - len(parameters))]
    found = implementation.function(name)(x, case.shape[dims], *given, EPS, **options)
    y, total = (found, x) if case.residual is None else found
    checked, exact, bounds = _exact(case, implementation, x, options["residual"], parameters, y, total)
    if grad:
        checked, exact, bounds = _exact_gradients(case, implementation, x, options["residual"], parameters, y, total)
    message, worst = None, (0.0, 0.0)
    for label, result in checked.items():
        if tuple(result.shape) != tuple(exact[label].shape) or result.device.type != device.type:
            return math.nan, 0.0, f"{label} has the shape {tuple(result.shape)} on {result.device}"
        error, bound, problem = difference(result.detach().cpu().double(), exact[label], bounds[label])
        if problem is not None:
            return error, bound, f"{label}: {problem}"
        worst = max(worst, (error, bound), key=lambda pair: pair[0] / pair[1] if pair[1] else 0.0)
    return *worst, message


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _rows(case: NormCase, tensor: Tensor) -> Tensor:
    """Returns a tensor in float64 on the CPU, with its normalised dims as one."""
    return tensor.detach().cpu().double().flatten(-case.dims)


def _rounding(case: NormCase, implementation: Implementation, total: Tensor) -> _Rounding:
    cols = math.prod(case.shape[len(case.shape) - case.dims :])
    names = [_name(total.dtype), case.weight]
    last_dim = case.layout == case.grad_layout == "contiguous"  # of rows whose elements are neighbours in memory
    wide = "float64" if "float64" in names else "float32"
    arithmetic = Arithmetic.of((wide,), wide, cols, implementation.interpreted, last_dim)
    sum_unit = 2 * UNIT[_name(total.dtype)] if case.casting == "llama" else 0.0
    return _Rounding(arithmetic, implementation.interpreted, sum_unit)


def _normalised(case: NormCase, rounding: _Rounding, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns n and s, the absolute error of n and the relative error of s."""
    a, roundings = rounding.arithmetic.accumulator, rounding.arithmetic.sum_roundings
    mean, shift = torch.zeros(()), torch.zeros(())
    if case.op == "layer_norm":
        mean, shift = t.mean(-1, keepdim=True), a * (roundings + 2) * t.abs().mean(-1, keepdim=True)
    s = ((t - mean).square().mean(-1, keepdim=True) + EPS).rsqrt()
    n, relative = (t - mean) * s, a * (roundings + 8) + 4 * shift * s + 4 * (shift * s).square()
    return n, s, shift * s + n.abs() * (relative / 2 + 4 * a), relative / 2 + 4 * a


def _scaled(case: NormCase, parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the factor of n, and the addend, in float64 on the CPU."""
    wide = [parameter.detach().cpu().double().flatten() for parameter in parameters]
    factor = wide[0] + case.weight_offset if wide else torch.ones(())
    return factor, wide[1] if len(wide) > 1 else torch.zeros(())


def _exact(
    case: NormCase, implementation: Implementation, x: Tensor, residual: Tensor | None, parameters: list[Tensor],
    y: Tensor, total: Tensor,
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:  # fmt: skip
    """Returns the results of the forward, their exact values and bounds. y is exact for the sum that was found."""
    rounding = _rounding(case, implementation, total)
    t, (factor, addend) = _rows(case, total), _scaled(case, parameters)
    n, _, error, _ = _normalised(case, rounding, t)
    a, shape = rounding.arithmetic.accumulator, case.shape
    exact = (n * factor + addend).reshape(shape)
    error = error * factor.abs() + (rounding.sum_unit + 4 * a) * (n * factor).abs() + a * addend.abs()
    error = error + a * n.abs() * (factor.abs() + abs(case.weight_offset))
    results, values = {"y": y}, {"y": exact}
    bounds = {"y": rounding.stored(exact, error.reshape(shape), y.dtype)}
    if residual is not None:
        values["sum"] = (_rows(case, x) + _rows(case, residual)).reshape(shape)
        results["sum"], error = total, a * (_rows(case, x).abs() + _rows(case, residual).abs()).reshape(shape)
        bounds["sum"] = rounding.stored(values["sum"], error, total.dtype)
    return results, values, bounds


def _exact_gradients(
    case: NormCase, implementation: Implementation, x: Tensor, residual: Tensor | None, parameters: list[Tensor],
    y: Tensor, total: Tensor,
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:  # fmt: skip
    """Returns the gradients of all tensors, their exact values and their bounds."""
    outputs = [y] if residual is None else [y, total]
    grads = [
        with_layout(make_values("normal", case.shape, -1, seed=seed), case.grad_layout, _name(output.dtype), x.device)
        for seed, output in enumerate(outputs, start=1)
    ]
    tensors = {"dx": x, **({} if residual is None else {"dresidual": residual})}
    tensors |= dict(zip(("dweight", "dbias"), parameters, strict=False))
    found = dict(zip(tensors, torch.autograd.grad(outputs, list(tensors.values()), grads), strict=True))
    rounding = _rounding(case, implementation, total)
    a, k = rounding.arithmetic.accumulator, rounding.arithmetic.sum_roundings
    t, g, (factor, _) = _rows(case, total), _rows(case, grads[0]), _scaled(case, parameters)
    n, s, n_error, s_error = _normalised(case, rounding, t)
    dn = g * factor
    mean_dn = dn.mean(-1, keepdim=True) * (case.op == "layer_norm")
    product = (dn * n).mean(-1, keepdim=True)
    dt = s * (dn - mean_dn - n * product)
    sizes = [tensor.abs().mean(-1, keepdim=True) for tensor in (dn, dn * n)]
    size = dn.abs() + sizes[0] * (case.op == "layer_norm") + n.abs() * sizes[1]
    error = (a * (4 * k + 32) + s_error) * size + n_error * sizes[1]
    error = s * (error + n.abs() * (dn.abs() * n_error).mean(-1, keepdim=True))
    if residual is not None:
        dt = dt + _rows(case, grads[1])
        error = error + a * dt.abs()
    bound = rounding.stored(dt, error, total.dtype).reshape(case.shape)  # the sum is rounded once
    dt = dt.reshape(case.shape)
    exact, bounds = {}, {}
    for label, tensor in (("dx", x), ("dresidual", residual)):
        if tensor is not None:
            exact[label], bounds[label] = dt, rounding.stored(dt, bound, tensor.dtype)
    rows = max(n.numel() // max(n.shape[-1], 1), 1)
    sums = {"dweight": (g * n, g.abs() * (n_error + a * (rows + 4) * n.abs())), "dbias": (g, a * rows * g.abs())}
    for (label, (term, term_error)), parameter in zip(sums.items(), parameters, strict=False):
        exact[label] = (
            term.reshape(-1, *parameter.shape).sum(0) if term.numel() else torch.zeros(parameter.shape).double()
        )
        bound = term_error.reshape(-1, *parameter.shape).sum(0) if term.numel() else torch.zeros(parameter.shape)
        bounds[label] = rounding.stored(exact[label], bound, parameter.dtype)
    return found, exact, bounds
