"""Checks the stream, guard and resources of a backend without its hardware, with a driver that records calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from tridal.devices import settings
from tridal.devices.checked_backend import CheckedBackend
from tridal.devices.types import Backend, DeviceProperties, LaunchPlan, Probe, Problem, Resources
from tridal.ops import table
from tridal.ops.signature import Arguments
from tridal.pytorch.device_context import DeviceContext
from tridal.pytorch.path.op_calls import call_by_kernels
from tridal.runtime.compiler import can_compile
from tridal.testing.changed_backend import with_members
from tridal.testing.raised import raised
from tridal.testing.recording import COUNT, RecordingDevice, recording

_SHAPE = (64, 96)


class _LaunchError(Exception):
    """Raised inside a guard, and by a launch."""


def check_runtime(backend: Backend, modules: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns a description of each fault of a backend's `guard`, `stream`, `device_count` and `resources`.

    The device need not be present. Until the function returns, a stand-in with two devices replaces the module
    `torch.<device type>` and Triton's driver. It has `device_count`, `current_device`, `set_device`, `device` and
    `current_stream`. `modules` are the names of other modules that the stand-in replaces, for a backend that calls
    these functions of its vendor's module. A kernel is compiled if Triton can compile for the first of the backend's
    architectures, and is launched on the stand-in. Interpreted backends have no driver: only their guard and their
    stream are checked. No other thread may compute meanwhile.

    Example:
        >>> tridal.testing.check_runtime(tridal.registry.get("interpreter"))
        ()
    """
    backend = backend.plugin if isinstance(backend, CheckedBackend) else backend
    if backend.interpreted:
        indices = range(backend.device_count())
        return (*_faults(_guard_faults(backend, None, indices)), *_faults(_stream_types(backend, indices)))
    properties = next(iter(backend.architectures().values()), None)
    target = properties.target if properties is not None and properties.target is not None else ("", "", 0)
    with recording(backend.device_type, target, modules) as device:
        checks = _count_faults(backend), _guard_faults(backend, device, range(COUNT)), _stream_faults(backend, device)
        faults = [fault for check in checks for fault in _faults(check)]
        if faults:
            faults[0] += "; if the backend calls another module than torch's, give its name in `modules`"
        elif properties is None:
            faults = ["architectures() is empty, so nothing can be launched without a device"]
        else:
            for index in reversed(range(COUNT)):
                faults += _faults(_launch_faults(backend, properties, device, index))
        return tuple(faults)


def _faults(check: Iterator[str]) -> Iterator[str]:
    """Yields the faults of a check. An exception is a fault."""
    try:
        yield from check
    except Exception as error:
        yield raised(error)


def _count_faults(backend: Backend) -> Iterator[str]:
    count = backend.device_count()
    if type(count) is not int or count != COUNT:
        yield f"device_count() returned {count!r}, but there are {COUNT} devices"


def _guard_faults(backend: Backend, device: RecordingDevice | None, indices: Sequence[int]) -> Iterator[str]:
    """Checks that a guard makes its device current, and restores the current device, also after an exception."""
    for current, index in product(indices, indices):
        raised = False
        for error in (None, _LaunchError()):
            if device is not None:
                device.current = current
            after = " after an exception" if error else ""
            try:
                guard: Any = backend.guard(index)
                if not hasattr(type(guard), "__enter__"):
                    yield f"guard({index}) returned {guard!r}, which is no context manager"
                    return
                with guard:
                    if device is not None and device.current != index:
                        yield f"device {device.current} is current inside guard({index})"
                    if error:
                        raise error
            except _LaunchError:
                raised = True
            if device is not None and device.current != current:
                yield f"device {device.current} is current{after} after guard({index}), instead of device {current}"
        if not raised:
            yield f"guard({index}) suppresses exceptions"


def _stream_types(backend: Backend, indices: Sequence[int]) -> Iterator[str]:
    for index in indices:
        stream = backend.stream(index)
        if type(stream) is not int:
            yield f"stream({index}) returned {stream!r}, which is no int"


def _stream_faults(backend: Backend, device: RecordingDevice) -> Iterator[str]:
    """Checks that `stream` returns the current stream of each device, also after it has changed."""
    yield from _stream_types(backend, range(COUNT))
    for current, index, change in product(range(COUNT), range(COUNT), range(2)):
        device.current = current
        device.streams[index] += change
        if (stream := backend.stream(index)) != device.streams[index]:
            why = "after the stream was changed" if change else f"while device {current} is current"
            yield f"stream({index}) returned {stream!r} instead of {device.streams[index]} {why}"


def _launch_faults(
    backend: Backend, properties: DeviceProperties, device: RecordingDevice, index: int
) -> Iterator[str]:
    """Launches an op on one device while the other one is current: twice, after an error, and on another stream."""
    other = device.current = COUNT - 1 - index
    plans: list[LaunchPlan] = []
    reported: list[Resources] = []
    x, call = _make_call(_with_records(backend, properties, plans, reported), index)
    if plans[-1].resources is not None and reported and plans[-1].resources not in reported:
        yield f"the plan has {plans[-1].resources}, which resources() did not return"
    for error in (None, _LaunchError("a launch failed"), None):
        device.streams[index] += 16
        device.error, raised = error, None
        device.launches.clear()
        try:
            call(x)
        except _LaunchError as caught:
            raised = caught
        device.error = None
        if device.current != other:
            after = "that raised" if error else ""
            yield f"a launch {after} on device {index} left device {device.current} current instead of device {other}"
            device.current = other
        if raised is not error:
            yield f"a launch raised {error!r}, but the call raised {raised!r}"
        for launched in device.launches:
            if launched.device != index:
                yield f"a launch for device {index} happened while device {launched.device} was current"
            if launched.stream != device.streams[index]:
                yield f"a launch got the stream {launched.stream!r} instead of {device.streams[index]}, the current one"


def _with_records(
    backend: Backend, properties: DeviceProperties, plans: list[LaunchPlan], reported: list[Resources]
) -> Backend:
    """The backend with given properties, because no device is present. Lists get what it returns."""
    compiles = can_compile(properties.target)

    def plan(problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        plans.append(backend.plan(problem, device, probe if compiles else lambda _: Resources(32, 0, 0), options))
        return plans[-1]

    def resources(asm: Mapping[str, Any], shared_memory: int) -> Resources:
        reported.append(backend.resources(asm, shared_memory))
        return reported[-1]

    return with_members(backend, properties=lambda index: properties, plan=plan, resources=resources)


def _make_call(backend: Backend, index: int) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
    """A tensor on the CPU, and a call of the first op of one tensor for it, as if it were on a device.

    The stand-in of Triton's driver reads only its address. Settings that replace the plan or the call are left out.
    """
    context = DeviceContext.__new__(DeviceContext)
    changes: dict[str, Any] = {"batch_invariant": False, "kernel_configs": None, "dump": None}
    context.device, context.index, context.settings = torch.device("cpu"), index, replace(settings.current(), **changes)
    context.backend = CheckedBackend(backend, "tridal.testing")
    context.torch_computes, context.has_autocast = False, False
    dtype = "float32" if "float32" in backend.dtypes else min(backend.dtypes)
    op = next(op for op in table.ops().values() if op.one_tensor)
    x = torch.empty(_SHAPE, dtype=getattr(torch, dtype))
    arguments = Arguments(op.signature, (x, -1, x.dtype, *op.parameters.values()))
    found, others = call_by_kernels(context, op, arguments, len(op.results)), arguments.tensors[1:]
    return x, lambda x: found.run(x, *others)[0]
