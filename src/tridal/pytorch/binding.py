"""Binds a kernel to tensors: the row layout, the plan, the compiled kernel and its workspace, as one function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tridal.devices import registry
from tridal.devices.types import ALIGNMENT, Backend
from tridal.errors import SettingsError
from tridal.kernels.function_caches import cached_by_functions
from tridal.kernels.op_functions import triton_functions
from tridal.kernels.row_kernel import RowKernel
from tridal.ops import table
from tridal.ops.scale_mask import ScoreModification
from tridal.pytorch.call_records import dtype_name
from tridal.pytorch.device_context import DeviceContext, log
from tridal.pytorch.torch.private import SKIPS_FRAMES
from tridal.runtime import launch
from tridal.runtime.kernel_files import write_source
from tridal.runtime.row_layout import FEW_ROWS, GROUPS, StrideGroups, row_layout
from tridal.runtime.scale_mask import ScaleMask, locate_mask
from tridal.runtime.specialization import ADDRESS_BITS, NO_SCALE_MASK, KernelCall
from tridal.runtime.workspace import with_workspace


def bind_kernel(
    context: DeviceContext,
    kernel: RowKernel,
    source: torch.Tensor,
    dim: int,
    dtypes: Sequence[torch.dtype],
    addresses: Sequence[int],
    parameters: tuple[float | None, ...] = (),
    scale_mask: ScaleMask = NO_SCALE_MASK,
    in_order: bool = False,
    groups: StrideGroups | None = None,
    block_dims: int = 0,
    block_stride: int = 0,
) -> launch.Launch | None:
    """Returns a kernel's launch(stream, rows, *tensors[, mask]), its plan, and the range of rows that they serve.

    `source` is the first tensor that the kernel reads. The launch enters the device guard and provides the workspace.

    `dtypes` and `addresses` are those of the tensors of `RowKernel.pointers`, in order. `groups` are the strides of
    those with a number per element, results first. By default, these and all other tensors are contiguous. `in_order`
    keeps the order of the rows. `block_dims` and `block_stride` are those of the tensors in `RowKernel.per_block`.
    Returns None if the kernel cannot read `source`.
    """
    assert context.backend is not None
    backend: Backend = context.backend
    index, invariant = context.index, context.settings.batch_invariant
    few_rows = 0 if invariant or in_order or kernel.per_block else FEW_ROWS
    others = () if groups is None else groups.others
    of_rows = kernel.row_reads or kernel.row_writes or kernel.row_index or kernel.whole_rows
    splits = few_rows > 0 and not of_rows
    separate = next((d for d in range(block_dims, dim) if source.shape[d] > 1), None) if kernel.per_block else None
    layout = row_layout(source.shape, source.stride(), dim, few_rows, others, splits, separate)
    if kernel.per_block and layout is not None and layout.outer != math.prod(source.shape[:block_dims]):
        return None
    if layout is None or (kernel.row_index is not None and layout.cols >= 2**31):  # an index has 32 bits in a kernel
        return None
    merges = scale_mask == NO_SCALE_MASK and not invariant and merges_rows(kernel, layout.cols)
    merged = layout.merged(ALIGNMENT) if merges else layout
    if groups is not None:
        pointers = [pointer for pointer in kernel.element_pointers if pointer != f"{kernel.reads[0]}_ptr"]
        pairs = zip(pointers, (GROUPS[index] for index in groups.of_tensors), strict=True)
        kernel = kernel.with_strides(tuple(p for p in pairs if p[1] != "out"), layout.minor_blocks is not None)
    names = tuple(map(dtype_name, dtypes))
    kernel_call = KernelCall(kernel, merged, names, tuple(addresses), parameters, scale_mask, block_stride=block_stride)
    if layout.jumps and layout.jumps[0] % kernel_call.problem.vector:  # the heads of rows are computed without jumps
        return None
    if invariant:
        # Results must not depend on strides or alignment. None makes the caller bind a contiguous copy.
        if not source.is_contiguous() or source.data_ptr() & ADDRESS_BITS:
            return None
        kernel_call = replace(kernel_call, invariant=True)
    options = registry.options(backend, context.settings)
    properties = context.backend.on_device(index)
    overrides = table.kernel_configs(context.settings)
    with context.backend.entered(index):
        found = launch.prepare(kernel_call, backend, properties, options, overrides)
    log.debug("%s: %s on %s:%d: %s", kernel.name, kernel_call.problem, backend.name, index, found.plan)
    if (folder := context.settings.dump) is not None:
        try:
            write_source(folder, kernel_call.specialize(found.plan.config), properties.arch)
        except OSError as error:
            raise SettingsError(f"{context.settings.sources['dump']}: dump: {error}") from error
    if merged is not layout:
        found = _of_merged_rows(found)
    if found.workspace_slots(kernel_call.layout.rows):
        launch_on = with_workspace(found.launch, found.workspace_slots, context.device)
        found = found._replace(launch=launch_on, by_address=None)
    if backend.interpreted and not SKIPS_FRAMES:  # torch.compile fails if it traces the interpreter
        found = found._replace(launch=torch.compiler.disable(found.launch))  # type: ignore[no-untyped-call]
    if backend.device_count() == 1:
        return found

    guard = backend.guard  # looked up once, because every call uses it

    def guarded(launch_on: Callable[..., None]) -> Callable[..., None]:
        def launch_guarded(*arguments: Any) -> None:
            with guard(index):
                launch_on(*arguments)

        return launch_guarded

    return _with_launches(found, guarded)


def _with_launches(found: launch.Launch, change: Callable[[Callable[..., None]], Callable[..., None]]) -> launch.Launch:
    """Applies change(launch) to both launches, the one by tensors and the one by addresses."""
    by_address = None if found.by_address is None else change(found.by_address)
    return found._replace(launch=change(found.launch), by_address=by_address)


@cached_by_functions
def computes_elements_alone(kernel: RowKernel) -> bool:
    """Returns whether each element of the outputs depends on the same element of the inputs and on nothing else.

    Raises:
        PluginError: see `triton_functions`.
    """
    of_rows = kernel.statistics or kernel.row_reads or kernel.row_index or kernel.row_writes or kernel.whole_rows
    if of_rows or kernel.column_reads or kernel.column_writes:
        return False
    declared = {name for function in triton_functions(kernel) for name in function.arg_names}
    return declared.isdisjoint({"column", "count"})


def merges_rows(kernel: RowKernel, cols: int) -> bool:
    """Returns whether rows of this length are merged with their neighbors, if these are `ALIGNMENT` contiguous rows.

    Then the heads of rows need not be aligned. Only elements that are computed alone may be in the row of another one.
    """
    return cols % ALIGNMENT > 0 and computes_elements_alone(kernel)


def _of_merged_rows(found: launch.Launch) -> launch.Launch:
    """Wraps a launch of merged rows so that it takes the number of rows before they were merged."""
    first, last = found.row_range

    def merged(launch_merged: Callable[..., None]) -> Callable[..., None]:
        def launch_on(stream: int, rows: int, *tensors: Any) -> None:
            launch_merged(stream, rows // ALIGNMENT, *tensors)

        return launch_on

    return _with_launches(found, merged)._replace(row_range=(first * ALIGNMENT, last * ALIGNMENT))


def scale_mask_of(scores: torch.Tensor, dim: int, modification: ScoreModification) -> ScaleMask | None:
    """Returns the `ScaleMask` with which a kernel applies the modification to these scores; None if no kernel can."""
    mask, scale = modification.mask, None if modification.scale == 1 else float(modification.scale)
    found = ScaleMask(scale, bool(modification.causal), modification.zero_masked_rows)
    if mask is not None:
        name = "uint8" if mask.dtype is torch.bool else dtype_name(mask.dtype)
        found = replace(found, mask=name, address=mask.data_ptr() & ADDRESS_BITS)
    elif not modification.causal:
        return found
    strides = (0,) * scores.dim() if mask is None else mask.expand(scores.shape).stride()
    return locate_mask(found, scores.shape, scores.stride(), strides, dim)
