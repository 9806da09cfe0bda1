"""Plans a call, loads its kernel and binds it to a function that launches it on a stream.

The launch serves all numbers of rows of a bucket. It computes the programs and the workspace from the real number.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

from tridal.devices.config_override import ConfigOverride
from tridal.devices.lock import LOCK
from tridal.devices.types import (
    ALIGNMENT,
    KERNEL_CONFIG,
    Backend,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Resources,
    Target,
)
from tridal.errors import PlanError
from tridal.kernels.function_caches import cached_by_functions
from tridal.runtime import compiler
from tridal.runtime.direct_launch import Count, direct_launch
from tridal.runtime.interpreter_mode import int64, interpreting
from tridal.runtime.plan_check import check_config, check_plan, label
from tridal.runtime.specialization import TYPES, KernelCall, Specialization
from tridal.runtime.triton_cache import with_cache


class Launch(NamedTuple):
    """A call that is planned, compiled and bound. It is launched with a stream, a number of rows and tensors."""

    plan: LaunchPlan
    launch: Callable[..., Any]
    """launch(stream, rows, out, *inputs[, mask][, workspace]) launches on the current device. `stream` is a raw handle.
    `rows` is a number of rows in `row_range`."""
    programs: Count
    """programs(rows) is the number of programs of a launch."""
    workspace_slots: Count
    """workspace_slots(rows) is the length of the int64 tensor `workspace`; 0 for all rows if not needed. It is a tensor
    of zeros. No concurrent launch may use it."""
    groups: Count
    """groups(rows) is the number of groups of programs: the rows of a tensor of partial sums."""
    row_range: tuple[int, int]
    """The first and the last number of rows that it serves: tensors that differ in the number of rows only. They are in
    one bucket, see `tridal.types.round_rows`."""
    column_range: tuple[int, int] | None = None
    """The first and the last number of columns, if it serves several, see `KernelCall.column_range`. `launch` then gets
    a number of columns instead of rows."""
    by_address: Callable[..., None] | None = None
    """by_address(stream, rows, *addresses) is the same launch for the addresses of tensors. None: it needs tensors."""

    @property
    def varying(self) -> dict[str, Count]:
        """The scalar arguments of the kernel that are the number of rows, or of columns of one row."""
        names = ["inner"] * (self.row_range[0] < self.row_range[1]) + ["cols"] * (self.column_range is not None)
        return dict.fromkeys(names, int)  # int is the fastest identity


def prepare(
    call: KernelCall, backend: Backend, device: DeviceProperties, options: Mapping[str, Any],
    overrides: Sequence[ConfigOverride] = (),
) -> Launch:  # fmt: skip
    """Plans, compiles and binds a call for a device that is present.

    Raises:
        PlanError: as in `plan`. Or the device needs another driver, or cannot load the compiled kernel.
    """
    launch_plan = plan(call, backend, device, options, overrides)
    bind = _bind_interpreted if backend.interpreted else _bind_compiled
    try:
        return with_cache(lambda: bind(_unbound(call, launch_plan), call, device))  # Triton compiles launchers, too
    except PlanError as error:
        raise PlanError(f"{label(backend)}: {error}") from error


def _unbound(call: KernelCall, launch_plan: LaunchPlan) -> Launch:
    """Computes the numbers of a launch that follow from the number of rows. Its function `launch` is bound later."""
    first, last = call.row_range

    @functools.lru_cache(maxsize=64)  # a lookup takes less than 0.1 us
    def programs(rows: int) -> int:
        return call.programs(launch_plan, rows if first < last else None)

    @functools.lru_cache(maxsize=64)
    def workspace_slots(rows: int) -> int:
        return call.workspace_slots(launch_plan, rows if first < last else None)

    def groups(rows: int) -> int:
        return programs(rows) // launch_plan.config.programs_per_row

    column_range = call.column_range(launch_plan.config)
    return Launch(launch_plan, programs, programs, workspace_slots, groups, (first, last), column_range)


def plan(
    call: KernelCall, backend: Backend, device: DeviceProperties, options: Mapping[str, Any],
    overrides: Sequence[ConfigOverride] = (),
) -> LaunchPlan:  # fmt: skip
    """Asks the backend for the plan of a call. Its probes compile for `device`, which need not be present.

    The plan has the configuration of the first of `overrides` for this kernel, dtype and number of columns, if there
    is one.

    Raises:
        PlanError: the plan is wrong, see `check_plan`. Or Triton has no compiler for the device. If
            an override chose the configuration, the message names its setting.
        PluginError: Triton cannot compile a function of the op, see `compiler.compile_kernel`.
    """
    kernel, dtype, cols = call.kernel.name, call.problem.dtype, call.problem.cols
    own = (override for override in overrides if (override.kernel, override.dtype) == (kernel, dtype))
    override = next((other for other in own if other.cols[0] <= cols <= other.cols[1]), None)
    if override is None:
        return _plan(call, backend, device, options)
    config, where = override.config(call.problem), override.location
    check_config(backend, call.problem, config, f"{where}: config")
    try:
        found = _plan(call, backend, device, {**options, KERNEL_CONFIG: config})
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from error
    for name, value in override.fields:
        if (planned := getattr(found.config, name)) != value:
            raise PlanError(
                f"{where}: config: {name} = {value!r}, but {label(backend)} plans {planned!r} for this call"
            )
    return replace(found, reason=f"{where} sets the configuration; {found.reason}")


def _plan(call: KernelCall, backend: Backend, device: DeviceProperties, options: Mapping[str, Any]) -> LaunchPlan:
    """Returns the plan, whose reason has the number of rows that it is made for if the call has another one."""
    wrong: list[PlanError] = []
    probed: set[KernelConfig] = set()

    def probe(config: KernelConfig) -> Resources:
        if device.target is None:
            raise PlanError(f"{label(backend)} probed for resources, but {device.name} has no compile target")
        try:
            check_config(backend, call.problem, config, f"{label(backend)}: plan() called probe(config)")
        except PlanError as error:
            wrong.append(error)
            raise
        if not compiler.can_compile(device.target):
            raise PlanError(f"{label(backend)}: {compiler.no_compiler(device.target)}")
        probed.add(config)
        return compiler.resources(backend, call.specialize(config), device.target)

    found = replace(backend.plan(call.problem, device, probe, options), compilations=len(probed))
    if wrong:  # a plan that ignores this error has another configuration than the backend wanted
        raise wrong[0]
    check_plan(backend, call.bucket, device, found, probe)
    planned_for = call.planned_for
    return replace(found, reason=f"{planned_for}; {found.reason}") if planned_for else found


def _bind_compiled(unbound: Launch, call: KernelCall, device: DeviceProperties) -> Launch:
    assert device.target is not None
    specialization = call.specialize(unbound.plan.config)
    with LOCK:
        triton = compiler.import_triton()
        driver = _active_driver(triton, device.name, device.target)
        loaded = _load(specialization, device.target, driver.get_current_device())
        names = compiler.entry(specialization).arg_names
    types, programs, varying = dict(specialization.types), unbound.programs, unbound.varying
    scalars = call.scalars(unbound.plan.config) | varying
    pointers = [name for name in names if types.get(name, "").startswith("*")]
    if compiler.triton_version(triton) >= (3, 3):
        fewest, most = map(programs, unbound.row_range)
        values = [scalars[name] for name in names if name not in pointers]
        grid = most if fewest == most else programs
        direct = direct_launch(loaded, driver.launcher_cls, grid, len(pointers), values)
        if direct is not None:
            return unbound._replace(launch=direct[0], by_address=direct[1])
    run, function, packed = loaded.run, loaded.function, loaded.packed_metadata
    # Tensors are passed instead of addresses, because triton-ascend's launcher reads their shapes when it is profiled.

    def launch(stream: int, rows: int, *tensors: Any) -> None:
        arguments = scalars | dict(zip(pointers, tensors, strict=True)) | dict.fromkeys(varying, rows)
        run(programs(rows), 1, 1, stream, function, packed, None, None, None, *[arguments[name] for name in names])

    return unbound._replace(launch=launch)


def _active_driver(triton: ModuleType, device: str, target: Target) -> Any:
    """Raises PlanError if a device with this target needs another driver than Triton's active one."""
    needed, _, warp_size = target
    try:
        driver = triton.runtime.driver.active
        current = driver.get_current_target()
    except RuntimeError as error:
        raise PlanError(f"{device} needs Triton's driver {needed!r}, but Triton has none: {error}") from error
    if current.backend != needed:
        raise PlanError(
            f"{device} needs Triton's driver {needed!r}, but {current.backend!r} is active, and a process has one "
            "active driver. Use one process for each driver"
        )
    if current.warp_size != warp_size:
        found = f"Triton's driver reports the warp size {current.warp_size}"
        raise PlanError(f"{device} has the warp size {warp_size} in its target, but {found}")
    return driver


@cached_by_functions
def _load(specialization: Specialization, target: Target, index: int) -> Any:
    """Compiles a kernel and loads it on the current device, which has this index. Results are cached per device."""
    loaded = copy.copy(compiler.compile_kernel(specialization, target))
    try:
        loaded._init_handles()
    except RuntimeError as error:
        raise PlanError(f"a kernel for the target {target} cannot be loaded: {error}") from error
    return loaded


def _bind_interpreted(unbound: Launch, call: KernelCall, device: DeviceProperties) -> Launch:
    specialization = call.specialize(unbound.plan.config)
    with LOCK:
        triton = compiler.import_triton()
        kernel = compiler.entry(specialization, interpret=True)
    types, varying = dict(specialization.types), unbound.varying
    names = [name for name in kernel.arg_names if types.get(name, "").startswith("*")]
    values = {n: v for n, v in call.scalars(unbound.plan.config).items() if n in kernel.arg_names}

    def launch(stream: int, rows: int, *tensors: Any) -> None:
        import numpy

        given = dict(zip(names, tensors, strict=True))
        _check_assumptions(specialization, types, given)
        scalars = values | dict.fromkeys(varying, rows)
        scalars |= {name: int64(triton, value) for name, value in scalars.items() if types.get(name) == "i64"}
        named = compiler.naming_functions(specialization, "Triton's interpreter cannot run")
        with LOCK, interpreting(triton), numpy.errstate(all="ignore"), named:
            kernel[(unbound.programs(rows),)](**scalars | given)

    return unbound._replace(launch=launch)


def _check_assumptions(specialization: Specialization, types: Mapping[str, str], tensors: Mapping[str, Any]) -> None:
    """Raises an AssertionError if a compiled kernel would read other tensors wrongly. The interpreter reads them."""
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        wrong = f"has the dtype {dtype}" if types[name] != f"*{TYPES.get(dtype, dtype)}" else ""
        if name in specialization.divisible and tensor.data_ptr() % ALIGNMENT:
            wrong = f"has the address {tensor.data_ptr():#x}"
        assert not wrong, f"{specialization.kernel.name}: {name} {wrong}, which a compiled kernel does not expect"
