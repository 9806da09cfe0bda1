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
from tridal.ops.op import Op
from tridal.ops.scale_mask import ScoreModification, modify_scores
from tridal.ops.signature import Arguments, role_in
from tridal.testing.cases import Case, is_choice, op_cases, ordinary
from tridal.testing.exact import Call, Named, gradients_of
from tridal.testing.implementation import Implementation, implementation
from tridal.testing.inputs import make_mask, make_tensors, make_values, with_layout
from tridal.testing.raised import raised
from tridal.testing.tolerance import Arithmetic, derived_bounds

Tensor = torch.Tensor
Compared: TypeAlias = tuple[float, float, str | None]  # the error, its bound and the message of a `Result`


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
    """Returns error, bound and message as in `Result`. The error of two equal values or two NaN values is zero.

    So is that of infinity, if the exact value may be above `largest`, the largest finite number of the result's dtype.
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
    leaves = {} if forward else {name: present[name] for name in call.differentiable(call.arguments)}
    found = call_function(case, op, implementation, tensors | {n: t.requires_grad_() for n, t in leaves.items()}, mask)
    call.found = {name: _exact_rows(tensor) for name, tensor in found.items()}
    compared = _Comparison(case, call, implementation.interpreted, dtypes)
    grads: list[Tensor] = []
    gradients: Named = {}
    if not forward:
        outputs = [found[name] for name in call.given]
        grads = make_gradients(case, outputs)
        given = gradients_of(outputs, list(leaves.values()), grads, case.direction == "double")
        dtypes |= {name: before[name].dtype for name in leaves}
        gradients = dict(zip(leaves, given, strict=True))
    results = found if forward or op.steps is not None else {}
    found = results | gradients
    wrong = [f"dtype {t.dtype} instead of {dtypes[n]} of {n}" for n, t in found.items() if t.dtype is not dtypes[n]]
    for name, tensor in before.items():
        if not torch.equal(tensor.nan_to_num(), present[name].detach().nan_to_num()):
            wrong.append(f"{name} was changed")
    if wrong:
        return math.nan, 0.0, ", ".join(wrong)
    exact, bounds = compared.results([*results]) if results else (Named(), Named())
    if gradients:
        of_gradients = compared.gradients([_exact_rows(grad) for grad in grads], [*gradients])
        exact, bounds = exact | of_gradients[0], bounds | of_gradients[1]
    closest: Compared = (0.0, 0.0, None)
    for name, result in found.items():
        prefix = f"{name}: " if len(found) > 1 else ""
        shape = exact[name].shape if case.shape else ()
        if result.shape != shape or result.device.type != device.type:
            expected = f"instead of {tuple(shape)} on {device.type}"
            return math.nan, 0.0, f"{prefix}shape {tuple(result.shape)} on {result.device} {expected}"
        bound = bounds[name].reshape(shape)
        largest = torch.finfo(result.dtype).max if result.is_floating_point() else math.inf
        compared_with = exact[name].reshape(shape), bound, largest
        error, allowed, message = difference(result.detach().cpu().double(), *compared_with)
        if message is not None:
            return error, allowed, f"{prefix}{message}"
        closest = max(closest, (error, allowed, None), key=lambda part: part[0] / part[1] if part[1] else 0.0)
    return closest


def make_call(case: Case, op: Op, tensors: Named, mask: Tensor | None) -> tuple[Call, dict[str, torch.dtype]]:
    """Returns the call of a case on the CPU, and the dtypes of its results."""
    numbers = dict(case.numbers)
    named: dict[str, Any] = {a.name: numbers.get(a.name, ordinary(a)) for a in op.signature.arguments}
    for argument in op.arguments:
        if argument.type == "int" and is_choice(argument):
            named[argument.name] = (argument.range or ()).index(named[argument.name])
    given = [(a.role, tensors[a.name].dtype) for a in op.arguments if a.name in tensors]
    floating = [dtype for role, dtype in given if role in ("element", "whole") and dtype.is_floating_point]
    dtype = functools.reduce(torch.promote_types, floating) if case.cast is None else getattr(torch, case.cast)
    named |= {a.name: dtype for a in op.signature.arguments if a.type == "ScalarType"}
    named |= {a.name: [False] * len(op.gradient_groups) for a in op.signature.arguments if a.type == "bool[]"}
    named |= {"dim": case.dim, "dims": case.dims, "mask": mask, "causal": case.causal, **tensors}
    named |= {"scale": 1.0 if case.scale is None else case.scale, "zero_masked_rows": case.masked_rows == "zero"}
    dtypes = Arguments(op.signature, [named[name] for name in op.signature.names]).dtypes
    for argument in op.arguments:
        if argument.name in tensors:
            tensor = tensors[argument.name].cpu()
            named[argument.name] = tensor.to(dtype) if case.cast and argument.role == "element" else tensor
    named["mask"] = None if mask is None else mask.cpu()
    arguments = tuple(named[name] for name in op.signature.names)
    call = Call(op, arguments)
    return call, dict(zip((result.name for result in op.results), dtypes, strict=True))


def call_function(
    case: Case, op: Op, implementation: Implementation, tensors: Mapping[str, Tensor | None], mask: Tensor | None
) -> Named:
    """Calls the function of a case. Returns its results by name."""
    device, given, extra = implementation.device, dict(case.numbers), op_cases(op).options
    keywords: dict[str, Any] = {"dim": case.dim} if "dim" in op.signature.names else {}
    if case.cast is not None:
        keywords["dtype"] = getattr(torch, case.cast)
    if any(argument.name == "dims" for argument in op.arguments):
        keywords = {"normalized_shape": case.shape[len(case.shape) - case.dims :]}
    if case.stream:
        keywords["stream"] = torch.get_device_module(device.type).current_stream(device)
    if case.modified:
        keywords |= {"scale": case.scale, "mask": mask, "causal": case.causal, "masked_rows": case.masked_rows}
    for argument in (*op.arguments, *extra):
        name, needed = argument.name, argument.type == "float" or argument.range is not None
        needed = needed and argument.default is argument.neutral is None and not argument.optional
        if argument.optional and tensors.get(name) is not None:
            keywords[name] = tensors[name]
        elif name in given or needed:
            keywords[name] = given.get(name, ordinary(argument))
    keywords = {name: value for name, value in keywords.items() if value != ""}  # "" stands for no choice
    required = [tensors[a.name] for a in op.arguments if a.type == "Tensor" and not a.optional]
    found: Any = implementation.function(case.op)(*required, **keywords)
    found = (found,) if isinstance(found, Tensor) else found
    values = [tensors.get(a.name, given.get(a.name, ordinary(a))) for a in op.signature.arguments]
    arguments = Arguments(op.signature, values)
    names = [r.name for index, r in enumerate(op.results) if r.returned and not arguments.lacks(index)]
    return dict(zip(names, [tensor for tensor in found if tensor is not None], strict=op.steps is None))


def make_gradients(case: Case, results: list[Tensor]) -> list[Tensor]:
    """Returns random gradients of results."""
    grads = []
    for index, result in enumerate(results):
        values = make_values("normal", tuple(result.shape), case.dim, seed=1 + index)
        layout = case.grad_layout if result.shape == case.shape else "contiguous"
        grads.append(with_layout(values, layout, _name(result.dtype), result.device))
    return grads


def _exact_rows(x: Tensor) -> Tensor:
    """Returns the tensor on the CPU, in float64 unless it has integers."""
    x = x.detach().cpu()
    return x.double() if x.is_floating_point() else x


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The exact results or gradients of a case, and the bounds of the error of each element."""

    case: Case
    call: Call
    interpreted: bool
    dtypes: Mapping[str, torch.dtype]
    """The dtypes of the results and gradients."""

    def results(self, names: list[str]) -> tuple[Named, Named]:
        """Returns the exact results with these names, and the bounds."""
        call, case, bounds = self.call, self.case, self.call.op.bounds
        found = call.results()
        exact = {name: found[name].double() for name in names}
        if bounds is None:
            return exact, self._derived(exact, call.op.results, call.results)
        x, y, scaled = _row(call.arguments[0].double()), exact[names[0]], None
        if case.modified:
            named = Arguments(call.op.signature, call.arguments).named
            scaled = x * named["scale"]
            modification = ScoreModification(1.0, named["mask"], case.causal, case.masked_rows == "zero")
            x = modify_scores(scaled, case.dim, modification)[0]
        return exact, {names[0]: bounds.forward(x, _row(y), case.dim, self._arithmetic(names[0], "element"), scaled)}

    def gradients(self, grads: list[Tensor], names: list[str]) -> tuple[Named, Named]:
        """Returns the exact gradients, and the bounds. `grads` are those of the results, in float64.

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
            return exact, self._derived(exact, op.arguments, compute)
        (name,), a = names, self._arithmetic(names[0], "element")
        saved = _row(call.found["output"] if op.saves == ("output",) else call.arguments[0].double())
        scale = 1.0 if case.scale is None else case.scale
        return exact, {name: op.bounds.backward(saved, _row(grads[0]), _row(exact[name]), case.dim, a, scale)}

    def _derived(self, exact: Named, declared: Sequence[Argument | OpResult], compute: Any) -> Named:
        call = self.call
        named, formulas = Arguments(call.op.signature, call.arguments).named, op_cases(call.op).formulas
        roles = {item.name: role_in(item.role, named) for item in declared if item.name in exact}
        arithmetic = {name: self._arithmetic(name, role) for name, role in roles.items()}
        return derived_bounds(call.rows, exact, roles, compute, arithmetic, _name(call.arguments[0].dtype), formulas)

    def _arithmetic(self, name: str, role: str | None) -> Arithmetic:
        """Returns the precision of a result or a gradient."""
        case, call, dtype = self.case, self.call, self.dtypes[name]
        rows, main = call.rows, call.arguments[0]
        used = [_name(t.dtype) for t in call.arguments if isinstance(t, Tensor) and t.is_floating_point()]
        written = [_name(dtype)] if dtype.is_floating_point else ["float32"]
        if case.direction != "forward" and role == "element":
            written.append(_name(main.dtype))  # the sum of gradients is rounded to the dtype of the op's results
        wide = "float64" if "float64" in used else used[0]
        cols = math.prod(case.shape[rows.first : rows.first + rows.dims])
        in_order = {case.layout, case.grad_layout, *dict(case.layouts).values()} == {"contiguous"}
        in_order = in_order and rows.first + rows.dims == max(main.dim(), 1)
        return Arithmetic.of(tuple(written), wide, cols, self.interpreted, in_order)


def _row(x: Tensor) -> Tensor:
    """Returns the tensor. A 0-d tensor becomes a row of one element."""
    return x.reshape(x.shape or (1,))
