"""The kernels with which `override_torch` replaces torch's softmax and log_softmax, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tridal.library.softmax.softmax import LOG_SOFTMAX, SOFTMAX
from tridal.ops import Arguments, Op
from tridal.pytorch import call_of_op, record_torch_call, skip_frames


def _forward(op: Op, aten: str) -> Callable[..., torch.Tensor]:
    torch_out = getattr(torch.ops.aten, aten).out  # the override does not replace `.out`

    @skip_frames
    def compute(input: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
        dtype = torch.float32 if half_to_float else input.dtype
        arguments = Arguments(op.signature, (input, dim, dtype))
        found = call_of_op(op, arguments)
        if found.by_kernels:
            return found.run(*arguments.tensors)[0]  # type: ignore[no-any-return]
        record_torch_call(op.name, dtype, input)
        out = torch.empty(input.shape, dtype=dtype, device=input.device)
        return torch_out(input, dim, half_to_float, out=out)  # type: ignore[no-any-return]

    return compute


def _backward(op: Op, aten: str) -> Callable[..., torch.Tensor]:
    torch_out = getattr(torch.ops.aten, f"{aten}_backward_data").out
    out_name = "grad_input" if aten == "_softmax" else "out"  # ATen's two ops use different names

    @skip_frames
    def compute(grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
        if grad.shape == output.shape:
            found = call_of_op(op, Arguments(op.gradient_signature, (grad, output, dim, input_dtype)))
            if found.by_kernels:
                return found.run(grad, output)[0]  # type: ignore[no-any-return]
        record_torch_call(op.gradient_signature.name, input_dtype, grad, output)
        out = torch.empty(output.shape, dtype=input_dtype, device=output.device)
        return torch_out(grad, output, dim, input_dtype, **{out_name: out})  # type: ignore[no-any-return]

    return compute


def _kernels(op: Op, aten: str) -> Mapping[str, Callable[..., Any]]:
    return {aten: _forward(op, aten), f"{aten}_backward_data": _backward(op, aten)}


SOFTMAX_KERNELS = _kernels(SOFTMAX, "_softmax")
LOG_SOFTMAX_KERNELS = _kernels(LOG_SOFTMAX, "_log_softmax")
"""The replaced ATen ops."""
