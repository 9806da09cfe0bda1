"""The kernels with which `override_torch` replaces torch's softmax and log_softmax, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tridal.library.softmax.log_softmax import LOG_SOFTMAX
from tridal.library.softmax.softmax import SOFTMAX
from tridal.pytorch import Rules, record_torch_call, register, skip_frames


def _forward(rules: Rules, aten: str) -> Callable[..., torch.Tensor]:
    op, prepare = rules.op, rules.prepare
    torch_out = getattr(torch.ops.aten, aten).out  # the override does not replace `.out`
    assert prepare is not None

    @skip_frames
    def compute(input: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
        dtype = torch.float32 if half_to_float else input.dtype
        arguments = op.signature.complete((input, dim, dtype))
        found = prepare(*arguments)
        if found is not None:
            return found.run(*op.signature.tensors_of(arguments))[0]  # type: ignore[no-any-return]
        record_torch_call(op.name, dtype, input)
        out = torch.empty(input.shape, dtype=dtype, device=input.device)
        return torch_out(input, dim, half_to_float, out=out)  # type: ignore[no-any-return]

    return compute


def _backward(rules: Rules, aten: str) -> Callable[..., torch.Tensor]:
    op, prepare = rules.op, rules.prepare_backward
    torch_out = getattr(torch.ops.aten, f"{aten}_backward_data").out
    out_name = "grad_input" if aten == "_softmax" else "out"  # ATen's two ops use different names
    assert prepare is not None

    @skip_frames
    def compute(grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
        if grad.shape == output.shape:
            found = prepare(*op.gradient_signature.complete((grad, output, dim, input_dtype)))
            if found is not None:
                return found.run(grad, output)[0]  # type: ignore[no-any-return]
        record_torch_call(op.gradient_signature.name, input_dtype, grad, output)
        out = torch.empty(output.shape, dtype=input_dtype, device=output.device)
        return torch_out(grad, output, dim, input_dtype, **{out_name: out})  # type: ignore[no-any-return]

    return compute


def _kernels(rules: Rules, aten: str) -> Mapping[str, Callable[..., Any]]:
    return {aten: _forward(rules, aten), f"{aten}_backward_data": _backward(rules, aten)}


SOFTMAX_KERNELS = _kernels(register(SOFTMAX), "_softmax")
LOG_SOFTMAX_KERNELS = _kernels(register(LOG_SOFTMAX), "_log_softmax")
"""The replaced ATen ops."""
