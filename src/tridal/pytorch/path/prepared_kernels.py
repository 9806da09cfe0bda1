"""The launch engine: allocates the outputs of a kernel and launches it, for all tensors with the same description.

The plan, the compiled kernel and the shapes of the outputs are the same for such tensors. They are cached in the device
context. This module supports neither autograd nor tensor subclasses.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tridal.devices.types import ALIGNMENT
from tridal.ops.column_sum import COLUMN_SUM
from tridal.ops.scale_mask import ScoreModification
from tridal.pytorch.binding import bind_kernel, merges_rows, scale_mask_of
from tridal.pytorch.device_context import DeviceContext
from tridal.pytorch.path.checks import check_shapes
from tridal.pytorch.path.run_source import BoundLaunch, Launch, Prepared, make_run
from tridal.pytorch.path.support import backend_computes, has_memory
from tridal.runtime.launch import PreparedLaunch
from tridal.runtime.row_kernel import RowKernel
from tridal.runtime.row_layout import group_strides
from tridal.runtime.specialization import ADDRESS_BITS, NO_SCALE_MASK

Tensor = torch.Tensor


@functools.lru_cache(maxsize=1024)
def variant(
    kernel: RowKernel, absent: tuple[str, ...], outputs: tuple[str, ...], constants: tuple[tuple[str, Any], ...] = ()
) -> RowKernel:
    """Returns the kernel without absent inputs and outputs. Sums of columns alone need no statistics."""
    others = tuple((name, value) for name, value in kernel.constants if name not in dict(constants))
    kernel = replace(kernel, constants=others).bind(**dict(constants), **dict.fromkeys(absent)).writing(*outputs)
    only_sums = kernel.neutral_padding and not (kernel.writes or kernel.row_writes)
    return replace(kernel, statistics=()) if only_sums else kernel


def prepare_kernel(
    context: DeviceContext,
    launch: Launch,
    inputs: Sequence[Tensor],
    out: Sequence[Tensor] = (),
    modification: ScoreModification | None = None,
) -> Prepared | None:
    """Returns a kernel's run(*arguments) for tensors like these. Returns None if no kernel computes them.

    The tensors are plain tensors of the context's device. A meta tensor represents a new tensor of that device.

    Args:
        inputs: the tensors of `reads`, `added`, `row_reads`, `row_index` and `column_reads`, in this order, and the
            mask of the modification. Those with a number per element have the shape of the first. They are read with
            their strides, if these and those of the outputs are of few kinds, see `group_strides`. The others are made
            contiguous, except the mask. Those with a number per row have as many elements as this shape without `dim`.
            Those with a number per column have one dim.
        out: tensors that receive the first of `writes`, of the first input's shape. It may be one of them.

    Returns:
        The function returns the tensors of `writes`, `row_writes` and `column_writes`. New ones are contiguous. Those
        of `column_writes` have one dim and the accumulator's dtype. It gets the tensors of `out` before the inputs.

    Raises:
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
        ShapeError: an input, or a tensor of `out`, has another shape than its kind requires.
    """
    if context.settings.batch_invariant and not all(t.is_contiguous() and not _alignment(t) for t in out):
        return _prepare_copied(context, launch, inputs, len(out))  # the kernel must not depend on where `out` is
    scores = None if modification is None else modification._replace(mask=None)
    any_rows = None
    if not out and (modification is None or (modification.mask is None and not modification.causal)):
        any_rows = described_without_rows(launch.kernel, launch.dim, inputs)
    size = inputs[0].numel() // max(inputs[0].shape[launch.dim], 1) if inputs[0].dim() else 1
    for first, last, found in context.runs.get((launch, scores, any_rows), ()) if any_rows is not None else ():
        if first <= size <= last:
            return found  # type: ignore[no-any-return]
    key = (launch, *map(described, (*out, *inputs)), len(out), scores)
    try:
        return context.runs[key]  # type: ignore[no-any-return]
    except KeyError:
        pass
    prepared = _prepare(context, launch, inputs, out, modification, any_rows is not None)
    if prepared is None or prepared.served is None:
        context.runs[key] = prepared
    else:
        known = context.runs.get((launch, scores, any_rows), ())
        context.runs[launch, scores, any_rows] = ((*prepared.served, prepared), *known)
    return prepared


def _prepare_copied(context: DeviceContext, launch: Launch, inputs: Sequence[Tensor], count: int) -> Prepared | None:
    """Returns a run(*out, *inputs) that copies new outputs to `out`, which are `count` tensors."""
    found = prepare_kernel(context, launch, inputs)

    def run(*arguments: Any) -> tuple[Any, ...]:
        assert found is not None
        results = found.run(*arguments[count:])
        return *map(Tensor.copy_, arguments[:count], results), *results[count:]

    return None if found is None else Prepared(run)


def described_without_rows(kernel: RowKernel, dim: int, inputs: Sequence[Tensor]) -> tuple[Any, ...] | None:
    """Returns the description of inputs that may have any number of rows, or None if they cannot.

    They are contiguous, or one number that is expanded. Rows run along the last dim, and there are dims before it.
    """
    first = inputs[0]
    if first.dim() == 1:
        return None
    cols, elements = first.shape[dim], len(kernel.reads) + (kernel.added is not None)
    of_rows = elements + len(kernel.row_reads) + (kernel.row_index is not None)
    if dim != first.dim() - 1 or not cols:
        return None
    rows, described = first.numel() // cols, list[Any]([dim, cols, _divisible(kernel, dim, first)])
    for index, tensor in enumerate(inputs):
        contiguous = tensor.is_contiguous()
        if not (contiguous or not any(tensor.stride())) or tensor.is_neg():
            return None
        of_elements = index < elements and tensor.shape == first.shape
        if not of_elements and (tensor.numel() != rows if elements <= index < of_rows else tensor.shape != (cols,)):
            return None
        described += [tensor.dtype, _alignment(tensor), contiguous]
    return tuple(described)


def described(tensor: Tensor) -> tuple[Any, ...]:
    """Returns what decides how a kernel reads a tensor: the part of the key of a prepared launch."""
    return tensor.shape, tensor.stride(), tensor.dtype, _alignment(tensor), tensor.is_neg(), tensor.device


def _alignment(tensor: Tensor) -> int | None:
    """Returns the bits of the address that decide the alignment, or None if the tensor has no memory."""
    if tensor.is_meta:
        return tensor.data_ptr() & ADDRESS_BITS if tensor.numel() else None  # that of a view: from its tensor
    address = tensor.data_ptr()
    return address & ADDRESS_BITS if address else None


def _prepare(
    context: DeviceContext,
    launch: Launch,
    inputs: Sequence[Tensor],
    out: Sequence[Tensor],
    modification: ScoreModification | None,
    any_rows: bool,
) -> Prepared | None:
    """Returns `run` for tensors like these, or None. `any_rows` is true if it may serve other numbers of rows."""
    kernel = launch.kernel
    mask = None if modification is None else modification.mask
    read = inputs if mask is None else inputs[:-1]
    floating = {dtype for dtype in (*launch.out_dtypes, *(t.dtype for t in read)) if dtype.is_floating_point}
    if not backend_computes(context, {*floating, *(t.dtype for t in inputs[len(read) :] if t.is_floating_point())}):
        return None
    if not all(map(has_memory, (*out, *inputs))):
        return None
    if mask is not None and (mask.device != context.device or mask.is_neg()):
        return None
    check_shapes(kernel, launch.dim, read, out)
    wide, given, elements = launch.sum_dtype(read), len(out), len(kernel.writes)
    written = list(launch.out_dtypes)
    if wide is torch.float64:
        # Triton's interpreter stores wrong values when it casts float64 to bfloat16, so torch casts them.
        if any(tensor.dtype.itemsize == 2 for tensor in out):
            return _prepare_copied(context, launch, inputs, given)
        written[:elements] = [wide if dtype.itemsize == 2 else dtype for dtype in written[:elements]]
    written += [wide] * len(kernel.column_writes)
    found = _bind(context, launch, read, out, written, modification)
    if found is None:
        return None
    first, last = found.rows if any_rows else (0, 0)
    served = (first, last) if first < last else None
    add = _column_sums(context, inputs[0].shape[launch.dim], wide) if kernel.column_writes else None
    run = make_run(context, launch, inputs, written, found, given, served, add)
    divisible = None if served is None else _divisible(kernel, launch.dim, inputs[0])
    return Prepared(run, served, divisible)


def _divisible(kernel: RowKernel, dim: int, first: Tensor) -> bool | None:
    """Returns whether the number of rows is a multiple of `ALIGNMENT`, or None if this does not matter."""
    cols = first.shape[dim]
    return first.numel() // cols % ALIGNMENT == 0 if merges_rows(kernel, cols) else None


def _bind(
    context: DeviceContext, launch: Launch, inputs: Sequence[Tensor], out: Sequence[Tensor],
    written: Sequence[torch.dtype], modification: ScoreModification | None,
) -> BoundLaunch | None:  # fmt: skip
    """Binds the kernel to the inputs, or else to copies of some. Returns None if it can read neither."""
    assert context.backend is not None
    kernel, first, invariant = launch.kernel, inputs[0], context.settings.batch_invariant
    elements, new = launch.elements - 1, len(kernel.writes) - len(out)
    casts = [t.dtype if i >= elements else _read_dtype(t, launch.cast) for i, t in enumerate(inputs[1:])]
    # With batch invariance, strides and alignment of tensors with a number per element must not depend on the batch.
    readable = [
        not tensor.is_neg() and tensor.dtype is dtype and (not invariant or index >= elements or not _alignment(tensor))
        for index, (tensor, dtype) in enumerate(zip(inputs[1:], casts, strict=True))
    ]
    results = [*(tensor.stride() for tensor in out), *[None] * new]
    addresses = [*(tensor.data_ptr() & ADDRESS_BITS for tensor in out), *[0] * (len(written) - len(out))]
    in_order = modification is not None and (modification.mask is not None or modification.causal)

    def bind(source: Tensor, strided: bool) -> tuple[PreparedLaunch, list[bool]] | None:
        """Binds the kernel to tensors whose first one is `source`. Unless `strided`, all others are contiguous."""
        scale_mask = NO_SCALE_MASK
        if modification is not None:
            located = scale_mask_of(source, launch.dim, modification)
            if located is None or "scale_mask" not in context.backend.features:  # type: ignore[union-attr]
                return None
            scale_mask = located
        reads = [
            tensor.stride() if may_read and (tensor.is_contiguous() or (strided and index < elements)) else None
            for index, (tensor, may_read) in enumerate(zip(inputs[1:], readable, strict=True))
        ]
        groups = group_strides(source.shape, source.stride(), results, reads[:elements])
        if groups is None:
            return None
        regrouped = [*groups.copied[len(results) :], *[False] * (len(reads) - elements)]
        copies = [strides is None or other for strides, other in zip(reads, regrouped, strict=True)]
        dtypes = [*written, source.dtype, *casts]
        rest = [0 if copy else t.data_ptr() & ADDRESS_BITS for copy, t in zip(copies, inputs[1:], strict=True)]
        starts = [*addresses, source.data_ptr() & ADDRESS_BITS, *rest]
        bound = bind_kernel(
            context, kernel, source, launch.dim, dtypes, starts, launch.parameters, scale_mask, in_order, groups
        )  # fmt: skip
        return None if bound is None else (bound, copies)

    dtype = launch.cast or first.dtype
    exact = first.is_floating_point() and not first.is_neg() and _read_dtype(first, dtype) is first.dtype
    copy_dtype = first.dtype if exact and invariant else dtype  # a copy must have the kernel of the tensor itself
    copy = torch.empty(first.shape, dtype=copy_dtype, device="meta")
    sources = [(first, dtype), (copy, copy_dtype)] if exact else [(copy, copy_dtype)]
    for (source, dtype), strided in itertools.product(sources, (False,) if invariant or in_order else (True, False)):
        if (found := bind(source, strided)) is not None:
            bound, copies = found
            pairs = zip((dtype, *casts), (source is copy, *copies), strict=True)
            copied = [dtype if copied else None for dtype, copied in pairs]
            return BoundLaunch(bound.launch, bound.plan.schedule, bound.groups, bound.row_range, copied)
    return None


def _read_dtype(tensor: Tensor, cast: torch.dtype | None) -> torch.dtype:
    """Returns the dtype in which a kernel reads an input: its own if the kernel can cast it on load, else `cast`."""
    exact = cast is None or (tensor.is_floating_point() and torch.promote_types(tensor.dtype, cast) == cast)
    return cast if cast is not None and not exact else tensor.dtype


def _column_sums(context: DeviceContext, columns: int, wide: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Returns a function that adds the partial sums of columns."""
    launch = Launch(COLUMN_SUM, 0, (wide,), recorded=False)
    by_groups: dict[int, Prepared | None] = {1: None}

    def add(parts: Tensor) -> Tensor:
        groups = parts.shape[0]
        if groups not in by_groups:
            like = torch.empty((groups, columns), dtype=wide, device="meta")
            by_groups[groups] = prepare_kernel(context, launch, [like])
        found = by_groups[groups]
        return parts.sum(0) if found is None else found.run(parts)[0]

    return add
