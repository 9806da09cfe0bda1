"""Runs one case: makes its tensors, calls the implementation, and compares the results with float64 on the CPU."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from tridal.devices.types import Backend
from tridal.ops import table
from tridal.ops.op import Op
from tridal.ops.scale_mask import ScoreModification, modify_scores
from tridal.testing.cases import Case, FusedCase, ordinary
from tridal.testing.exact import Call, Named, gradients_of
from tridal.testing.implementation import Implementation, implementation
from tridal.testing.inputs import make_mask, make_tensors, make_values, with_layout
from tridal.testing.tolerance import Arithmetic, DerivedBounds

Tensor = torch.Tensor
Compared: TypeAlias = tuple[float, float, str | None]
"""The error, its bound and the message of a `Result`."""


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


def worst(checked: Mapping[str, tuple[Tensor, Tensor, Tensor]], device: torch.device) -> Compared:
    """Returns error, bound and message as in `Result`, those of the result that is closest to its bound.

    `checked` has a result, the exact result and the bound of each error, by name.
    """
    closest: Compared = (0.0, 0.0, None)
    for name, (result, exact, bound) in checked.items():
        prefix = f"{name}: " if len(checked) > 1 else ""
        if tuple(result.shape) != tuple(exact.shape) or result.device.type != device.type:
            expected = f"instead of {tuple(exact.shape)} on {device.type}"
            return math.nan, 0.0, f"{prefix}shape {tuple(result.shape)} on {result.device} {expected}"
        error, allowed, message = difference(result.detach().cpu().double(), exact, bound)
        if message is not None:
            return error, allowed, f"{prefix}{message}"
        closest = max(closest, (error, allowed, None), key=lambda part: part[0] / part[1] if part[1] else 0.0)
    return closest


def difference(result: Tensor, exact: Tensor, bound: Tensor) -> Compared:
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


def _compare(case: Case, implementation: Implementation) -> Compared:
    """Compares the results of a case, or the gradients, with the exact ones."""
    op, device, forward = table.op_named(case.op), implementation.device, case.direction == "forward"
    tensors = make_tensors(case, op, device)
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    before = {name: tensor.clone() for name, tensor in present.items()}
    mask = None if case.mask is None else make_mask(case.mask, case.shape, device)
    call, dtypes = make_call(case, op, before, mask)
    leaves = {} if forward else {name: present[name] for name in call.differentiable(call.arguments)}
    found = _results(case, op, implementation, tensors | {n: t.requires_grad_() for n, t in leaves.items()}, mask)
    call.found = {name: _exact_rows(tensor) for name, tensor in found.items()}
    grads: list[Tensor] = []
    if not forward:
        outputs = [found[name] for name in call.given]
        for index, output in enumerate(outputs):
            values = make_values("normal", tuple(output.shape), case.dim, seed=1 + index)
            layout = case.grad_layout if output.shape == case.shape else "contiguous"
            grads.append(with_layout(values, layout, _name(output.dtype), device))
        given = gradients_of(outputs, list(leaves.values()), grads, case.direction == "double")
        found, dtypes = dict(zip(leaves, given, strict=True)), {name: before[name].dtype for name in leaves}
    wrong = [f"dtype {t.dtype} instead of {dtypes[n]} of {n}" for n, t in found.items() if t.dtype is not dtypes[n]]
    for name, tensor in before.items():
        if not torch.equal(tensor.nan_to_num(), present[name].detach().nan_to_num()):
            wrong.append(f"{name} was changed")
    if wrong:
        return math.nan, 0.0, ", ".join(wrong)
    arithmetic = functools.partial(_arithmetic, case, call, implementation.interpreted, dtypes)
    compute = _exact_results if forward else _exact_gradients
    exact, bounds = compute(case, call, list(found), [_exact_rows(grad) for grad in grads], arithmetic)
    return worst(
        {name: (t, exact[name].reshape(t.shape), bounds[name].reshape(t.shape)) for name, t in found.items()}, device
    )


def make_call(case: Case, op: Op, tensors: Named, mask: Tensor | None) -> tuple[Call, dict[str, torch.dtype]]:
    """Returns the call of a case on the CPU, and the dtypes of its results."""
    named: dict[str, Any] = {a.name: ordinary(a) for a in op.signature.arguments} | dict(case.numbers)
    elements = [tensors[a.name].dtype for a in op.arguments if a.role == "element" and a.name in tensors]
    dtype = functools.reduce(torch.promote_types, elements) if case.cast is None else getattr(torch, case.cast)
    named |= {"dim": case.dim, "dims": case.dims, "dtype": dtype, "mask": mask, "causal": case.causal, **tensors}
    named |= {"scale": 1.0 if case.scale is None else case.scale, "zero_masked_rows": case.masked_rows == "zero"}
    dtypes = op.signature.dtypes({name: named[name] for name in op.signature.names})
    for argument in op.arguments:
        if argument.name in tensors:
            tensor = tensors[argument.name].cpu()
            named[argument.name] = tensor.to(dtype) if case.cast and argument.role == "element" else tensor
    named["mask"] = None if mask is None else mask.cpu()
    call = Call(op, tuple(named[name] for name in op.signature.names))
    return call, dict(zip((result.name for result in op.results), dtypes, strict=True))


def _results(
    case: Case, op: Op, implementation: Implementation, tensors: Mapping[str, Tensor | None], mask: Tensor | None
) -> Named:
    """Calls the function of a case. Returns its results by name."""
    device, given = implementation.device, dict(case.numbers)
    keywords: dict[str, Any] = {"dim": case.dim}
    if case.cast is not None:
        keywords["dtype"] = getattr(torch, case.cast)
    if any(argument.name == "dims" for argument in op.arguments):
        keywords = {"normalized_shape": case.shape[len(case.shape) - case.dims :]}
    if case.stream:
        keywords["stream"] = torch.get_device_module(device.type).current_stream(device)
    if case.modified:
        keywords |= {"scale": case.scale, "mask": mask, "causal": case.causal, "masked_rows": case.masked_rows}
    for argument in op.arguments:
        if argument.optional and tensors.get(argument.name) is not None:
            keywords[argument.name] = tensors[argument.name]
        elif argument.name in given or (argument.type == "float" and argument.default is argument.neutral is None):
            keywords[argument.name] = given.get(argument.name, ordinary(argument))
            keywords[argument.name] = None if keywords[argument.name] == "" else keywords[argument.name]
    required = [tensors[a.name] for a in op.arguments if a.type == "Tensor" and not a.optional]
    found: Any = implementation.function(case.op)(*required, **keywords)
    found = (found,) if isinstance(found, Tensor) else found
    names = [r.name for r in op.results if r.returned and (r.needs is None or tensors.get(str(r.needs)) is not None)]
    return dict(zip(names, [tensor for tensor in found if tensor is not None], strict=True))


def _exact_rows(x: Tensor) -> Tensor:
    """Returns the tensor on the CPU, in float64 unless it has integers."""
    x = x.detach().cpu()
    return x.double() if x.is_floating_point() else x


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _arithmetic(
    case: Case, call: Call, interpreted: bool, dtypes: Mapping[str, torch.dtype], name: str, role: str | None
) -> Arithmetic:
    """Returns the precision of a result or a gradient."""
    rows, main, element = call.op.signature.rows(call.arguments), call.arguments[0], case.direction != "forward"
    used = [_name(t.dtype) for t in call.arguments if isinstance(t, Tensor) and t.is_floating_point()]
    written = [_name(dtypes[name])] if dtypes[name].is_floating_point else []
    if element and role == "element":  # the sum of gradients is rounded to the dtype of the op's results
        written.append(_name(main.dtype))
    written = written or ["float32"]
    wide = "float64" if "float64" in used else used[0]
    cols = rows.flat(main).shape[rows.first]
    in_order = case.layout == case.grad_layout == "contiguous" and rows.first + rows.dims == max(main.dim(), 1)
    found = Arithmetic.of(tuple(written), wide, cols, interpreted, in_order)
    if role == "column":  # a sum over rows, one after the other
        found = replace(found, sum_roundings=found.sum_roundings + main.numel() // max(cols, 1))
    return found


def _exact_results(
    case: Case, call: Call, names: list[str], grads: list[Tensor], arithmetic: Callable[..., Arithmetic]
) -> tuple[Named, Named]:
    """Returns the exact results, and the bound of the error of each element."""
    roles = {result.name: result.role for result in call.op.results}
    found = call.results()
    exact = {name: found[name].double() for name in names}
    if call.op.bounds is None:
        return exact, _derived(call, exact, roles, call.results, arithmetic)
    x, y = _row(call.arguments[0].double()), exact[names[0]]
    scores, scaled = _scores(case, call, x)
    bound = call.op.bounds.forward(scores, _row(y), case.dim, arithmetic(names[0], "element"), scaled)
    return exact, {names[0]: bound}


def _scores(case: Case, call: Call, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns the scaled and masked scores, and the scaled ones if the case modifies them."""
    if not case.modified:
        return x, None
    named = call.op.signature.named(call.arguments)
    scaled = x * named["scale"]
    modification = ScoreModification(1.0, named["mask"], case.causal, case.masked_rows == "zero")
    return modify_scores(scaled, case.dim, modification)[0], scaled


def _exact_gradients(
    case: Case, call: Call, names: list[str], grads: list[Tensor], arithmetic: Callable[..., Arithmetic]
) -> tuple[Named, Named]:
    """Returns the exact gradients, and the bound of the error of each element.

    They are autograd's gradients of the reference. The op's own gradient corrects them for the roundings of saved
    results, and defines them in rows with infinities or NaN, where several formulas with one value differ.
    """
    op, twice = call.op, case.direction == "double"
    exact = call.gradients(grads, twice=twice)
    compute = functools.partial(call.gradients, grads, twice=twice)
    if not twice and op.gradient is not None:
        stored, ideal = call.declared_gradients(grads), call.declared_gradients(grads, stored=False)
        special = case.modified or case.values.startswith(("some", "row"))
        for name, gradient in exact.items():
            finite = gradient.isfinite() & (ideal[name].isfinite() | (not special))
            exact[name] = torch.where(finite, gradient + (stored[name] - ideal[name]), stored[name])
        compute = functools.partial(call.declared_gradients, grads)
    roles = {argument.name: argument.role for argument in op.arguments}
    if op.bounds is None:
        return exact, _derived(call, exact, roles, compute, arithmetic)
    (name,), a = names, arithmetic(names[0], "element")
    x, dy, wanted = _row(call.arguments[0].double()), _row(grads[0]), _row(exact[names[0]])
    if twice:
        return exact, {name: op.bounds.second_order(x, dy, wanted, case.dim, a)}
    saved = _row(call.found["output"]) if op.saves == ("output",) else x
    scale = 1.0 if case.scale is None else case.scale
    return exact, {name: op.bounds.backward(saved, dy, wanted, case.dim, a, scale)}


def _row(x: Tensor) -> Tensor:
    """Returns the tensor. A 0-d tensor becomes a row of one element."""
    return x.reshape(x.shape or (1,))


def _derived(
    call: Call, exact: Named, roles: Mapping[str, Any], compute: Callable[..., Named],
    arithmetic: Callable[..., Arithmetic],
) -> Named:  # fmt: skip
    rows = call.op.signature.rows(call.arguments)
    bounds = DerivedBounds(
        rows, exact, roles, lambda trial: {n: t for n, t in compute(trial=trial).items() if n in exact}
    )
    return bounds.bounds({name: arithmetic(name, roles[name]) for name in exact}, call.rounds)
