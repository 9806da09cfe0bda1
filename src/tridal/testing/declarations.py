"""Checks the declarations of ops, in seconds: the math in torch's ops, and the Triton functions."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeAlias

import torch

from tridal.errors import TridalError
from tridal.kernels.row_kernel import RowKernel
from tridal.ops import planning, row_math, table
from tridal.ops.arguments import Argument
from tridal.ops.op import Op
from tridal.runtime import compiler
from tridal.testing.cases import TUTORIAL_SHAPE, Case, optional_tensors
from tridal.testing.checking import Result
from tridal.testing.exact import Call, Named
from tridal.testing.inputs import dtype_name, make_call, make_tensors, make_values
from tridal.testing.op_trial import check_functions, is_own
from tridal.testing.raised import raised

Check: TypeAlias = tuple[str, Callable[[], str | None]]
"""The name of a check, and a function that returns a description of the fault, or None."""

_TOLERANCE = 1e-6
"""Two equal formulas in float64 differ by far less, and two different ones by more."""


def check_declarations(
    ops: Sequence[str] | None = None, track: Callable[[Sequence[Check]], Iterable[Check]] = iter
) -> tuple[Result, ...]:
    """Checks the declaration of each op. No device is needed.

    - The reference and the gradient return tensors of the right shapes and dtypes, with and without optional tensors.
    - The gradient of each tensor is that of autograd, given the tensors that the op saves.
    - Each number has a range, from which the suite draws values.
    - The functions of third parties return tensors of the right shapes, and Triton compiles their kernels. This is
      checked for an architecture of each backend, if the installed Triton compiles for it.

    Args:
        ops: names of ops; None stands for all ops, and then an installed op that cannot be used is a failure. Ops whose
            tensors have no rows are left out.
        track: yields the names and the functions of the checks that it gets, and can show the progress.

    Raises:
        PlanError: an op is unknown or cannot be used. The message suggests similar names.

    Example:
        >>> all(result.passed for result in tridal.testing.check_declarations(["softmax"]))
        True
    """
    checks: list[Check] = [
        (f"{op.name} declaration {what}", check)
        for op in table.selected(ops)
        if op.arguments[0].role == "element"
        for what, check in _checks(op)
    ]
    for entry in table.registered() if ops is None else ():
        if (fault := entry.fault) is not None:
            checks.append((f"{entry.name} declaration of {entry.origin}", functools.partial(str, fault)))
    return tuple(_result(*check) for check in track(checks))


def _result(name: str, check: Callable[[], str | None]) -> Result:
    start = time.perf_counter()
    try:
        message = check()
    except Exception as error:
        message = str(error) if isinstance(error, TridalError) else raised(error)
    return Result(name, message is None, 0.0, 0.0, message, time.perf_counter() - start)


def _checks(op: Op) -> Iterator[Check]:
    optional = optional_tensors(op)
    for dtype, absent in product((torch.float32, torch.float64), ((), optional) if optional else ((),)):
        without = f" without {', '.join(absent)}" if absent else ""
        yield f"math in {dtype}{without}", functools.partial(_math_fault, op, dtype, absent)
    for number in op.arguments:
        if number.type in ("float", "int", "str") and number.name != "dims":
            yield f"range of {number.name}", functools.partial(_range_fault, number)
    for kernel in op.kernels:
        if is_own(kernel):
            continue
        yield f"functions of {kernel.name}", functools.partial(check_functions, kernel)
        for arch in _compiled_architectures():
            for name, dim in (("float32", -1), ("float64", 0)):
                what = f"{kernel.name} compiled for {arch} in {name} along dim {dim}"
                yield what, functools.partial(_compile, kernel, arch, name, dim)


def _range_fault(number: Argument) -> str | None:
    """Why only the default of a number would be tested, or None."""
    if number.range is not None:
        return None
    wanted = "a tuple of all values" if number.type == "str" else "(smallest, largest)"
    return f"only the default {number.default!r} of {number.name!r} would be tested: declare its range as {wanted}"


def _math_fault(op: Op, dtype: torch.dtype, absent: tuple[str, ...]) -> str | None:
    """Why the reference or the gradient is wrong, or None."""
    case = Case(op.name, "backward", (3, 7), dtype=dtype_name(dtype), absent=absent)
    tensors = make_tensors(case, op, torch.device("cpu"))
    call, dtypes = make_call(case, op, {name: tensor for name, tensor in tensors.items() if tensor is not None}, None)
    leaves = call.differentiable(call.arguments)
    arguments = tuple(leaves.get(n, a) for n, a in zip(op.signature.names, call.arguments, strict=True))
    x, found = arguments[0], row_math.raw_results(op, *arguments)
    roles = call.bound.result_roles
    for result, role, tensor in zip(op.results, roles, found, strict=False):
        if role is None:
            continue
        expected = dtype if dtypes[result.name].is_floating_point else dtypes[result.name]
        shape = {**call.bound.shapes, "row": (*x.shape[:-1], 1)}.get(role, tuple(x.shape))
        if (fault := _fault("reference", tensor, x, shape, expected)) is not None:
            return fault
    if len(found) != len(op.results):
        return f"the reference returned {len(found)} tensors: expected {len(op.results)}, one for each result"
    if not leaves or not op.differentiable_results:
        return None
    if not found[0].requires_grad:
        return "the reference has no gradient: autograd has to differentiate it"
    if op.gradient is None:
        return None
    call.found = {name: tensor for name, tensor in call.results().items() if dtypes[name].is_floating_point}
    grads = [make_values("normal", tuple(call.found[n].shape), -1, seed=i + 1) for i, n in enumerate(call.given)]
    for tensor in row_math.raw_gradients(op, *call.gradient_arguments([grad.to(dtype) for grad in grads], dtype)):
        if (tensor is not None or op.steps is None) and (
            fault := _fault("gradient", tensor, x, tuple(x.shape), dtype)
        ) is not None:
            return fault
    if dtype is not torch.float64:
        return None
    exact = call.gradients(grads)
    for name, error in _errors(call, exact, grads).items():
        if not error <= _TOLERANCE:
            of = f" of {name}" if len(exact) > 1 else ""
            other = replace(op, saves=("input",) if op.saves == ("output",) else ("output",))
            right = op.one_tensor and _errors(replace(call, op=other), exact, grads)[name] <= _TOLERANCE
            return (
                f"with saves={op.saves!r}, the gradient{of} differs from autograd's gradient of the reference by "
                f"{error:.3g} of its largest element{f': declare saves={other.saves!r}' if right else ''}"
            )
    return None


def _errors(call: Call, exact: Named, grads: list[torch.Tensor]) -> dict[str, float]:
    """The error of each gradient of the op's own gradient, divided by the largest element."""
    found = call.declared_gradients(grads, stored=False)
    return {n: float((found[n] - tensor).abs().max() / tensor.abs().max()) for n, tensor in exact.items()}


def _fault(
    function: str, found: object, x: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> str | None:  # fmt: skip
    """Why a result has the wrong shape or dtype, or None."""
    if not isinstance(found, torch.Tensor):
        return f"the {function} returned a {type(found).__name__}: expected a tensor"
    if tuple(found.shape) != shape or found.dtype is not dtype:
        same = dtype is x.dtype and shape == tuple(x.shape)
        return (
            f"the {function} returned {found.dtype} of shape {tuple(found.shape)} for {x.dtype} of shape "
            f"{tuple(x.shape)}: expected {'the same dtype and shape' if same else f'{dtype} of shape {shape}'}"
        )
    return None


@functools.cache
def _compiled_architectures() -> tuple[str, ...]:
    """An architecture of each backend, if Triton compiles the default op for it without a device."""
    found = []
    for arch, (backend, properties) in planning.example_architectures().items():
        if backend.interpreted or not compiler.can_compile(properties.target):
            continue
        try:
            planning.plan(*TUTORIAL_SHAPE, arch=arch)
        except TridalError:  # for example, Triton 3.3 needs a linker that is not installed
            continue
        found.append(arch)
    return tuple(found)


def _compile(kernel: RowKernel, arch: str, dtype: str, dim: int) -> None:
    """Plans a kernel and compiles it."""
    question: dict[str, Any] = {"dtype": dtype, "op": kernel.name, "dim": dim}
    _, properties, plan = planning.planned(*TUTORIAL_SHAPE, arch=arch, **question)
    assert properties.target is not None
    call = planning.matrix_call(*TUTORIAL_SHAPE, **question)
    compiler.compile_kernel(call.specialize(plan.config), properties.target)
