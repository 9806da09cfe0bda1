"""Runs one case: makes its tensors, calls the implementation, and compares the results with float64 on the CPU."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tridal.devices.types import Backend
from tridal.ops import table
from tridal.ops.arguments import Argument
from tridal.ops.arguments import Result as OpResult
from tridal.ops.scale_mask import ScoreModification, modify_scores
from tridal.ops.signature import role_in
from tridal.testing.cases import Case, op_cases
from tridal.testing.exact import Call, Named, gradients_of
from tridal.testing.implementation import Implementation, implementation
from tridal.testing.inputs import call_function, dtype_name, make_call, make_gradients, make_mask, make_tensors
from tridal.testing.raised import raised
from tridal.testing.tolerance import Arithmetic, derived_bounds

Tensor = torch.Tensor
Compared: TypeAlias = tuple[float, float, str | None]
"""The error, the bound of the same element and the message of a `Result`."""


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


def run_case(case: Case, backend: Backend) -> Result:
    """Checks a case on a backend that is available here. An exception of the backend is a failure of the case.

    Example:
        >>> backend = tridal.registry.available("interpreter")
        >>> tridal.testing.run_case(tridal.testing.Case("softmax", "backward", (4, 5)), backend).passed
        True
    """
    index = backend.device_count() - 1 if case.last_device else None
    with implementation(backend, case.plan, index) as tested:
        return check(case, tested)


def check(case: Case, implementation: Implementation) -> Result:
    """Checks a case on any implementation. An exception of the implementation is a failure of the case.

    Example:
        >>> backend = tridal.registry.available("interpreter")
        >>> with tridal.testing.implementation(backend) as tested:
        ...     tridal.testing.check(tridal.testing.Case("softmax", "forward", (4, 5)), tested).passed
        True
    """
    start = time.perf_counter()
    try:
        error, bound, message = _compare(case, implementation)
    except Exception as exception:
        error, bound, message = float("nan"), 0.0, raised(exception)
    return Result(case.name, message is None, error, bound, message, time.perf_counter() - start)


def difference(result: Tensor, exact: Tensor, bound: Tensor, largest: float = math.inf) -> Compared:
    """Compares tensors in float64. Equal values and two NaN values have no error.

    Neither has infinity, if the exact value may be above `largest`, the largest finite number of the result's dtype.
    """
    if result.numel() == 0:
        return 0.0, 0.0, None
    same = (result == exact) | (result.isnan() & exact.isnan())
    same |= result.isinf() & (result * exact > 0) & (exact.abs() + bound >= largest)
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


def _compare(case: Case, implementation: Implementation) -> Compared:
    """Compares the results of a case, or the gradients, with the exact ones.

    An op with steps may compute other results if it records a gradient, so both are compared.
    """
    op, device, forward = table.op_named(case.op), implementation.device, case.direction == "forward"
    tensors = make_tensors(case, op, device)
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    before = {name: tensor.clone() for name, tensor in present.items()}
    mask = None if case.mask is None else make_mask(case.mask, case.shape, device)
    call, dtypes = make_call(case, op, before, mask)
    leaves = {} if forward else {name: present[name].requires_grad_() for name in call.differentiable(call.arguments)}
    results = call_function(case, op, implementation, tensors, mask)
    call.found = {name: _exact_rows(tensor) for name, tensor in results.items()}
    grads: list[Tensor] = []
    gradients: Named = {}
    if not forward:
        outputs = [results[name] for name in call.given]
        results = results if op.steps is not None else {}
        grads = make_gradients(case, outputs)
        computed = gradients_of(outputs, list(leaves.values()), grads, case.direction == "double")
        gradients = dict(zip(leaves, computed, strict=True))
        dtypes |= {name: before[name].dtype for name in leaves}
    found = results | gradients
    wrong = [f"dtype {t.dtype} instead of {dtypes[n]} of {n}" for n, t in found.items() if t.dtype is not dtypes[n]]
    for name, tensor in before.items():
        if not torch.equal(tensor.nan_to_num(), present[name].detach().nan_to_num()):
            wrong.append(f"{name} was changed")
    if wrong:
        return math.nan, 0.0, ", ".join(wrong)
    expected = _Expected(case, call, implementation.interpreted, dtypes)
    exact = expected.results([*results]) if results else {}
    exact |= expected.gradients([_exact_rows(grad) for grad in grads], [*gradients]) if gradients else {}
    closest: Compared = (0.0, 0.0, None)
    for name, result in found.items():
        prefix = f"{name}: " if len(found) > 1 else ""
        shape = exact[name][0].shape if case.shape else ()
        if result.shape != shape or result.device.type != device.type:
            wanted = f"instead of {tuple(shape)} on {device.type}"
            return math.nan, 0.0, f"{prefix}shape {tuple(result.shape)} on {result.device} {wanted}"
        largest = torch.finfo(result.dtype).max if result.is_floating_point() else math.inf
        number, bound = (tensor.reshape(shape) for tensor in exact[name])
        error, allowed, message = difference(result.detach().cpu().double(), number, bound, largest)
        if message is not None:
            return error, allowed, f"{prefix}{message}"
        closest = max(closest, (error, allowed, None), key=lambda part: part[0] / part[1] if part[1] else 0.0)
    return closest


def _exact_rows(x: Tensor) -> Tensor:
    """The tensor on the CPU, in float64 unless it has integers."""
    x = x.detach().cpu()
    return x.double() if x.is_floating_point() else x


@dataclass(frozen=True, slots=True)
class _Expected:
    """The exact results or gradients of a case by name, each with the bound of the error of each element."""

    case: Case
    call: Call
    interpreted: bool
    dtypes: Mapping[str, torch.dtype]
    """The dtypes of the results and gradients."""

    def results(self, names: list[str]) -> dict[str, tuple[Tensor, Tensor]]:
        call, case, bounds = self.call, self.case, self.call.op.bounds
        computed = call.results()
        exact = {name: computed[name].double() for name in names}
        if bounds is None:
            return self._derived(exact, call.op.results, call.results)
        x, scaled, (name,) = _row(call.arguments[0].double()), None, names
        if case.modified:
            named = call.bound.named
            scaled = x * named["scale"]
            modification = ScoreModification(1.0, named["mask"], case.causal, case.masked_rows == "zero")
            x = modify_scores(scaled, case.dim, modification)[0]
        bound = bounds.forward(x, _row(exact[name]), case.dim, self._arithmetic(name, "element"), scaled)
        return {name: (exact[name], bound)}

    def gradients(self, grads: list[Tensor], names: list[str]) -> dict[str, tuple[Tensor, Tensor]]:
        """The gradients, given those of the results in float64.

        They are autograd's gradients of the reference. The op's own gradient corrects them for the roundings of saved
        results, and defines them in rows with infinities or NaN, where several formulas with one value differ.
        """
        case, call, op, twice = self.case, self.call, self.call.op, self.case.direction == "double"
        exact = call.gradients(grads, twice=twice)
        compute = functools.partial(call.gradients, grads, twice=twice)
        if not twice and op.gradient is not None:
            stored, ideal = call.declared_gradients(grads), call.declared_gradients(grads, stored=False)
            special = case.modified or case.values.startswith(("some", "row"))
            for name, gradient in exact.items():
                finite = gradient.isfinite() & (ideal[name].isfinite() | (not special))
                exact[name] = torch.where(finite, gradient + (stored[name] - ideal[name]), stored[name])
            compute = functools.partial(call.declared_gradients, grads)
        if op.bounds is None or twice:
            return self._derived(exact, op.arguments, compute)
        (name,), scale = names, 1.0 if case.scale is None else case.scale
        saved = _row(call.found["output"] if op.saves == ("output",) else call.arguments[0].double())
        arithmetic = self._arithmetic(name, "element")
        bound = op.bounds.backward(saved, _row(grads[0]), _row(exact[name]), case.dim, arithmetic, scale)
        return {name: (exact[name], bound)}

    def _derived(
        self, exact: Named, declared: Sequence[Argument | OpResult], compute: Any
    ) -> dict[str, tuple[Tensor, Tensor]]:
        call = self.call
        bound, formulas = call.bound, op_cases(call.op).formulas
        roles = {item.name: role_in(item.role, bound.named) for item in declared if item.name in exact}
        roles |= {name: "block" for name in bound.blocks if name in exact}
        arithmetic = {name: self._arithmetic(name, role) for name, role in roles.items()}
        dtype = dtype_name(call.arguments[0].dtype)
        bounds = derived_bounds(call.rows, exact, roles, compute, arithmetic, dtype, formulas)
        # Simulated roundings change the order of equal numbers. Kernels do not.
        bounds |= {name: torch.zeros_like(exact[name]) for name, role in roles.items() if role == "top_index"}
        return {name: (exact[name], bounds[name]) for name in exact}

    def _arithmetic(self, name: str, role: str | None) -> Arithmetic:
        case, call, dtype = self.case, self.call, self.dtypes[name]
        rows, main = call.rows, call.arguments[0]
        used = [dtype_name(t.dtype) for t in call.arguments if isinstance(t, Tensor) and t.is_floating_point()]
        written = [dtype_name(dtype)] if dtype.is_floating_point else ["float32"]
        if case.direction != "forward" and role == "element":
            written.append(dtype_name(main.dtype))  # the sum of gradients is rounded to the dtype of the op's results
        wide = "float64" if "float64" in used else used[0]
        cols = math.prod(case.shape[rows.first : rows.first + rows.dims])
        in_order = {case.layout, case.grad_layout, *dict(case.layouts).values()} == {"contiguous"}
        in_order = in_order and rows.first + rows.dims == max(main.dim(), 1)
        return Arithmetic.of(tuple(written), wide, cols, self.interpreted, in_order)


def _row(x: Tensor) -> Tensor:
    """The tensor, or a row of one element for a 0-d tensor."""
    return x.reshape(x.shape or (1,))
