"""An op of the logits of a linear layer in chunks of rows, so that the full logits never exist.

torch's matmul computes the logits of a chunk. The kernels of the op compute its results, and write the gradient of the
logits into their memory. Matmuls turn it into the chunk's part of the gradients of input and weight.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from tridal.ops import Argument, Named, number, whole
from tridal.pytorch import Steps, without_autocast

Tensor = torch.Tensor
LAYER = ("input", "linear_weight", "linear_bias")
"""The differentiable tensors of a linear layer."""
LAYER_TENSORS = (
    whole("input", differentiable=True), whole("linear_weight", differentiable=True), whole("target"),
    whole("linear_bias", optional=True, differentiable=True),
)  # fmt: skip
"""The first arguments of the registered ops of a linear layer."""
CHUNK_NUMBERS = (
    Argument("matmul_dtype", "ScalarType"), Argument("accum_dtype", "ScalarType"),
    number("chunk_size", type="int", range=(16, 64)),
)  # fmt: skip
"""The arguments of the registered ops of a linear layer that say how chunks are computed."""
_CHUNK_BYTES = 2**28
"""Matmuls of fewer rows leave multiprocessors idle, and the host prepares a chunk more slowly than a GPU computes it.
8,192 x 1,024 x 50,257 on an H100 takes 5.48 ms, and 11.53 with 2**26."""
_MAX_NARROW_TERMS = 16
"""Sums of 8,192 rows in bfloat16 have an error of 0.0018 of their norm with one term, 0.0036 with 8."""


def chunk_rows(rows: int, linear_weight: Tensor, dtype: torch.dtype, accum_dtype: torch.dtype) -> int:
    """Returns the number of rows of a chunk. Its logits take at most 256 MiB or the bytes of a tensor, if that is more.

    - With matmuls in 16 bits and a wider `accum_dtype`, the tensor is the weight in the dtype of the matmuls. Smaller
      chunks do not reduce the peak memory, because the backward rounds the sum of the weight's gradient to a new tensor
      of the weight's size.
    - With wider matmuls, or an `accum_dtype` of 16 bits, it is half of the weight: the backward needs no such tensor.

    Sums in 16 bits have at most 16 terms, because each of them is rounded.

    The chunks of a call have nearly the same number of rows, a multiple of 128.
    """
    columns, inputs = max(linear_weight.shape[:-1].numel(), 1), linear_weight.shape[-1]
    limit = inputs if dtype.itemsize == 2 < accum_dtype.itemsize else inputs // 2
    if accum_dtype.itemsize == 2:
        limit = max(limit, math.ceil(rows / _MAX_NARROW_TERMS))
    limit = max(_CHUNK_BYTES // (columns * dtype.itemsize), limit, 1)
    if rows <= limit:
        return max(rows, 1)
    limit = max(limit // 128 * 128, min(limit, 128))
    even = math.ceil(rows / math.ceil(rows / limit))
    return min(math.ceil(even / 128) * 128, limit)


def sums_in(device: torch.device, dtype: torch.dtype, accum_dtype: torch.dtype) -> bool:
    """Returns whether torch's matmul on a device adds products of `dtype` to a sum in `accum_dtype`."""
    # Matmuls of fake tensors have every dtype, also for a device whose matmuls do not.
    return _made_sums_in(type(torch.empty(0, device=device)), device, dtype, accum_dtype)


@functools.cache
def _made_sums_in(kind: type[Tensor], device: torch.device, dtype: torch.dtype, accum_dtype: torch.dtype) -> bool:
    try:
        factor = torch.ones(16, 16, dtype=dtype, device=device)
        total = torch.zeros(16, 16, dtype=accum_dtype, device=device)
        torch.addmm(total, factor, factor, out_dtype=accum_dtype, out=total)
        torch.mm(factor, factor, out_dtype=accum_dtype, out=total)
    except (RuntimeError, TypeError):
        return False
    return True


def _product(left: Tensor, right: Tensor, out: Tensor, adds: bool) -> None:
    """Writes left @ right to `out`, or adds it. The products are summed in the dtype of `out`, or in a wider one."""
    if left.dtype is not out.dtype and not sums_in(left.device, left.dtype, out.dtype):
        left, right = left.to(out.dtype), right.to(out.dtype)
    options: Any = {} if left.dtype is out.dtype else {"out_dtype": out.dtype}
    if adds:
        torch.addmm(out, left, right, **options, out=out)
    else:
        torch.mm(left, right, **options, out=out)


def needs_vectors(device: torch.device, dtype: torch.dtype) -> bool:
    """Returns whether matmuls on a device are several times slower for sizes or strides without whole 16 bytes.

    They are on GPUs, where matmuls of 16-bit tensors write float32, too.
    """
    return dtype.itemsize == 2 and sums_in(device, dtype, torch.float32)


def vector_of(call: Steps, x: Tensor, columns: int) -> int:
    """Returns the number of elements in 16 bytes if rows of logits should be aligned, or 1."""
    if call.torch_computes or call.batch_invariant:  # batch-invariant kernels read contiguous tensors only
        return 1
    vector = 16 // x.element_size()  # few classes gain nothing from it
    return vector if columns > 16 * vector and needs_vectors(x.device, x.dtype) else 1


def logits_buffer(input: Tensor, linear_weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns an empty tensor that can hold the logits of all rows, which `in_chunks` keeps in it.

    It has one dim, because the distance of rows differs between devices and settings.
    """
    classes = linear_weight.shape[:-1].numel()
    return input.new_empty(input.shape[0] * (classes + 16 // dtype.itemsize - 1), dtype=dtype)


def _input_gradient(dlogits: Tensor, matrix: Tensor, columns: list[slice], out: Tensor) -> None:
    """Writes dlogits @ matrix to `out`. Parts of the columns are added in float32 and rounded once."""
    total = out if len(columns) == 1 else out.new_empty(out.shape, dtype=torch.promote_types(out.dtype, torch.float32))
    for part in columns:
        _product(dlogits[:, part], matrix[part], total, adds=part.start > 0)
    if total is not out:
        out.copy_(total)


def in_chunks(
    call: Steps, named: Named, needs: Sequence[bool], compute: Callable[[Tensor, slice], Tensor | None],
    kept: Tensor | None = None, filled: bool = False, at_once: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    """Calls compute(logits, rows) for the logits of each chunk. It may overwrite logits that are not kept.

    Returns the gradients of input, weight and bias that `needs` selects, in the dtypes in which matmuls write them.
    `compute` returns the gradient of the logits then, else None.

    The logits of all chunks are in `kept`, if it is a `logits_buffer`. An earlier call has computed them if it is
    `filled`. If nothing else needs chunks, `at_once` makes all rows one, unless the call names their size. The gradient
    of the weight is then one product, which needs no sum in another dtype.
    """
    input, linear_weight, bias = (named[name] for name in LAYER)
    matmul_dtype, accum_dtype = named["matmul_dtype"], named["accum_dtype"]
    x, matrix = input.detach().to(matmul_dtype), linear_weight.detach().flatten(0, -2).to(matmul_dtype)
    bias = None if bias is None else bias.detach().flatten().to(matmul_dtype)
    rows, classes, shape = x.shape[0], matrix.shape[0], linear_weight.shape[:-1]
    step = named["chunk_size"] or (
        max(rows, 1) if at_once else chunk_rows(rows, linear_weight, matmul_dtype, accum_dtype)
    )
    one = at_once and rows <= step and linear_weight.dtype is matmul_dtype
    grads: list[Any] = [
        x.new_empty(x.shape) if needs[0] else None,
        x.new_empty(matrix.shape, dtype=matmul_dtype if one else accum_dtype) if needs[1] else None,
        x.new_zeros(classes, dtype=accum_dtype) if needs[2] else None,
    ]
    if needs[1] and not rows:
        grads[1].zero_()
    vector = vector_of(call, x, classes)
    width = math.ceil(classes / vector) * vector
    held = min(step, rows) if kept is None else rows
    memory = (x.new_empty(held * width) if kept is None else kept.detach()[: held * width]).view(held, width)
    if memory.shape[1] > classes and not filled:
        memory[:, classes:] = 0  # a matmul may read between rows: torch's bfloat16 matmul on CPUs does
        memory = memory[:, :classes]
    whole = classes // vector * vector
    columns = [slice(0, whole), slice(whole, classes)] if 0 < whole < classes else [slice(0, classes)]
    with without_autocast(x.device.type):
        for start in range(0, rows, step):
            part = slice(start, start + step)
            flat = memory[: rows - start] if kept is None else memory[part]
            for of in [] if filled else columns:
                if bias is None:
                    torch.mm(x[part], matrix[of].t(), out=flat[:, of])
                else:
                    torch.addmm(bias[of], x[part], matrix[of].t(), out=flat[:, of])
            dlogits = compute(flat.view(flat.shape[0], *shape), part)
            if dlogits is None:
                continue
            flat = dlogits.reshape(flat.shape)
            if needs[0]:
                _input_gradient(flat, matrix, columns, grads[0][part])
            for of in columns if needs[1] else []:
                _product(flat[:, of].t(), x[part], grads[1][of], adds=start > 0)
            if needs[2]:
                grads[2] += flat.sum(0, dtype=accum_dtype)
    return grads


def logits_of(input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Returns all logits (N, C, d1, ...), computed in `dtype`."""
    matrix = linear_weight.flatten(0, -2).to(dtype)
    bias = None if linear_bias is None else linear_bias.flatten().to(dtype)
    return functional.linear(input.to(dtype), matrix, bias).view(input.shape[0], *linear_weight.shape[:-1])


def layer_gradients(
    dlogits: Tensor, input: Tensor, linear_weight: Tensor, dtype: torch.dtype, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of input, weight and bias that `needs` selects, from the gradient of all logits."""
    dlogits = dlogits.flatten(1)
    matrix, ones = linear_weight.flatten(0, -2).to(dtype), dlogits.new_ones(len(dlogits))
    return (
        dlogits @ matrix if needs[0] else None,
        (dlogits.t() @ input.to(dtype)).view(linear_weight.shape) if needs[1] else None,
        (ones @ dlogits).view(linear_weight.shape[:-1]) if needs[2] else None,
    )


def as_tensors(grads: Sequence[Tensor | None], named: Named) -> tuple[Tensor | None, ...]:
    """Returns the gradients of input, weight and bias with the dtypes and shapes of these tensors."""
    tensors = [named[name] for name in LAYER]
    return tuple(None if g is None else g.to(t.dtype).view(t.shape) for g, t in zip(grads, tensors, strict=True))
