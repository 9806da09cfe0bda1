"""The ops as torch knows them, `torch.ops.tridal.*`: opaque to compilers, visible to modes, subclasses and transforms.

Each has a kernel for every device (which asks at run time who serves it), the shape of its result for fake and meta
tensors, a node for autograd in both modes, and a rule for vmap. Plain eager tensors don't come by here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tridal.devices.types import Op
from tridal.ops.scale_mask import Extras, check_extras, composed
from tridal.pytorch import prepared as execute
from tridal.pytorch.autograd import MaskedSoftmax, Softmax, SoftmaxBackward, differentiate, watched
from tridal.pytorch.device_context import place_of
from tridal.pytorch.prepared import BACKWARD
from tridal.pytorch.validation import check

TORCH: dict[str, Callable[..., torch.Tensor]] = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
"""What computes the ops where no kernel does."""

_TORCH_BACKWARD = {
    "softmax": torch.ops.aten._softmax_backward_data.default,
    "log_softmax": torch.ops.aten._log_softmax_backward_data.default,
}
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_LIBRARY: Any = torch.library.Library("tridal", "DEF")  # type: ignore[no-untyped-call]


def _define(op: Op) -> None:
    """Registers a forward and its backward."""
    back = BACKWARD[op]
    _LIBRARY.define(f"{op}(Tensor input, int dim, ScalarType dtype) -> Tensor", tags=_TAGS)
    _LIBRARY.define(
        f"{back}(Tensor grad, Tensor output, int dim, ScalarType dtype, float scale=1.) -> Tensor", tags=_TAGS
    )

    def compute(input: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
        call = execute.forward(place_of(input.device), op, input, dim, dtype)
        return TORCH[op](input, dim, dtype=dtype).contiguous() if call is None else call.run(input)

    def compute_backward(
        grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype, scale: float = 1.0
    ) -> torch.Tensor:
        run = execute.backward(place_of(grad.device), op, grad, output, dim, dtype, scale)
        if run is not None:
            return run(grad, output)
        result = _TORCH_BACKWARD[op](grad.to(output.dtype), output, dim, output.dtype)
        if scale != 1:
            result = result * scale
        return result.to(dtype).contiguous()  # type: ignore[no-any-return]

    def fake(input: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
        check(input, dim, dtype)
        return input.new_empty(input.shape, dtype=dtype)

    def fake_backward(
        grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype, scale: float = 1.0
    ) -> torch.Tensor:
        check(output, dim, dtype)
        return output.new_empty(output.shape, dtype=dtype)

    def node(input: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
        if _plain(input):  # as in compiled code: nothing below has to be asked, and mostly nobody wants gradients
            return compute(input, dim, dtype)
        return differentiate(Softmax, input, op, dim, dtype)

    def node_backward(
        grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype, scale: float = 1.0
    ) -> torch.Tensor:
        if _plain(grad) and _plain(output):
            return compute_backward(grad, output, dim, dtype, scale)
        return differentiate(SoftmaxBackward, grad, output, op, dim, dtype, scale)

    def batch(info: Any, in_dims: Any, input: torch.Tensor, dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
        rank = input.dim() - 1
        if rank == 0:
            check(input[0], dim, dtype)
            return _overload(op)(input.unsqueeze(1), 1, dtype).squeeze(1), 0
        along = dim % rank
        return _overload(op)(input, along + (along >= in_dims[0]), dtype), in_dims[0]

    def batch_backward(
        info: Any,
        in_dims: Any,
        grad: torch.Tensor,
        output: torch.Tensor,
        dim: int,
        dtype: torch.dtype,
        scale: float = 1.0,
    ) -> tuple[torch.Tensor, int]:
        grad, output = (
            tensor.expand(info.batch_size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
            for tensor, axis in ((grad, in_dims[0]), (output, in_dims[1]))
        )
        rank = output.dim() - 1
        if rank == 0:
            return _overload(back)(grad.unsqueeze(1), output.unsqueeze(1), 1, dtype, scale).squeeze(1), 0
        return _overload(back)(grad, output, dim % rank + 1, dtype, scale), 0

    kernels: dict[str, tuple[Callable[..., Any], ...]] = {
        op: (compute, fake, node, batch),
        back: (compute_backward, fake_backward, node_backward, batch_backward),
    }
    for name, parts in kernels.items():
        _implement(name, *parts)


def _define_masked() -> None:
    """Registers softmax of scores that are weighed first. Its backward is softmax's, scaled."""
    name = "masked_softmax"
    extras = "float scale, bool causal, bool zero_rows"
    _LIBRARY.define(f"{name}(Tensor input, Tensor? mask, {extras}, int dim, ScalarType dtype) -> Tensor", tags=_TAGS)

    def compute(
        input: torch.Tensor, mask: torch.Tensor | None, scale: float, causal: bool, zero_rows: bool,
        dim: int, dtype: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        weighed = Extras(scale, mask, causal, "zero" if zero_rows else "nan")
        call = execute.weighed(place_of(input.device), input, dim, dtype, weighed)
        if call is None:
            check_extras(input, dim, weighed)
            return composed(_softmax, input, dim, dtype, weighed).contiguous()
        return call.run(input) if mask is None else call.run(input, mask)

    def fake(
        input: torch.Tensor, mask: torch.Tensor | None, scale: float, causal: bool, zero_rows: bool,
        dim: int, dtype: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        check(input, dim, dtype)
        if mask is not None:
            mask.expand(input.shape)
        return input.new_empty(input.shape, dtype=dtype)

    def node(
        input: torch.Tensor, mask: torch.Tensor | None, scale: float, causal: bool, zero_rows: bool,
        dim: int, dtype: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        if mask is not None and mask.requires_grad and torch.is_grad_enabled():
            weighed = Extras(scale, mask, causal, "zero" if zero_rows else "nan")
            return composed(_softmax, input, dim, dtype, weighed)
        if _plain(input) and (mask is None or _plain(mask)):
            return compute(input, mask, scale, causal, zero_rows, dim, dtype)
        return differentiate(MaskedSoftmax, input, mask, scale, causal, zero_rows, dim, dtype)

    def batch(
        info: Any, in_dims: Any, input: torch.Tensor, mask: torch.Tensor | None, scale: float, causal: bool,
        zero_rows: bool, dim: int, dtype: torch.dtype,
    ) -> tuple[torch.Tensor, int]:  # fmt: skip
        input = input.expand(info.batch_size, *input.shape) if in_dims[0] is None else input.movedim(in_dims[0], 0)
        scalar = input.dim() == 1
        input = input.unsqueeze(1) if scalar else input
        if mask is not None and in_dims[1] is not None:
            mask = mask.movedim(in_dims[1], 0)
            mask = mask.reshape(mask.shape[0], *[1] * (input.dim() - mask.dim()), *mask.shape[1:])
        along = dim % (input.dim() - 1) + 1
        result = _overload(name)(input, mask, scale, causal, zero_rows, along, dtype)
        return result.squeeze(1) if scalar else result, 0

    _implement(name, compute, fake, node, batch)


def _implement(
    name: str,
    kernel: Callable[..., Any],
    shape: Callable[..., Any],
    autograd: Callable[..., Any],
    rule: Callable[..., Any],
) -> None:
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, autograd, "Autograd")
    torch.library.register_fake(f"tridal::{name}", shape, lib=_LIBRARY)
    torch.library.register_vmap(f"tridal::{name}", rule, lib=_LIBRARY)


def _softmax(input: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.ops.tridal.softmax.default(input, dim, input.dtype)  # type: ignore[no-any-return]


def _plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and not (tensor.requires_grad and torch.is_grad_enabled()) and not watched()


def on_dispatch(op: str, kind: type, rule: Callable[..., Any]) -> None:
    """Registers rule(kind, op, types, args, kwargs) for tensors of a subclass with `__torch_dispatch__`."""
    torch.library.register_torch_dispatch(f"tridal::{op}", kind, rule, lib=_LIBRARY)


def _overload(op: str) -> Any:
    return getattr(torch.ops.tridal, op).default


_define("softmax")
_define("log_softmax")
_define_masked()
