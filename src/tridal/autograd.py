"""Gradients: how the forward and the backward kernels are wired into torch's autograd."""

from __future__ import annotations

from typing import Any

import torch

from tridal.execute import run
from tridal.types import Backend, Op

_READABLE = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def differentiable(backend: Backend, name: str, input: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """softmax or log_softmax of a non-empty tensor of rank >= 1 along 0 <= dim < rank, with gradients of any order."""
    if input.requires_grad and torch.is_grad_enabled():
        return _Forward.apply(input, backend, name, dim, dtype)  # type: ignore[no-any-return,no-untyped-call]
    return forward(backend, name, input, dim, dtype)


def forward(backend: Backend, name: str, input: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """The forward kernel's result, a contiguous tensor of `dtype`.

    What no kernel reads as it lies (strides that don't collapse, integers, a narrowing cast) is copied into the result,
    and the kernel then works in place: nothing of the result's size is allocated but the result.
    """
    op: Op = "log_softmax" if name == "log_softmax" else "softmax"
    out = torch.empty(input.shape, dtype=dtype, device=input.device)
    if not (_widens(input.dtype, dtype) and not input.is_neg() and run(backend, op, dim, out, input)):
        out.copy_(input)
        run(backend, op, dim, out, out)
    return out


def backward(
    backend: Backend, name: str, grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """The backward kernel's result, a contiguous tensor of `dtype`, from dY and the saved output Y."""
    op: Op = "log_softmax_backward" if name == "log_softmax" else "softmax_backward"
    output = output.contiguous()
    kernel_dtype = dtype if dtype in _READABLE else output.dtype
    out = torch.empty(output.shape, dtype=kernel_dtype, device=output.device)
    if grad.is_neg() or not run(backend, op, dim, out, grad, output):
        if out.dtype == grad.dtype:
            source = out.copy_(grad)
        else:
            source = grad.resolve_neg().contiguous()
        run(backend, op, dim, out, source, output)
    return out.to(dtype)


def _widens(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether reading `source` and computing in `target`'s accumulator is the same as casting to `target` first."""
    return source in _READABLE and torch.promote_types(source, target) == target


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, input: torch.Tensor, backend: Backend, name: str, dim: int, dtype: torch.dtype
    ) -> torch.Tensor:
        output = forward(backend, name, input, dim, dtype)
        ctx.save_for_backward(output)
        ctx.call = (backend, name, dim, input.dtype)
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (output,) = ctx.saved_tensors
        backend, name, dim, dtype = ctx.call
        if torch.is_grad_enabled():
            result = _Backward.apply(grad, output, backend, name, dim, dtype)  # type: ignore[no-untyped-call]
        else:
            result = backward(backend, name, grad, output, dim, dtype)
        return result, None, None, None, None


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, grad: torch.Tensor, output: torch.Tensor, backend: Backend, name: str, dim: int, dtype: torch.dtype
    ) -> torch.Tensor:
        ctx.save_for_backward(grad, output)
        ctx.call = (backend, name, dim)
        return backward(backend, name, grad, output, dim, dtype)

    @staticmethod
    def backward(ctx: Any, grad2: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        grad, output = ctx.saved_tensors
        _, name, dim = ctx.call
        accumulate = torch.promote_types(output.dtype, torch.float32)
        g, y, h = grad.to(accumulate), output.to(accumulate), grad2.to(accumulate)
        if name == "log_softmax":
            p = y.exp()
            along = (p * h).sum(dim, keepdim=True)
            to_grad = h - along
            to_output = -p * h * g.sum(dim, keepdim=True)
        else:
            along = (y * h).sum(dim, keepdim=True)
            to_grad = y * (h - along)
            to_output = h * (g - (g * y).sum(dim, keepdim=True)) - g * along
        return to_grad.to(grad.dtype), to_output.to(output.dtype), None, None, None, None
