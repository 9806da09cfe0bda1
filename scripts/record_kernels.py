"""Records the kernels that a call of a public function launches on an architecture. Needs no device.

A case is a JSON object: the architecture, the function, and the function's arguments by name. A tensor is text, such as
"bfloat16[4096,1024]", with its strides "(1028,1)" and its offset "+1" if it is not contiguous. Tensors are CPU tensors
that nothing reads. A backend with the plans for the architecture replaces the bundled backend for CPU tensors, and a
driver that launches nothing replaces Triton's. This file therefore uses public functions, the protocol of a backend
and Triton, and nothing else of tridal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget

import tridal
from tridal.library.losses import linear_chunks
from tridal.types import Backend, DeviceProperties, KernelConfig, LaunchPlan, Probe, Resources

OPTIONS = ("arch", "call", "grad", "dy", "settings")
"""Keys of a case that are no arguments: `grad` names the tensors that need a gradient. `dy` has a gradient for each
result, with null for none; by default, each is contiguous. `settings` are those of `tridal.use`."""
CALLS = 3
"""The first calls of a kind may run other kernels than later ones. The last call is recorded."""
_TENSOR = re.compile(r"(\w+)\[([\d,]*)\](?:\(([\d,]*)\))?(?:\+(\d+))?")
_launches: list[tuple[bytes, int]] = []
"""The binary and the number of programs of each launch of the latest call."""


class Kernel(NamedTuple):
    """A compiled kernel."""

    plan: list[Any]
    """The schedule, the other fields of the configuration, programs, occupancy, and bytes of shared memory."""
    asm: Mapping[str, Any]
    """The compiler's output by stage, such as "ptx"."""


class Recorder:
    """A backend with the plans for one architecture, for CPU tensors. Other members are those of the real backend."""

    device_type = "cpu"

    def __init__(self, name: str, backend: Backend, arch: str) -> None:
        self.name, self.backend, self.device = name, backend, backend.architectures()[arch]
        self.plans: dict[bytes, LaunchPlan] = {}
        """The plan of each planned kernel, by its binary."""
        self.compiled: dict[bytes, tuple[Mapping[str, Any], int]] = {}
        """The compiler's output of each kernel by its binary, and its bytes of shared memory."""
        self.latest: bytes | None = None
        """The binary of the kernel whose resources were asked for last."""

    def __getattr__(self, member: str) -> Any:
        return getattr(self.backend, member)

    def unavailable(self) -> None:
        """Returns None."""

    def device_count(self) -> int:
        """Returns 1."""
        return 1

    def properties(self, index: int) -> DeviceProperties:
        """Returns those of the architecture."""
        return self.device

    def stream(self, index: int) -> int:
        """Returns 0."""
        return 0

    def guard(self, index: int) -> Any:
        """Returns an empty context."""
        return nullcontext()

    def plan(self, problem: Any, device: DeviceProperties, probe: Probe, options: Any) -> LaunchPlan:
        """Returns the plan of the real backend. Keeps it with the kernel's binary, which a probe compiles."""
        binaries: dict[KernelConfig, bytes] = {}

        def recorded(config: KernelConfig) -> Resources:
            self.latest = None  # it stays None if the resources are known: then this kernel has been planned before
            found = probe(config)
            if self.latest is not None:
                binaries[config] = self.latest
            return found

        plan: LaunchPlan = self.backend.plan(problem, device, recorded, options)
        recorded(plan.config)
        if plan.config in binaries:
            self.plans[binaries[plan.config]] = plan
        return plan

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Returns those that the real backend reads. Plans for NPUs do not depend on resources."""
        self.latest = next(asm[kind] for kind in ("cubin", "hsaco", "npubin") if kind in asm)
        self.compiled[self.latest] = asm, shared_memory
        if "npubin" in asm:
            return Resources(registers=1, spills=0, shared_memory=shared_memory)
        return self.backend.resources(asm, shared_memory)

    def kernels(self) -> list[Kernel]:
        """Returns the kernels in the order of their first launches."""
        return [self._kernel(*launch) for launch in dict.fromkeys(_launches)]

    def _kernel(self, binary: bytes, programs: int) -> Kernel:
        plan, (asm, shared_memory) = self.plans[binary], self.compiled[binary]
        c = plan.config
        numbers = [c.rows, c.cols, c.num_warps, c.num_stages, c.programs_per_row, c.max_registers, c.peel, c.exp2_bias]
        numbers += [c.persistent, c.reload, c.lanes, programs, plan.occupancy, shared_memory]
        return Kernel([c.schedule, *numbers], asm)


class Launcher:
    """Triton's launcher. It has the attribute `launch`, as those of GPUs have, which records a launch."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.launch = lambda programs, stream, function, arguments: _launches.append((function, programs))

    def __call__(self, x: int, y: int, z: int, stream: int, function: bytes, *others: Any) -> None:
        """Calls `launch` with the kernel's own arguments, which follow four others."""
        self.launch(x, stream, function, others[4:])


class Driver:
    """Triton's driver for an architecture. A kernel's handle is its binary."""

    launcher_cls = Launcher

    def __init__(self, target: Any) -> None:
        self.target = GPUTarget(*target)
        properties = {"max_shared_mem": 1 << 30, "num_aicore": 1, "num_vectorcore": 1}
        count = 5 if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 4) else 4
        self.utils = SimpleNamespace(
            get_device_properties=lambda index: properties,
            load_binary=lambda name, binary, shared, index: (None, binary, 0, 0, 1 << 20)[:count],
        )

    def get_current_target(self) -> GPUTarget:
        """Returns the target of the architecture."""
        return self.target

    def get_current_device(self) -> int:
        """Returns 0."""
        return 0


def _tensor(text: str) -> torch.Tensor:
    """Returns a tensor. Its memory is not initialized, except that indices are zero."""
    match = _TENSOR.fullmatch(text)
    assert match is not None, text
    dtype = getattr(torch, match[1])
    shape, strides = ([int(number) for number in (group or "").split(",") if number] for group in match.group(2, 3))
    make = torch.empty if dtype.is_floating_point else torch.zeros
    if not strides and not match[4]:
        return make(shape, dtype=dtype)
    strides = strides or torch.empty(shape, device="meta").stride()
    offset = int(match[4] or 0)
    size = offset + 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    return make(size, dtype=dtype).as_strided(shape, strides, offset)


def _argument(value: Any, recorded: bool) -> Any:
    """Returns the argument that a value in a case stands for: a tensor, a dtype or the value."""
    if not isinstance(value, str):
        return value
    if _TENSOR.fullmatch(value):
        return _tensor(value).requires_grad_(recorded)
    return getattr(torch, value) if isinstance(getattr(torch, value, None), torch.dtype) else value


def _call(case: Mapping[str, Any]) -> None:
    """Calls the function of a case, and computes the gradients that it names."""
    names = case.get("grad", ())
    arguments = {key: _argument(value, key in names) for key, value in case.items() if key not in OPTIONS}
    results = getattr(tridal, case["call"])(**arguments)
    if not names:
        return
    results = results if isinstance(results, tuple) else (results,)
    dy = [torch.empty(y.shape, dtype=y.dtype) for y in results]
    if "dy" in case:
        dy = [None if text is None else _tensor(text) for text in case["dy"]]
    given = [(y, grad) for y, grad in zip(results, dy, strict=True) if grad is not None]
    torch.autograd.grad([y for y, _ in given], [arguments[name] for name in names], [grad for _, grad in given])


@contextmanager
def recording(arch: str) -> Iterator[Recorder]:
    """Replaces the backend for CPU tensors, and Triton's driver, which stays replaced."""
    plugins = [(point, point.load()) for point in entry_points(group="tridal.backends")]
    replaced = next(point for point, backend in plugins if backend.device_type == "cpu")
    planner = next(backend for _, backend in plugins if arch in backend.architectures())
    recorder = Recorder(replaced.name, planner, arch)
    triton.runtime.driver.set_active(Driver(recorder.device.target))
    try:
        with patch.object(sys.modules[replaced.module], replaced.attr, recorder):
            tridal.registry.clear()
            yield recorder
    finally:
        tridal.registry.clear()


def record(case: Mapping[str, Any]) -> list[Kernel]:
    """Returns the kernels that a case launches, in the order of their first launches."""
    with (
        recording(case["arch"]) as recorder,
        tridal.use(device=recorder.name, **case.get("settings", {})),
        patch.object(torch, "mm", lambda *_, out, **__: out),  # matmuls compute nothing
        patch.object(torch, "addmm", lambda *_, out, **__: out),
        patch.object(linear_chunks, "sums_in", lambda *_: True),  # as on a GPU
    ):
        for _ in range(CALLS):
            _launches.clear()
            _call(case)
    return recorder.kernels()
