"""Makes the call of a kernel, which allocates the outputs and launches the kernel.

This module supports neither autograd nor tensor subclasses.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch

from tridal.kernels.row_kernel import RowKernel, Statistic
from tridal.ops.op import NoKernel
from tridal.ops.scale_mask import ScoreModification
from tridal.pytorch.binding import bind_kernel, scale_mask_of
from tridal.pytorch.device_context import DeviceContext, backend_computes, has_memory
from tridal.pytorch.path.call import CALLS, Call, store
from tridal.pytorch.path.checks import check_shapes
from tridal.pytorch.path.run_source import KernelUse, make_run
from tridal.runtime.launch import Launch
from tridal.runtime.row_layout import coalesce_dims, group_strides
from tridal.runtime.specialization import ADDRESS_BITS, NO_SCALE_MASK

Tensor = torch.Tensor
COLUMN_SUM = RowKernel(
    name="column_sum", module="tridal.kernels.numerics", reads=("part",), writes=(), row_writes=("total",),
    statistics=(Statistic("total", "sum", term="part"),), neutral_padding=True, live_tiles=1,
)  # fmt: skip
"""The kernel that adds the partial sums of columns, see `RowKernel.column_writes`. It reads them along dim 0."""


@functools.lru_cache(maxsize=1024)
def variant(
    kernel: RowKernel, absent: tuple[str, ...], outputs: tuple[str, ...], constants: tuple[tuple[str, Any], ...] = ()
) -> RowKernel:
    """Returns the kernel without absent inputs and outputs. Sums of columns alone need no statistics."""
    others = tuple((name, value) for name, value in kernel.constants if name not in dict(constants))
    kernel = replace(kernel, constants=others).bind(**dict(constants), **dict.fromkeys(absent)).writing(*outputs)
    only_sums = kernel.neutral_padding and not (kernel.writes or kernel.row_writes or kernel.top_writes)
    return replace(kernel, statistics=()) if only_sums else kernel


def with_numbers(kernel: RowKernel, inputs: Sequence[Tensor], dim: int) -> RowKernel:
    """Returns the kernel for inputs of `row_reads` that may have one element, which is a number for all rows."""
    sizes = [*inputs[0].shape]
    del sizes[dim]
    if math.prod(sizes) == 1:
        return kernel
    pairs = zip(kernel.inputs, inputs, strict=True)
    return kernel.with_numbers(*(name for name, t in pairs if name in kernel.row_reads and t.numel() == 1))


def launch_kernel(context: DeviceContext, use: KernelUse, count: int, *tensors: Tensor) -> tuple[Any, ...]:
    """Launches a kernel. Returns its outputs. The call is stored with the sizes and strides of all tensors as its key.

    The first `count` tensors receive outputs, and the others are the inputs, see `kernel_call`.

    Raises:
        NoKernel: no kernel computes the tensors.
        ShapeError: see `check_shapes`.
    """
    described = [(t.shape, t.stride(), t.dtype, t.data_ptr() & ADDRESS_BITS, t.is_neg()) for t in tensors]
    key = (None, use, count, context.settings, context.device, *described)
    found = CALLS.get(key)
    if found is None:
        check_shapes(use.kernel, use.dim, tensors[count:], tensors[:count])
        found = kernel_call(context, use, tensors[count:], tensors[:count]) or Call(_no_kernel)
        if all(map(has_memory, tensors)):
            store(key, found, context)
    return found.run(*tensors)  # type: ignore[no-any-return]


def _no_kernel(*_: Tensor) -> NoReturn:
    raise NoKernel("no kernel supports the dtypes or the strides")


def kernel_call(
    context: DeviceContext, use: KernelUse, inputs: Sequence[Tensor], out: Sequence[Tensor] = (),
    modification: ScoreModification | None = None, most_rows: int | None = None, bare: bool = False,
) -> Call | None:  # fmt: skip
    """Returns the call of a kernel: run(*out, *inputs) for tensors like these. Returns None if no kernel computes them.

    The tensors are plain tensors of the context's device. A meta tensor represents a new tensor of that device.

    Args:
        inputs: the tensors of `reads`, `added`, `row_reads`, `row_index`, `top_reads`, `top_index` and `column_reads`,
            in this order, and the mask of the modification. Those with a number per element have the shape of the
            first. They are read with their strides, if these and those of the outputs are of few kinds, see
            `group_strides`. The others are made contiguous, except the mask. Those with a number per row have as many
            elements as this shape without `dim`. Those of `top_reads` and `top_index` have these numbers in the last
            dim. Those with a number per column have one dim. Those with a number per column and block have the rank of
            the first one, see `KernelUse.block_dims`. Those of `RowKernel.for_all_rows` have one element.
        out: tensors that receive the first of `writes`, of the first input's shape. It may be one of them.
        most_rows: the largest number of rows of inputs with the same key, whose rows run along the last dim; None if
            the inputs have one shape.
        bare: whether `run` returns its first result instead of a tuple.

    The results are the tensors of `writes`, `row_writes`, `top_writes` and `column_writes`. New ones are contiguous.
    Those of `column_writes` have one dim, and the accumulator's dtype or that of `KernelUse.sum_dtypes`. Sums over the
    rows of blocks have as many numbers as blocks and columns.

    Raises:
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
    """
    if context.settings.batch_invariant and not all(t.is_contiguous() and not _alignment(t) for t in out):
        return _copied_call(context, use, inputs, len(out))  # the kernel must not depend on where `out` is
    kernel = use.kernel
    mask = None if modification is None else modification.mask
    read = inputs if mask is None else inputs[:-1]
    floating = {dtype for dtype in (*use.out_dtypes, *(t.dtype for t in read)) if dtype.is_floating_point}
    if not backend_computes(context, {*floating, *(t.dtype for t in inputs[len(read) :] if t.is_floating_point())}):
        return None
    if not all(map(has_memory, (*out, *inputs))):
        return None
    if mask is not None and (mask.device != context.device or mask.is_neg()):
        return None
    wide, given, elements = use.sum_dtype(read), len(out), len(kernel.writes)
    written = list(use.out_dtypes)
    if wide is torch.float64:
        # Triton's interpreter stores wrong values when it casts float64 to bfloat16, so torch casts them.
        if any(tensor.dtype.itemsize == 2 for tensor in out):
            return _copied_call(context, use, inputs, given)
        written[:elements] = [wide if dtype.itemsize == 2 else dtype for dtype in written[:elements]]
    written += [wide] * len(kernel.column_writes)
    found = _bind(context, use, read, out, written, modification)
    if found is None:
        return None
    bound, copies = found
    any_rows = most_rows is not None and not out
    blocks, cols = math.prod(inputs[0].shape[: use.block_dims]), inputs[0].shape[use.dim]
    sums = functools.cache(functools.partial(_column_sums, context, cols, wide))
    add = [
        sums(dtype if wide is torch.float32 and dtype is not None else wide, blocks if name in kernel.per_block else 0)
        for name, dtype in itertools.zip_longest(kernel.column_writes, use.sum_dtypes)
    ]
    run, by_address = make_run(context, use, inputs, written, bound, copies, given, any_rows, add, bare)
    # whether the launch serves all numbers of rows with the same key, or of columns of one row
    serves = bound.column_range is not None if inputs[0].dim() == 1 else bound.row_range[1] >= (most_rows or 0)
    return Call(run, any_rows and serves, by_address=by_address)


def _copied_call(context: DeviceContext, use: KernelUse, inputs: Sequence[Tensor], count: int) -> Call | None:
    """Returns a call run(*out, *inputs) that copies new outputs to `out`, which are `count` tensors."""
    found = kernel_call(context, use, inputs)

    def run(*arguments: Any) -> tuple[Any, ...]:
        assert found is not None
        results = found.run(*arguments[count:])
        return *map(Tensor.copy_, arguments[:count], results), *results[count:]

    return None if found is None else Call(run)


def _alignment(tensor: Tensor) -> int | None:
    """Returns the bits of the address that decide the alignment, or None if the tensor has no memory."""
    if tensor.is_meta:  # a new tensor has the address 0, and a view of it its offset
        return tensor.data_ptr() & ADDRESS_BITS if tensor.numel() else None
    address = tensor.data_ptr()
    return address & ADDRESS_BITS if address else None


def _bind(
    context: DeviceContext, use: KernelUse, inputs: Sequence[Tensor], out: Sequence[Tensor],
    written: Sequence[torch.dtype], modification: ScoreModification | None,
) -> tuple[Launch, list[torch.dtype | None]] | None:  # fmt: skip
    """Binds the kernel to the inputs, or else to copies of some. Returns None if it can read neither.

    The second result has, for each input, the dtype of the contiguous copy that is read, or None if it reads the input.
    """
    assert context.backend is not None
    kernel, first, invariant = use.kernel, inputs[0], context.settings.batch_invariant
    elements, new = use.elements - 1, len(kernel.writes) - len(out)
    casts = [t.dtype if i >= elements else _read_dtype(t, use.cast) for i, t in enumerate(inputs[1:])]
    # With batch invariance, strides and alignment of tensors with a number per element must not depend on the batch.
    readable = [
        not tensor.is_neg() and tensor.dtype is dtype and (not invariant or index >= elements or not _alignment(tensor))
        for index, (tensor, dtype) in enumerate(zip(inputs[1:], casts, strict=True))
    ]
    others = list(zip(kernel.inputs[1:], inputs[1:], readable, strict=True))
    of_blocks = {
        name: _block_stride(tensor, use.block_dims) if may_read else None
        for name, tensor, may_read in others
        if name in kernel.per_block
    }
    # All are read with one stride between blocks, that of copies if theirs differ.
    stride = next(iter(of_blocks.values())) if len({*of_blocks.values()}) == 1 else None
    stride = first.shape[use.dim] if stride is None else stride
    results = [*(tensor.stride() for tensor in out), *[None] * new]
    addresses = [*(tensor.data_ptr() & ADDRESS_BITS for tensor in out), *[0] * (len(written) - len(out))]
    in_order = modification is not None and (modification.mask is not None or modification.causal)

    def bind(source: Tensor, strided: bool) -> tuple[Launch, list[bool]] | None:
        """Binds the kernel to tensors whose first one is `source`. Unless `strided`, all others are contiguous."""
        scale_mask = NO_SCALE_MASK
        if modification is not None:
            located = scale_mask_of(source, use.dim, modification)
            if located is None or "scale_mask" not in context.backend.features:  # type: ignore[union-attr]
                return None
            scale_mask = located
        reads = [
            tensor.stride()
            if may_read and (tensor.is_contiguous() or (strided and index < elements) or of_blocks.get(name) == stride)
            else None
            for index, (name, tensor, may_read) in enumerate(others)
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
            context, kernel, source, use.dim, dtypes, starts, use.parameters, scale_mask, in_order, groups,
            use.block_dims, stride if kernel.per_block else 0,
        )  # fmt: skip
        return None if bound is None else (bound, copies)

    dtype = use.cast or first.dtype
    exact = first.is_floating_point() and not first.is_neg() and _read_dtype(first, dtype) is first.dtype
    copy_dtype = first.dtype if exact and invariant else dtype  # a copy must have the kernel of the tensor itself
    copy = torch.empty(first.shape, dtype=copy_dtype, device="meta")
    sources = [(first, dtype), (copy, copy_dtype)] if exact else [(copy, copy_dtype)]
    for (source, dtype), strided in itertools.product(sources, (False,) if invariant or in_order else (True, False)):
        if (found := bind(source, strided)) is not None:
            bound, copies = found
            pairs = zip((dtype, *casts), (source is copy, *copies), strict=True)
            return bound, [dtype if copied else None for dtype, copied in pairs]
    return None


def _block_stride(tensor: Tensor, dims: int) -> int | None:
    """Returns the stride between the blocks of a tensor whose first dims are those of blocks.

    Returns None if blocks have several strides, or if the numbers of a block are not neighbors.
    """
    strides = coalesce_dims(tensor.shape[:dims], tensor.stride()[:dims], without=-1)
    if len(strides) > 1 or (tensor.stride(-1) != 1 and tensor.shape[-1] > 1):
        return None
    return strides[0][1] if strides else tensor.shape[-1]


def _read_dtype(tensor: Tensor, cast: torch.dtype | None) -> torch.dtype:
    """Returns the dtype in which a kernel reads an input: its own if the kernel can cast it on load, else `cast`."""
    exact = cast is None or (tensor.is_floating_point() and torch.promote_types(tensor.dtype, cast) == cast)
    return cast if cast is not None and not exact else tensor.dtype


def _column_sums(
    context: DeviceContext, columns: int, wide: torch.dtype, dtype: torch.dtype, blocks: int
) -> Callable[[Tensor], Tensor]:
    """Returns a function that adds the partial sums of columns, or those of each block if there are `blocks`.

    The kernel rounds the sums to `dtype`. torch adds them if there is one group, or no kernel. The sums of blocks with
    a group each are complete. Both have the dtype of the partial sums, `wide`.
    """
    shape = (blocks,) * (blocks > 0)
    use = KernelUse(COLUMN_SUM, len(shape), (dtype,), recorded=False)
    by_groups: dict[int, Call | None] = {1: None}

    def add(parts: Tensor) -> Tensor:
        groups = parts.shape[0] // max(1, blocks)
        if blocks and groups == 1:
            return parts
        if groups not in by_groups:
            like = torch.empty((*shape, groups, columns), dtype=wide, device="meta")
            by_groups[groups] = kernel_call(context, use, [like])
        found = by_groups[groups]
        parts = parts.view(*shape, groups, columns)
        return parts.sum(use.dim) if found is None else found.run(parts)[0]

    return add
