"""Checks the declarations of ops of one tensor, in seconds: the maths in torch's ops, and the Triton functions."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tridal.errors import TridalError
from tridal.ops import planning, table
from tridal.ops.row_op import RowOp
from tridal.runtime import compiler
from tridal.runtime.op_trial import check_functions, is_own
from tridal.runtime.row_kernel import RowKernel
from tridal.testing.cases import TUTORIAL_SHAPE
from tridal.testing.checking import Result

_TOLERANCE = 1e-6
"""Two equal formulas in float64 differ by far less, and two different ones by more."""


def check_declarations(ops: Sequence[str] | None = None) -> tuple[Result, ...]:
    """Checks the declaration of each op of one tensor. No device is needed.

    - The reference and the gradient keep shape and dtype.
    - The gradient is that of autograd, given the tensor that the op saves.
    - The functions of third parties return tensors of the right shapes, and Triton compiles their kernels. This is
      checked for an architecture of each backend, if the installed Triton compiles for it.

    Args:
        ops: names of ops; None stands for all ops. Ops of several tensors are left out.

    Raises:
        PlanError: an op is unknown or cannot be used. The message suggests similar names.
    """
    return tuple(
        _result(f"{op.name} declaration {what}", check)
        for op in table.selected(ops)
        if isinstance(op, RowOp)
        for what, check in _checks(op)
    )


def _result(name: str, check: Callable[[], str | None]) -> Result:
    start = time.perf_counter()
    try:
        message = check()
    except TridalError as error:
        message = str(error)
    except Exception as error:
        message = f"raised {type(error).__name__}: {error}"
    return Result(name, message is None, 0.0, 0.0, message, time.perf_counter() - start)


def _checks(op: RowOp) -> Iterator[tuple[str, Callable[[], str | None]]]:
    for dtype in (torch.float32, torch.float64):
        yield f"maths in {dtype}", functools.partial(_maths_fault, op, dtype)
    for kernel in op.kernels:
        if is_own(kernel):
            continue
        yield f"functions of {kernel.name}", functools.partial(check_functions, kernel, None, True)
        for arch in _compiled_architectures():
            for name, dim in (("float32", -1), ("float64", 0)):
                what = f"{kernel.name} compiled for {arch} in {name} along dim {dim}"
                yield what, functools.partial(_compile, kernel, arch, name, dim)


def _maths_fault(op: RowOp, dtype: torch.dtype) -> str | None:
    """Returns a description of a fault of the reference or the gradient, or None."""
    x, dy = torch.randn((2, 3, 7), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    values = tuple(map(float, op.parameters.values()))
    y = op.compute(x.requires_grad_(), -1, values)
    if (fault := _fault("reference", y, x)) is not None:
        return fault
    if not y.requires_grad:
        return "the reference has no gradient: autograd has to differentiate it"
    (exact,) = torch.autograd.grad(y, x, dy)
    saved = {"output": y.detach(), "input": x.detach()}
    found = {name: op.compute_gradient(dy, t, -1, op.backward_parameters(values)) for name, t in saved.items()}
    if (fault := _fault("gradient", found[op.saves], x)) is not None:
        return fault
    error = {name: float((dx - exact).abs().max() / exact.abs().max()) for name, dx in found.items()}
    if dtype is not torch.float64 or error[op.saves] <= _TOLERANCE:
        return None
    right = next((f": declare saves={name!r}" for name in found if error[name] <= _TOLERANCE), "")
    return (
        f"with saves={op.saves!r}, the gradient differs from autograd's gradient of the reference by "
        f"{error[op.saves]:.3g} of its largest element{right}"
    )


def _fault(function: str, found: object, x: torch.Tensor) -> str | None:
    """Returns why a result has the wrong shape or dtype, or None."""
    if not isinstance(found, torch.Tensor):
        return f"the {function} returned a {type(found).__name__}: expected a tensor"
    if found.shape != x.shape or found.dtype is not x.dtype:
        return (
            f"the {function} returned {found.dtype} of shape {tuple(found.shape)} for {x.dtype} of shape "
            f"{tuple(x.shape)}: expected the same dtype and shape"
        )
    return None


@functools.cache
def _compiled_architectures() -> tuple[str, ...]:
    """Returns an architecture of each backend, if Triton compiles the default op for it without a device."""
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
