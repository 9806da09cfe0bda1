"""Launch plans as data, for a device that is present or for an architecture by name."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from tridal.devices import registry, settings
from tridal.devices.types import (
    DTYPE_ALIASES,
    ITEMSIZE,
    Backend,
    DeviceProperties,
    LaunchPlan,
    find_architecture,
)
from tridal.errors import DeviceUnavailableError, DTypeError, PlanError, TridalError, UnknownDeviceError, nearest
from tridal.kernels.function_errors import reason
from tridal.kernels.row_kernel import TENSORS, RowKernel
from tridal.ops import table
from tridal.ops.kernel_tensors import kernel_tensors
from tridal.ops.signature import Signature
from tridal.runtime import compiler, launch
from tridal.runtime.row_layout import row_layout
from tridal.runtime.specialization import KernelCall

_MAX_BYTES = (1 << 63) - 1

_log = logging.getLogger("tridal")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan(LaunchPlan):
    """The launch plan of an op, and the source of the kernel that it launches."""

    call: KernelCall = field(repr=False, compare=False)
    """The kernel, and the layout and the dtypes of its tensors."""

    @property
    def source(self) -> str:
        """The source of the kernel that runs, with all functions that it calls: plain Triton without tridal."""
        return compiler.source(self.call.specialize(self.config))

    @property
    def launched_programs(self) -> int:
        """The number of programs of a launch for the rows of the call. `programs` holds for its whole bucket."""
        return self.call.programs(self)

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain data for JSON, without the source."""
        return {**LaunchPlan(**_fields(self)).as_dict(), "launched_programs": self.launched_programs}


def _fields(plan: LaunchPlan) -> dict[str, Any]:
    return {entry.name: getattr(plan, entry.name) for entry in fields(LaunchPlan)}


def plan(
    rows: int,
    cols: int,
    *,
    dtype: torch.dtype | str = torch.float32,
    op: str | None = None,
    dim: int = -1,
    blocks: int | None = None,
    device: str | torch.device | None = None,
    arch: str | None = None,
) -> KernelPlan:
    """Returns the launch plan of an op on a contiguous matrix of `rows` rows and `cols` columns, both at least 1.

    A call under the current settings, such as `batch_invariant`, has the same plan. Optional tensors with a number per
    element, such as the residual of a norm, are absent; those with a number per column, such as a weight, are given.

    Args:
        dtype: float16, bfloat16, float32 or float64, or a short name such as "bf16".
        op: the name of an op or of its gradient, by default the first op of the table.
        dim: -1 or 1 to reduce each row, 0 or -2 to reduce each column.
        blocks: the number of blocks of consecutive rows, such as batches, if some tensors have a number per column for
            each block instead of a number per element, as the scale of a modulated norm may have. It divides `rows`.
        device: a device that is present, by default the one in the settings.
        arch: the name of an architecture, or of a product such as those in its aliases. It need not be present.

    Raises:
        PlanError, DTypeError, UnknownDeviceError, DeviceUnavailableError: an argument is wrong or unavailable.
        SettingsError: the settings have an unknown backend or a wrong option.

    Example:
        >>> plan = tridal.plan(4096, 1000, dtype="bf16", arch="sm_90")
        >>> plan.config.schedule, plan.config.cols
        ('whole_row', 1024)
    """
    return planned(rows, cols, dtype=dtype, op=op, dim=dim, blocks=blocks, device=device, arch=arch)[2]


def planned(
    rows: int, cols: int, device: str | torch.device | None = None, arch: str | None = None, **question: Any
) -> tuple[Backend, DeviceProperties, KernelPlan]:
    """Plans, and tells for which backend and device. Checks the problem before the device.

    Any exception of the backend or of Triton's compiler becomes a PlanError.
    """
    call = matrix_call(rows, cols, **question)
    backend, properties = target(device, arch)
    if call.problem.dtype not in backend.dtypes:
        raise DTypeError(f"backend {backend.name!r} does not support {call.problem.dtype}: torch computes such tensors")
    chosen = settings.current()
    registry.check_backends(chosen)
    options = registry.options(backend, chosen)
    if chosen.batch_invariant:
        call = replace(call, invariant=True)
    try:
        found = launch.plan(call, backend, properties, options, overrides=table.kernel_configs(chosen))
        return backend, properties, KernelPlan(**_fields(found), call=call)
    except TridalError:
        raise
    except ImportError as error:
        missing = error.name
        raise PlanError(f"planning compiles kernels, but {missing} is not installed: pip install {missing}") from error
    except Exception as error:
        raise PlanError(f"backend {backend.name!r} could not plan for {properties.arch}: {reason(error)}") from error


def target(device: str | torch.device | None = None, arch: str | None = None) -> tuple[Backend, DeviceProperties]:
    """Finds the backend and the properties of a device that is present, or of an architecture by name."""
    if arch is not None:
        if device is not None:
            raise PlanError("pass either device or arch, not both")
        known = architectures()
        devices = {name: properties for name, (_, properties) in known.items()}
        found = find_architecture(arch, devices) if isinstance(arch, str) else None
        if found is None:
            names = [*known, *(alias for device in devices.values() for alias in device.aliases)]
            near = nearest(str(arch), names, cutoff=0.6)
            shown = ", ".join(architecture_names())
            raise UnknownDeviceError(f"unknown architecture {arch!r}{near} (known: {shown})")
        return known[found]
    chosen = settings.current()
    if device is not None:
        name, (backend, where) = repr(str(device)), registry.resolve(str(device))
    else:
        name = f"{chosen.device!r} ({chosen.sources['device']})"
        backend, where = registry.resolve_chosen(chosen)
    if backend is None:
        fixes = {"arch": next(iter(architectures()), None)}
        fixes |= {"device": next((backend.name for backend in registry.loaded() if backend.interpreted), None)}
        error = DeviceUnavailableError(f"device {name}: torch computes {where} tensors without a plan")
        error.fixes = {key: value for key, value in fixes.items() if value}
        raise error
    return backend, backend.properties(torch.device(where).index or 0)


def architectures() -> dict[str, tuple[Backend, DeviceProperties]]:
    """Lists all architectures that registered backends can plan for, by name. Logs each fault of a plugin once."""
    known, faults = registry.find_architectures()
    for fault in faults:
        _log_fault(fault)
    return {**known}


def example_architectures() -> dict[str, tuple[Backend, DeviceProperties]]:
    """Takes the first architecture of each backend."""
    known = architectures()
    first = {backend: arch for arch, (backend, _) in reversed(known.items())}
    return {arch: known[arch] for arch in reversed(first.values())}


@functools.cache
def _log_fault(fault: str) -> None:
    _log.warning("%s", fault)


def architecture_names() -> list[str]:
    """Lists the names of all architectures, each with its aliases in parentheses."""
    known = {name: properties.aliases for name, (_, properties) in architectures().items()}
    return [f"{name} ({', '.join(aliases)})" if aliases else name for name, aliases in sorted(known.items())]


def matrix_call(
    rows: int, cols: int, dtype: torch.dtype | str = "float32", op: str | None = None, dim: int = -1,
    blocks: int | None = None,
) -> KernelCall:  # fmt: skip
    """Returns the kernel call of an op for a contiguous, aligned matrix of `rows` rows and `cols` columns."""
    for name, value in (("rows", rows), ("cols", cols)):
        if type(value) is not int or value < 1:
            raise PlanError(f"{name} must be a positive integer, got {value!r}")
    if type(dim) is not int or not -2 <= dim <= 1:
        raise PlanError(f"dim must be -1 or 1 (along rows), 0 or -2 (along columns), got {dim!r}")
    op = table.first().name if op is None else op
    if not isinstance(op, str):
        raise PlanError(f"op must be the name of an op, got {op!r}")
    if not isinstance(dtype, (str, torch.dtype)):
        raise DTypeError(f"dtype must be a torch.dtype or its name, got {dtype!r}")
    kernel = table.kernel_named(op)
    name = str(dtype).removeprefix("torch.")
    name = DTYPE_ALIASES.get(name, name)
    if name not in ITEMSIZE:
        raise DTypeError(f"unknown dtype {name!r}{nearest(name, ITEMSIZE)}; kernels compute {', '.join(ITEMSIZE)}")
    if (size := rows * cols * ITEMSIZE[name]) > _MAX_BYTES:
        raise PlanError(f"a matrix of {rows} x {cols} {name} has {size} bytes, but a tensor has at most 2**63 - 1")
    layout = row_layout((rows, cols), (cols, 1), dim % 2)
    signatures = (s for each in table.ops().values() for s in (each.signature, each.gradient_signature))
    signature = next((s for s in signatures if s.kernel is kernel), None)
    absent = [] if signature is None else _optional_elements(signature)
    if blocks is not None:
        if type(blocks) is not int or blocks < 1 or rows % blocks or dim % 2 != 1:
            raise PlanError(f"blocks must be a number that divides the rows, of dim -1, got {blocks!r}")
        if signature is None or not signature.per_block:
            raise PlanError(f"blocks: the kernel {kernel.name!r} has no tensors with a number per column and block")
        kernel = kernel_tensors(signature, tuple(signature.names[index] for index in signature.per_block)).kernel
        layout = row_layout((blocks, rows // blocks, cols), (rows // blocks * cols, cols, 1), 2, few_rows=0, separate=1)
    for tensor in absent:
        kernel = without(kernel, tensor)
    assert layout is not None
    parameters = tuple(1.0 if p != "scale" else None for p in kernel.parameters)
    stride = 0 if blocks is None else cols
    return KernelCall(kernel, layout, tensor_dtypes(kernel, name), (), parameters, block_stride=stride)


def _optional_elements(signature: Signature) -> list[str]:
    """Names the optional tensors with a number per element, such as a residual, of a signature's kernel.

    The first tensor, the input or the gradient of the result, is never absent.
    """
    elements = {*signature.with_role("element")[1:]} - {*signature.per_block}
    inputs = kernel_tensors(signature).inputs
    return [name for index, name in inputs if index in elements and signature.names[index] in signature.optional]


def without(kernel: RowKernel, name: str) -> RowKernel:
    """Removes the optional tensor `name` from a kernel, and the output "<name>_sum" if it has one."""
    kept = (written for written in kernel.writes if written != f"{name}_sum")
    return kernel.bind(**{name: None}).writing(*kept, *kernel.row_writes, *kernel.column_writes)


def tensor_dtypes(kernel: RowKernel, dtype: str) -> tuple[str, ...]:
    """Returns the dtypes of a kernel's tensors, where those with a number per element or per column have `dtype`.

    What a kernel computes once per row, or sums over rows, has the accumulator's dtype.
    """
    accumulator = "float64" if dtype == "float64" else "float32"
    kinds = dict.fromkeys(TENSORS, dtype) | dict.fromkeys(("row_writes", "column_writes", "row_reads"), accumulator)
    kinds |= dict.fromkeys(("row_index", "top_index"), "int64")
    return tuple(kinds[field] for field, names in zip(TENSORS, kernel.tensors, strict=True) for _ in names)
