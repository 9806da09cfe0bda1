"""Gradients: the formulas, and the nodes that they form in torch's graph.

Y = softmax(X) has dX = Y * (dY - sum(Y * dY)), and Y = log_softmax(X) has dX = dY - exp(Y) * sum(dY), sums along `dim`.
Kernels compute these two. What derivatives of higher order and forward mode need besides is made of torch's ops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from tridal.devices.settings import current, restored
from tridal.devices.types import Op
from tridal.pytorch import prepared as execute
from tridal.pytorch.device_context import Call

_transforming = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_forward_mode = forward_ad._set_fwd_grad_enabled
_tracing = torch._C._get_tracing_state
_key_included = torch._C._dispatch_tls_is_dispatch_key_included
_VMAP_MODE = torch._C._dispatch_key_parse("VmapMode")


def watched() -> bool:
    """Whether a transform, a mode or a tracer is active here and has to see the op: no tensor is mere memory then."""
    return _transforming() or _dispatch_modes() != 0 or forward_ad._current_level >= 0 or _tracing() is not None


Below = Callable[[], AbstractContextManager[None]]


class Node(_SingleLevelFunction):
    """What torch.autograd.Function is without the care of functorch's layers, at three quarters of its cost.

    Ours are called where no layer is active, or below the one that asks for a node.
    """

    if TYPE_CHECKING:
        apply: ClassVar[Callable[..., torch.Tensor]]


@functools.lru_cache(maxsize=1024)
def eager(call: Call) -> Callable[..., torch.Tensor]:
    """Applies a prepared call to a plain tensor[, and a mask that wants no gradient], and notes it in torch's graph.

    By a node of its own, which needn't be told what it belongs to. A mask changes nothing in the backward: what was
    masked is zero in Y, and so it is in dX.
    """
    run_forward, place, op, dim, dtype, scale = call.run, call.place, call.op, call.dim, call.dtype, call.scale

    class Eager(Node):
        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
            """Runs the prepared call."""
            output = run_forward(*tensors)
            ctx.save_for_backward(output)
            return output

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            """Launches the kernel, unless someone has to see or to differentiate this gradient."""
            (output,) = ctx.saved_tensors
            plain = type(grad) is torch.Tensor is type(output) and not torch.is_grad_enabled() and not watched()
            if plain and not _key_included(
                _VMAP_MODE
            ):  # is_grads_batched= has a vmap of its own, older than functorch's
                run = execute.backward(place, op, grad, output, dim, dtype, scale)
                if run is not None:
                    return run(grad, output), None
            with restored(place.settings):
                return gradient(op, grad, output, dim, dtype, scale), None

    return Eager.apply


class Softmax(Node):
    """The node of any other tensor: apply(below, input, op, dim, dtype), see `differentiate`."""

    @staticmethod
    def forward(ctx: Any, below: Below, input: torch.Tensor, op: Op, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """Goes on to whoever computes such tensors."""
        with below():
            output = _overload(op)(input, dim, dtype)
        _keep(ctx, (op, dim, input.dtype, 1.0), output)
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        """dX."""
        (output,) = ctx.saved_tensors
        op, dim, dtype, scale = ctx.key
        with restored(ctx.settings):
            return None, gradient(op, grad, output, dim, dtype, scale), *[None] * 6  # torch takes more than there are

    @staticmethod
    def jvp(ctx: Any, _below: None, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        """The tangent of Y."""
        (output,) = ctx.saved_tensors
        op, dim, _, _ = ctx.key
        with _forward_mode(True):
            return push(op, tangent, output, dim, output.dtype)


class MaskedSoftmax(Node):
    """The node of any other tensor with extras: apply(below, input, mask, scale, causal, zero_rows, dim, dtype).

    A mask has tangents here, and no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, below: Below, input: torch.Tensor, mask: torch.Tensor | None, scale: float, *key: Any
    ) -> torch.Tensor:
        """Goes on to whoever computes such tensors."""
        with below():
            output = torch.ops.tridal.masked_softmax.default(input, mask, scale, *key)
        _keep(ctx, ("softmax", key[2], input.dtype, scale), output)
        return output  # type: ignore[no-any-return]

    backward = staticmethod(Softmax.backward)

    @staticmethod
    def jvp(ctx: Any, _below: None, tangent: torch.Tensor | None, added: torch.Tensor | None, *_: None) -> torch.Tensor:
        """The tangent of Y."""
        (output,) = ctx.saved_tensors
        _, dim, _, scale = ctx.key
        with _forward_mode(True):
            result = torch.zeros_like(output)
            if tangent is not None:
                result = push("softmax", tangent, output, dim, output.dtype, scale)
            if added is not None and added.is_floating_point():
                result = result + push("softmax", added.expand(output.shape), output, dim, output.dtype)
            return result


class SoftmaxBackward(Node):
    """The node of a gradient, `op` being the forward's: apply(below, dY, Y, op, dim, dtype, scale)."""

    @staticmethod
    def forward(
        ctx: Any,
        below: Below,
        grad: torch.Tensor,
        output: torch.Tensor,
        op: Op,
        dim: int,
        dtype: torch.dtype,
        scale: float,
    ) -> torch.Tensor:
        """Goes on to whoever computes such tensors."""
        with below():
            result = _overload(execute.BACKWARD[op])(grad, output, dim, dtype, scale)
        _keep(ctx, (op, dim, dtype, scale), grad, output)
        return result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> tuple[Any, ...]:
        """Derivatives of sum(tangent * dX) by dY and by Y."""
        grad, output = ctx.saved_tensors
        op, dim, _, scale = ctx.key
        g, y, t = _accumulators(grad, output, tangent)
        if op == "log_softmax":
            by_output = -y.exp() * t * g.sum(dim, keepdim=True)
        else:
            by_output = t * (g - (g * y).sum(dim, keepdim=True)) - g * (y * t).sum(dim, keepdim=True)
        by_output = (by_output * scale).to(output.dtype)
        with restored(ctx.settings):  # dX is linear in dY, by the transpose of what pushes X
            by_grad = push(op, tangent, output, dim, grad.dtype, scale)
        return None, by_grad, by_output, None, None, None, None

    @staticmethod
    def jvp(
        ctx: Any, _below: None, grad_tangent: torch.Tensor | None, output_tangent: torch.Tensor | None, *_: None
    ) -> torch.Tensor:
        """The tangent of dX."""
        unpack: Any = forward_ad.unpack_dual
        grad, output = (unpack(saved, level=0).primal for saved in ctx.saved_tensors)
        op, dim, dtype, scale = ctx.key
        with _forward_mode(True):
            result = torch.zeros_like(output, dtype=dtype)
            if grad_tangent is not None:
                result = result + gradient(op, grad_tangent, output, dim, dtype, scale)
            if output_tangent is not None:
                g, y, t = _accumulators(grad, output, output_tangent)
                if op == "log_softmax":
                    by_output = -y.exp() * t * g.sum(dim, keepdim=True)
                else:
                    by_output = t * (g - (g * y).sum(dim, keepdim=True)) - y * (g * t).sum(dim, keepdim=True)
                result = result + (by_output * scale).to(dtype)
            return result


def _keep(ctx: Any, key: tuple[Op, int, torch.dtype, float], *tensors: torch.Tensor) -> None:
    """What the backward and the tangent of a node need: op, dim, dtype of the result, scale, and the settings."""
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.key = key
    ctx.settings = current()


def differentiate(node: type[Node], *args: Any) -> torch.Tensor:
    """The node's result for whatever layer of functorch asks for it, or for none.

    `apply` turns gradients off, which the layers below would take for the user's word: so it is handed what was in
    force. (Around `jvp` it turns forward mode off, which is known to be on there.)
    """
    grad, forward_grad = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()

    @contextmanager
    def below() -> Iterator[None]:
        with (
            torch._C._AutoDispatchBelowAutograd(),
            torch.set_grad_enabled(grad),
            _forward_mode(forward_grad),
        ):
            yield

    with enable_single_level_autograd_function():
        return node.apply(below, *args)


def gradient(
    op: Op, grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype, scale: float = 1.0
) -> torch.Tensor:
    """dX in `dtype` from dY and Y, where Y = op(scale * X), of whatever kind they are, differentiable."""
    return _overload(execute.BACKWARD[op])(grad, output, dim, dtype, scale)  # type: ignore[no-any-return]


def push(
    op: Op, tangent: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype, scale: float = 1.0
) -> torch.Tensor:
    """The tangent of Y in `dtype` from that of X; differentiable. The Jacobian of softmax is symmetric: it is dX's."""
    if op == "softmax":
        return gradient(op, tangent, output, dim, dtype, scale)
    y, t = _accumulators(output, tangent)
    return ((t - (y.exp() * t).sum(dim, keepdim=True)) * scale).to(dtype)


def _accumulators(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in a dtype to sum in: float64 if one of them is, else float32."""
    wide = torch.float64 if any(tensor.dtype is torch.float64 for tensor in tensors) else torch.float32
    return [tensor.to(wide) for tensor in tensors]


def _overload(op: Op) -> Any:
    return getattr(torch.ops.tridal, op).default
