"""Binds a kernel to tensors: the row layout, the plan, the compiled kernel and its workspace, as one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tridal.devices import registry
from tridal.devices.types import Backend, LaunchPlan
from tridal.ops.scale_mask import ScoreModification
from tridal.pytorch.device_context import DeviceContext, log
from tridal.pytorch.op_call import OpCall
from tridal.pytorch.private import SKIPS_FRAMES
from tridal.runtime import batch_invariance, launch
from tridal.runtime.row_kernel import RowKernel
from tridal.runtime.row_layout import FEW_ROWS, row_layout
from tridal.runtime.scale_mask import ScaleMask, locate_mask
from tridal.runtime.specialization import ADDRESS_BITS, NO_SCALE_MASK, KernelCall
from tridal.runtime.workspace import with_workspace

registry.on_change(batch_invariance.invariant.cache_clear)


def bind(
    context: DeviceContext, call: OpCall, source: torch.Tensor, dtype: torch.dtype, saved: torch.Tensor | None = None
) -> tuple[Callable[..., None], LaunchPlan] | None:
    """Returns launch(stream, out, source[, saved or mask]) and its plan.

    Returns None if no kernel can read `source` or apply the mask.

    `launch` accepts all tensors with the shapes, strides, dtypes and alignment of the given ones. `out` is aligned, has
    the dtype `dtype`, and may be `source`. `out` and `saved` are contiguous and have the shape of `source`. No dim of
    `source` has size zero. `call.dim` is not negative.
    """
    dim, modification, mask = call.dim, call.modification, call.mask
    assert context.backend is not None
    scale_mask = NO_SCALE_MASK
    if modification is not None:
        in_memory = mask is None or (mask.device == context.device and not mask.is_neg() and mask.data_ptr())
        found = scale_mask_of(source, dim, modification)
        if found is None or not in_memory or "scale_mask" not in context.backend.features:
            return None
        scale_mask = found
    # A mask and causal masking depend on the row index, so the layout must keep the order of the rows.
    in_order = mask is not None or scale_mask.causal
    read = [source] if saved is None else [source, saved]
    dtypes = [dtype, *(tensor.dtype for tensor in read)]
    addresses = [0, *(tensor.data_ptr() & ADDRESS_BITS for tensor in read)]
    return bind_kernel(context, call.kernel, source, dim, dtypes, addresses, call.parameters, scale_mask, in_order)


def bind_kernel(
    context: DeviceContext, kernel: RowKernel, source: torch.Tensor, dim: int, *arguments: Any, **options: Any
) -> tuple[Callable[..., None], LaunchPlan] | None:
    """Binds as `bind_rows` does, for the rows of `source`. Returns launch(stream, *tensors[, mask]) and the plan."""
    bound = bind_rows(context, kernel, source, dim, *arguments, **options)
    if bound is None:
        return None
    launch_on, rows = bound.launch, source.numel() // source.shape[dim]

    def launch_rows(stream: int, *tensors: torch.Tensor) -> None:
        launch_on(stream, rows, *tensors)

    return launch_rows, bound.plan


def bind_rows(
    context: DeviceContext,
    kernel: RowKernel,
    source: torch.Tensor,
    dim: int,
    dtypes: Sequence[torch.dtype],
    addresses: Sequence[int],
    parameters: tuple[float | None, ...] = (),
    scale_mask: ScaleMask = NO_SCALE_MASK,
    in_order: bool = False,
    out_strides: Sequence[int] | None = None,
) -> launch.PreparedLaunch | None:
    """Returns a kernel's launch(stream, rows, *tensors[, mask]), its plan, and the range of rows that they serve.

    `source` is the first tensor that the kernel reads. The launch enters the device guard and provides the workspace.

    `dtypes` and `addresses` are those of the tensors of `RowKernel.pointers`, in order. All tensors except `source` are
    contiguous, or, if they have a number per element, have `out_strides`. `in_order` keeps the order of the rows.
    Returns None if the kernel cannot read `source`.
    """
    assert context.backend is not None
    backend: Backend = context.backend
    index, invariant = context.index, context.settings.batch_invariant
    few_rows = 0 if invariant or in_order else FEW_ROWS
    layout = row_layout(source.shape, source.stride(), dim, few_rows, out_strides)
    if layout is None or (kernel.row_index is not None and layout.cols >= 2**31):  # an index has 32 bits in a kernel
        return None
    kernel_call = KernelCall(kernel, layout, tuple(map(dtype_name, dtypes)), tuple(addresses), parameters, scale_mask)
    if invariant:
        # Results must not depend on strides or alignment. None makes the caller bind a contiguous copy.
        if not source.is_contiguous() or source.data_ptr() & ADDRESS_BITS or out_strides is not None:
            return None
        backend, kernel_call = batch_invariance.made_invariant(backend, kernel_call)
    options = registry.options(backend, context.settings)
    properties = context.backend.on_device(index)
    with context.backend.entered(index):
        prepared = launch.prepare(kernel_call, backend, properties, options)
    log.debug("%s: %s on %s:%d: %s", kernel.name, kernel_call.problem, backend.name, index, prepared.plan)
    launch_on = prepared.launch
    if prepared.workspace_slots(kernel_call.problem.rows):
        launch_on = with_workspace(launch_on, prepared.workspace_slots, context.device)
    if backend.interpreted and not SKIPS_FRAMES:  # torch.compile fails if it traces the interpreter
        launch_on = torch.compiler.disable(launch_on)  # type: ignore[no-untyped-call]
    if backend.device_count() == 1:
        return prepared._replace(launch=launch_on)

    guard = backend.guard  # looked up once, because every call uses it

    def guarded(*arguments: Any) -> None:
        with guard(index):
            launch_on(*arguments)

    return prepared._replace(launch=guarded)


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


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name of a dtype, for example "float32"."""
    return str(dtype).removeprefix("torch.")
