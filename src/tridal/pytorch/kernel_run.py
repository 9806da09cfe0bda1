"""Runs a kernel of several tensors: allocates its outputs and launches it.

The plan, the compiled kernel and the shapes of the outputs are the same for all tensors with the same description. They
are cached in the device context. This module supports neither autograd nor tensor subclasses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tridal.ops.column_sum import COLUMN_SUM
from tridal.ops.row_reduce import accumulator
from tridal.pytorch import private
from tridal.pytorch.binding import bind_kernel, dtype_name
from tridal.pytorch.call_records import RECORDERS, CallRecord, record
from tridal.pytorch.device_context import DeviceContext
from tridal.pytorch.prepared import backend_computes, contiguous_copy
from tridal.pytorch.validation import check_shapes
from tridal.runtime.row_kernel import RowKernel
from tridal.runtime.row_layout import contiguous_strides
from tridal.runtime.specialization import ADDRESS_BITS

Outputs = tuple[torch.Tensor, ...]


KernelRun = Callable[[Any, Sequence[Any]], Outputs]
"""run(out, inputs) of a kernel for tensors with the same description. `out` may be None."""


def prepare_kernel(
    context: DeviceContext,
    kernel: RowKernel,
    dim: int,
    inputs: Sequence[torch.Tensor],
    out_dtypes: tuple[torch.dtype, ...],
    parameters: tuple[float, ...] = (),
    out: torch.Tensor | None = None,
) -> KernelRun | None:
    """Returns run(out, inputs) of a kernel for tensors like these. Returns None if no kernel computes them.

    The tensors are plain tensors of the context's device. A meta tensor represents a new tensor of that device.

    Args:
        dim: the dim along which rows run, 0 <= dim < rank of the first input.
        inputs: the tensors of `reads`, `added`, `row_reads`, `row_index` and `column_reads`, in this order. The first
            may have any strides. The others are made contiguous. Those with a number per element have the shape of the
            first. Those with a number per row have as many elements as this shape without `dim`. Those with a number
            per column have one dim.
        out_dtypes: the dtypes of `writes`, then of `row_writes`.
        out: receives the first of `writes`. It may be the first input. It is contiguous, or has any strides if the
            kernel writes no other tensor with a number per element, and reads only one.

    Returns:
        A function that returns the tensors of `writes`, `row_writes` and `column_writes`. New ones are contiguous.
        Those of `column_writes` have one dim and the accumulator's dtype.

    Raises:
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
        ShapeError: an input has another shape than its kind requires.
    """
    described = [(t.shape, t.stride(), t.dtype, _alignment(t), t.is_neg()) for t in inputs]
    alignment = 0 if out is None else out.data_ptr() & ADDRESS_BITS
    if alignment and context.settings.batch_invariant:  # the kernel must not depend on the alignment of `out`
        launch = prepare_kernel(context, kernel, dim, inputs, out_dtypes, parameters)
        return None if launch is None else functools.partial(_copied_to_out, launch)
    strides = None if out is None or out.is_contiguous() else out.stride()
    key = (kernel, dim, *described, out_dtypes, parameters, alignment, strides)
    try:
        return context.runs[key]  # type: ignore[no-any-return]
    except KeyError:
        run = context.runs[key] = _prepare(context, kernel, dim, inputs, out_dtypes, parameters, alignment, strides)
        return run


def _copied_to_out(launch: KernelRun, out: torch.Tensor, inputs: Sequence[torch.Tensor]) -> Outputs:
    first, *others = launch(None, inputs)
    return (out.copy_(first), *others)


def _alignment(tensor: torch.Tensor) -> int | None:
    """Returns the bits of the address that decide the alignment, or None if the tensor has no memory."""
    if tensor.is_meta:
        return 0 if tensor.numel() else None
    address = tensor.data_ptr()
    return address & ADDRESS_BITS if address else None


def _prepare(
    context: DeviceContext,
    kernel: RowKernel,
    dim: int,
    inputs: Sequence[torch.Tensor],
    out_dtypes: tuple[torch.dtype, ...],
    parameters: tuple[float, ...],
    alignment: int,
    out_strides: tuple[int, ...] | None,
) -> KernelRun | None:
    """Returns run(out, inputs) for tensors like these and an `out` of this alignment and these strides, or None."""
    if out_strides is not None and (len(kernel.reads), len(kernel.writes), kernel.added) != (1, 1, None):
        return None
    floating = {*out_dtypes, *(tensor.dtype for tensor in inputs if tensor.is_floating_point())}
    if not backend_computes(context, floating) or not all((t.data_ptr() or t.is_meta) and t.numel() for t in inputs):
        return None
    check_shapes(kernel, dim, inputs)
    assert context.backend is not None
    first, rest = inputs[0], inputs[1:]
    per_element, per_row = len(kernel.writes), len(kernel.row_writes)
    wide = accumulator(*floating)
    dtypes = [*out_dtypes, *[wide] * len(kernel.column_writes), *(tensor.dtype for tensor in inputs)]
    # With batch invariance, the alignment of tensors with a number per element must not depend on the batch.
    elements = len(kernel.reads) - 1 + (kernel.added is not None)
    must_align = [context.settings.batch_invariant and index < elements for index in range(len(rest))]
    copied = [
        tensor.is_neg() or not tensor.is_contiguous() or (aligned and bool(_alignment(tensor)))
        for tensor, aligned in zip(rest, must_align, strict=True)
    ]
    addresses = [alignment] + [0] * (len(dtypes) - len(inputs) - 1) + [first.data_ptr() & ADDRESS_BITS]
    addresses += [0 if copy else t.data_ptr() & ADDRESS_BITS for copy, t in zip(copied, rest, strict=True)]
    options: Any = {"parameters": parameters, "out_strides": out_strides}
    bound = None if first.is_neg() else bind_kernel(context, kernel, first, dim, dtypes, addresses, **options)
    copies_first = bound is None
    if bound is None:
        addresses[len(dtypes) - len(inputs)] = 0
        like = torch.empty(first.shape, dtype=first.dtype, device="meta")
        bound = bind_kernel(context, kernel, like, dim, dtypes, addresses, **options)
    if bound is None:
        return None
    launch, plan = bound
    copies = [copies_first, *copied]
    any_copies = any(copies)
    shape, row_shape = first.shape, (*first.shape[:dim], *first.shape[dim + 1 :])
    column_shape = (plan.groups, first.shape[dim])
    shapes = [shape] * per_element + [row_shape] * per_row + [column_shape] * len(kernel.column_writes)
    outputs = [(tuple(s), contiguous_strides(s), d) for s, d in zip(shapes, dtypes, strict=False)]
    add = None
    if kernel.column_writes and plan.groups > 1:
        parts = torch.empty(column_shape, dtype=wide, device="meta")
        add = prepare_kernel(context, COLUMN_SUM, 0, [parts], (wide,))
    columns, sums = per_element + per_row, bool(kernel.column_writes)
    one_device = context.backend.device_count() == 1
    make = (private.allocator(context.device) if one_device else None) or functools.partial(_empty, context.device)
    device, stream, index = context.device, context.backend.stream, context.index
    computed = CallRecord(
        kernel.name, tuple(shape), dtype_name(first.dtype), str(device), context.backend.name, plan.schedule, None
    )

    def run(out: torch.Tensor | None, tensors: Sequence[torch.Tensor]) -> Outputs:
        if any_copies:
            given = zip(copies, tensors, strict=True)
            tensors = [contiguous_copy(tensor) if copy else tensor for copy, tensor in given]
        if out is None:
            written = [make(*output) for output in outputs]
        else:
            written = [out, *(make(*output) for output in outputs[1:])]
        launch(stream(index), *written, *tensors)
        if RECORDERS and kernel is not COLUMN_SUM:  # it belongs to the kernel before it
            record(computed)
        if sums:
            written[columns:] = [add(None, (parts,))[0] if add else parts.sum(0) for parts in written[columns:]]
        return tuple(written)

    return run


def _empty(device: torch.device, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)
