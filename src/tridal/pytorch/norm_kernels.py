"""How rms_norm and layer_norm, and their gradients, run their kernels on plain tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tridal.ops.fused_op import FusedOp
from tridal.ops.layer_norm import LAYER_NORM
from tridal.ops.norms import gradient_of_sum, sum_dtype
from tridal.ops.rms_norm import RMS_NORM, result_dtype
from tridal.ops.row_reduce import accumulator
from tridal.pytorch.binding import dtype_name
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.device_context import device_context
from tridal.pytorch.fused_ops import FusedRun, Results, Rules, by_kernels, define
from tridal.pytorch.kernel_run import prepare_kernel
from tridal.pytorch.prepared import why_torch
from tridal.runtime.row_kernel import RowKernel

Tensor = torch.Tensor


@functools.lru_cache(maxsize=1024)
def _forward_kernel(
    kernel: RowKernel, dtype: torch.dtype, absent: tuple[str, ...], statistics: bool, **constants: str
) -> RowKernel:
    """Returns the kernel without the tensors in `absent`, for a sum of this dtype. It may write no statistics."""
    kernel = replace(kernel, constants=()).bind(SUM_DTYPE=dtype_name(dtype), **constants, **dict.fromkeys(absent))
    writes = kernel.writes[:1] if "residual" in absent else kernel.writes
    return kernel.writing(*writes, *(kernel.row_writes if statistics else ()))


def _prepare(
    kernel: RowKernel, dtype: torch.dtype, dims: int, tensors: dict[str, Tensor | None], parameters: tuple[Any, ...],
    results: int | None, **constants: str,
) -> FusedRun | None:  # fmt: skip
    """Returns run(*tensors) with the first `results` results of a norm, by default all; None if no kernel computes it.

    The results are the norm, the sum or None, and the statistics.
    """
    input, residual = tensors["x"], tensors["residual"]
    assert input is not None
    wide, total = accumulator(*tensors.values()), sum_dtype(input, residual)
    if wide is torch.float64 and (total is not wide or dtype is not wide):
        return None
    absent = tuple(name for name, tensor in tensors.items() if tensor is None)
    kernel = _forward_kernel(kernel, total, absent, results is None or results > 2, **constants)
    given = [_flat(tensor, dims) for tensor in tensors.values() if tensor is not None]
    dtypes = (dtype, *[total] * (residual is not None), *[wide] * len(kernel.row_writes))
    launch = prepare_kernel(device_context(input.device), kernel, given[0].dim() - 1, given, dtypes, parameters)
    if launch is None:
        return None
    shape, elements, complete = input.shape, len(kernel.writes), residual is not None or results == 1

    def run(*tensors: Tensor | None) -> Results:
        given = [tensor for tensor in tensors if tensor is not None]
        if dims > 1:
            given = [tensor.flatten(-dims) for tensor in given]
        found = launch(None, given)
        if dims > 1:
            found = (*[tensor.view(shape) for tensor in found[:elements]], *found[elements:])
        return found if complete else (found[0], None, *found[1:])

    return run


def _flat(tensor: Tensor, dims: int) -> Tensor:
    return tensor if dims == 1 else tensor.flatten(-dims)


@functools.lru_cache(maxsize=1024)
def _backward_kernel(kernel: RowKernel, absent: tuple[str, ...], outputs: tuple[str, ...]) -> RowKernel:
    """Returns the kernel without some tensors, for these outputs only. Gradients of parameters need no statistics."""
    kernel = kernel.bind(**dict.fromkeys(absent)).writing(*outputs)
    return kernel if kernel.writes else replace(kernel, statistics=())


def _prepare_backward(
    kernel: RowKernel, dims: int, dy: Tensor | None, dsum: Tensor | None, x: Tensor, rows: tuple[Tensor, ...],
    weight: Tensor | None, parameters: tuple[Any, ...], output_mask: Sequence[bool],
) -> FusedRun | None:  # fmt: skip
    """Returns run(dy, dsum, x, *rows, weight) of a gradient; None if no kernel computes it."""
    wide = accumulator(dy, x, weight)
    if dy is None or (wide is torch.float64 and x.dtype is not wide):
        return None
    names = (*kernel.writes, *kernel.column_writes)
    outputs = tuple(name for name, needed in zip(names, output_mask, strict=True) if needed)
    if not outputs:
        return lambda *_: (None,) * len(names)
    needs_dx = output_mask[0]
    total = gradient_of_sum(dsum, x) if needs_dx else None
    tensors = {"dsum": total, "weight": weight}
    kernel = _backward_kernel(kernel, tuple(name for name, tensor in tensors.items() if tensor is None), outputs)
    adds, weighted, complete = total is not None, weight is not None, all(output_mask)
    given = [_flat(tensor, dims) for tensor in (dy, x, total) if tensor is not None]
    given += [*rows, *([] if weight is None else [weight.flatten()])]
    dtypes = (x.dtype,) * len(kernel.writes)
    launch = prepare_kernel(device_context(x.device), kernel, given[0].dim() - 1, given, dtypes, parameters)
    if launch is None:
        return None
    shape, columns = x.shape, x.shape[x.dim() - dims :]

    def run(dy: Tensor, dsum: Tensor | None, x: Tensor, *saved: Tensor | None) -> Results:
        given: list[Any] = [dy, x, dsum] if adds else [dy, x]
        if dims > 1:
            given = [tensor.flatten(-dims) for tensor in given]
        given += saved if weighted else saved[:-1]
        if dims > 1 and weighted:
            given[-1] = given[-1].flatten()
        found = launch(None, given)
        if dims > 1:
            found = (*[dx.view(shape) for dx in found[:needs_dx]], *[total.view(columns) for total in found[needs_dx:]])
        if complete:
            return found
        results = iter(found)
        return tuple(next(results) if needed else None for needed in output_mask)

    return run


def _prepare_rms_norm(
    input: Tensor, residual: Tensor | None, weight: Tensor | None, dims: int, eps: float, weight_offset: float,
    casting: str, *, results: int | None = None,
) -> FusedRun | None:  # fmt: skip
    dtype = result_dtype(sum_dtype(input, residual), weight, casting)
    tensors, parameters = {"x": input, "residual": residual, "weight": weight}, (eps, weight_offset or None)
    return _prepare(RMS_NORM.forward, dtype, dims, tensors, parameters, results, CASTING=casting)


def _prepare_rms_norm_backward(
    dy: Tensor | None, dsum: Tensor | None, x: Tensor, inverse_rms: Tensor, weight: Tensor | None, dims: int,
    eps: float, weight_offset: float, output_mask: Sequence[bool],
) -> FusedRun | None:  # fmt: skip
    kernel, parameters = RMS_NORM.backward, (weight_offset or None,)
    return _prepare_backward(kernel, dims, dy, dsum, x, (inverse_rms,), weight, parameters, output_mask)


def _rms_norm_save(arguments: tuple[Any, ...], results: Results) -> tuple[Results, tuple[Any, ...]]:
    input, residual, weight, dims, eps, weight_offset, _ = arguments
    return (input if residual is None else results[1], results[2], weight), (dims, eps, weight_offset)


def _prepare_layer_norm(
    input: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, *,
    results: int | None = None,
) -> FusedRun | None:  # fmt: skip
    tensors = {"x": input, "residual": residual, "weight": weight, "bias": bias}
    return _prepare(LAYER_NORM.forward, sum_dtype(input, residual), dims, tensors, (eps,), results)


def _prepare_layer_norm_backward(
    dy: Tensor | None, dsum: Tensor | None, x: Tensor, mean: Tensor, inverse_deviation: Tensor, weight: Tensor | None,
    dims: int, eps: float, output_mask: Sequence[bool],
) -> FusedRun | None:  # fmt: skip
    return _prepare_backward(LAYER_NORM.backward, dims, dy, dsum, x, (mean, inverse_deviation), weight, (), output_mask)


def _layer_norm_save(arguments: tuple[Any, ...], results: Results) -> tuple[Results, tuple[Any, ...]]:
    input, residual, weight, _, dims, eps = arguments
    return (input if residual is None else results[1], *results[2:], weight), (dims, eps)


def _by_torch(op: FusedOp, backward: bool, *arguments: Any) -> Results:
    """Computes an op, or its gradient, with torch's ops. Makes the results contiguous, as those of kernels are."""
    if RECORDERS:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        reason = None
        if backward and arguments[0] is None:
            reason = "only the sum with the residual has a gradient"
        elif any(tensor.dtype is torch.float64 for tensor in tensors):
            reason = "kernels of norms compute float64 tensors with float64 tensors only"
        reason = why_torch(device_context(tensors[0].device), None, *tensors, otherwise=reason)
        record_torch((op.backward if backward else op.forward).name, tensors[0], reason)
    results = (op.gradient if backward else op.reference)(*arguments)
    return tuple(None if result is None else result.contiguous() for result in results)


def _fake_rms_norm(
    input: Tensor, residual: Tensor | None, weight: Tensor | None, dims: int, eps: float, weight_offset: float,
    casting: str,
) -> Results:  # fmt: skip
    total = sum_dtype(input, residual)
    inverse_rms = _fake_statistic(input, dims, accumulator(input, residual, weight))
    y = input.new_empty(input.shape, dtype=result_dtype(total, weight, casting))
    return y, None if residual is None else input.new_empty(input.shape, dtype=total), inverse_rms


def _fake_layer_norm(
    input: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float
) -> Results:
    dtype, wide = sum_dtype(input, residual), accumulator(input, residual, weight, bias)
    y = input.new_empty(input.shape, dtype=dtype)
    total = None if residual is None else torch.empty_like(y)
    return y, total, _fake_statistic(input, dims, wide), _fake_statistic(input, dims, wide)


def _fake_statistic(input: Tensor, dims: int, dtype: torch.dtype) -> Tensor:
    return input.new_empty(input.shape[: input.dim() - dims], dtype=dtype)


def _fake_backward(dy: Tensor | None, dsum: Tensor | None, x: Tensor, *saved: Any, weight: int) -> Results:
    """Returns the gradients of the sum and of the parameters. `weight` is the weight's position in `saved`."""
    mask, dims, shape = saved[-1], saved[weight + 1], x.shape
    wide = accumulator(dy, x, saved[weight])
    found = [x.new_empty(shape[x.dim() - dims :], dtype=wide) if needed else None for needed in mask[1:]]
    return (x.new_empty(shape) if mask[0] else None, *found)


def _rules(
    op: FusedOp, prepare: Callable[..., FusedRun | None], fake: FusedRun, save: Callable[..., Any],
    prepare_backward: Callable[..., FusedRun | None], weight: int,
) -> Rules:  # fmt: skip
    """Returns the rules of a norm. `weight` is the position of the weight among what the forward saves."""
    compute = by_kernels(prepare, functools.partial(_by_torch, op, False), op.tensor_count)
    backward = by_kernels(prepare_backward, functools.partial(_by_torch, op, True), op.backward_tensor_count)
    fake_backward = functools.partial(_fake_backward, weight=weight)
    return Rules(op, compute, fake, save, backward, fake_backward, prepare, prepare_backward)


RMS_NORM_RULES = _rules(RMS_NORM, _prepare_rms_norm, _fake_rms_norm, _rms_norm_save, _prepare_rms_norm_backward, 1)
LAYER_NORM_RULES = _rules(
    LAYER_NORM, _prepare_layer_norm, _fake_layer_norm, _layer_norm_save, _prepare_layer_norm_backward, 2
)
define(RMS_NORM_RULES)
define(LAYER_NORM_RULES)
