"""The only place that touches Triton objects: compilation, resources, and launches on a stream.

Triton itself is imported on first use. Compiled and interpreted kernels run side by side in one process: the one source
is loaded once as compiled and once as interpreted functions; `tridal.interpreting` does the like for Triton's library.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from tridal.devices.types import Backend, DeviceProperties, LaunchPlan, Resources, Tile
from tridal.errors import PlanError, PluginError
from tridal.runtime.direct_launch import shortcut
from tridal.runtime.interpreter_mode import interpret_flag, interpreted_library, interpreting
from tridal.runtime.specialization import ALIGNMENT, Call, Variant

_SOURCE = Path(__file__).parent.with_name("kernels") / "softmax.py"
_LOCK = threading.RLock()  # Triton's first import, its compiler and its interpreter do not bear company


class Prepared(NamedTuple):
    """A call that is planned, compiled and bound, all but its stream and its tensors."""

    plan: LaunchPlan
    launch: Callable[..., None]
    """launch(stream, out, input[, saved output][, words]): on a raw stream handle, on the current device."""
    words: int
    """Length of the int64 tensor `words` that the launch wants: zero before, zero after, used by no other at once."""


def prepare(call: Call, backend: Backend, device: DeviceProperties, options: Mapping[str, Any]) -> Prepared:
    """Plans a call on a device that is present, and compiles what is missing."""
    launch_plan = plan(call, backend, device, options)
    bind = _bind_interpreted if backend.interpreted else _bind_compiled
    return Prepared(launch_plan, bind(call, launch_plan, device), call.words(launch_plan))


def plan(call: Call, backend: Backend, device: DeviceProperties, options: Mapping[str, Any]) -> LaunchPlan:
    """The backend's plan for a call; its probes compile for `device`, which needn't be present.

    Raises PlanError if it can't be launched as it is.
    """

    def probe(tile: Tile) -> Resources:
        if device.target is None:
            raise PlanError(f"backend {backend.name!r} probed for registers, but {device.name} has no compile target")
        return _resources(backend, call.variant(tile), device.target)

    launch_plan = backend.plan(call.problem, device, probe, options)
    tile, programs = launch_plan.tile, launch_plan.programs
    if programs < 1:
        raise PlanError(f"backend {backend.name!r} planned {programs} programs for {call.problem}")
    tiles = call.problem.tiles(tile.rows)
    if not tile.persistent and programs != tiles * tile.split:
        raise PlanError(
            f"backend {backend.name!r} planned {programs} programs that are not persistent for {tiles} tiles: "
            "there has to be one for each"
        )
    return launch_plan


@functools.lru_cache(maxsize=1024)
def _resources(backend: Backend, variant: Variant, target: tuple[str, int | str, int]) -> Resources:
    compiled = compile_variant(variant, target)
    return backend.resources(compiled.asm, compiled.metadata.shared)


@functools.lru_cache(maxsize=1024)
def compile_variant(variant: Variant, target: tuple[str, int | str, int]) -> Any:
    """Triton's CompiledKernel of a variant for a target (backend, architecture, warp size), present or not."""
    with _LOCK:
        triton = _import_triton()
        if interpreted_library(triton):
            raise PluginError(
                "Triton was imported with TRITON_INTERPRET=1, and can't compile in this process: unset that variable "
                "(tridal's interpreter does without it)"
            )
        from triton.backends.compiler import GPUTarget

        kernel = getattr(_kernels(interpreted=False), variant.kernel)
        source = _ast_source(kernel, variant, triton)
        options: dict[str, Any] = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
        if variant.max_registers:
            options["maxnreg"] = variant.max_registers
        if variant.cooperative:
            options["launch_cooperative_grid"] = True
        return triton.compile(source, target=GPUTarget(*target), options=options)


def _ast_source(kernel: Any, variant: Variant, triton: ModuleType) -> Any:
    """The compiler's input; its form changed with Triton 3.3, which lists constants in the signature as well."""
    from triton.compiler import ASTSource

    types, constants = dict(variant.types), _constants(variant, triton)
    index = kernel.arg_names.index
    if _version(triton) >= (3, 3):
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        attributes = {(index(name),): [["tt.divisibility", ALIGNMENT]] for name in variant.divisible}
        return ASTSource(kernel, signature, constants, attributes)
    from triton.backends.compiler import AttrsDescriptor

    hints = AttrsDescriptor.from_hints({index(name): ALIGNMENT for name in variant.divisible})
    return ASTSource(kernel, types, constants, hints)


def _constants(variant: Variant, triton: ModuleType) -> dict[str, Any]:
    language = triton.language
    accumulators = {"fp32": language.float32, "fp64": language.float64}
    return {name: accumulators[value] if name == "ACC" else value for name, value in variant.constants}


def _bind_compiled(call: Call, launch_plan: LaunchPlan, device: DeviceProperties) -> Callable[..., None]:
    assert device.target is not None
    variant = call.variant(launch_plan.tile)
    with _LOCK:
        triton = _import_triton()
        loaded = _load(variant, device.target, triton.runtime.driver.active.get_current_device())
        names = getattr(_kernels(interpreted=False), variant.kernel).arg_names
    scalars, types, constants = call.scalars(launch_plan.tile), dict(variant.types), dict(variant.constants)
    pointers = [name for name, kind in types.items() if kind.startswith("*")]
    values = [scalars[name] for name in names if name in types and name not in pointers]
    programs, since_3_3 = launch_plan.programs, _version(triton) >= (3, 3)
    assert pointers == [name for name in names if name in pointers], "tensors are given in the kernel's order"
    if since_3_3:
        enter = shortcut(loaded, triton.runtime.driver.active.launcher_cls, programs, len(pointers), values)
        if enter is not None:
            return enter
    run, function, packed = loaded.run, loaded.function, loaded.packed_metadata
    # Since 3.3 this way takes a value for each constant too. It gets tensors and not addresses, because triton-ascend's
    # launcher asks for their shapes while it is profiled.
    known = constants | scalars if since_3_3 else {name: scalars.get(name) for name in types}
    slots = [name for name in names if name in known or name in pointers]

    def launch(stream: int, *tensors: Any) -> None:
        arguments = known | dict(zip(pointers, tensors, strict=True))
        run(programs, 1, 1, stream, function, packed, None, None, None, *[arguments[name] for name in slots])

    return launch


@functools.lru_cache(maxsize=1024)
def _load(variant: Variant, target: tuple[str, int | str, int], index: int) -> Any:
    """A compiled kernel with its handles on the current device, `index`: a loaded kernel belongs to one device."""
    loaded = copy.copy(compile_variant(variant, target))
    loaded._init_handles()
    return loaded


def _bind_interpreted(call: Call, launch_plan: LaunchPlan, device: DeviceProperties) -> Callable[..., None]:
    if launch_plan.tile.split > 1:
        raise PlanError(
            "the interpreter runs programs one after the other: programs that wait for each other never end"
        )
    variant = call.variant(launch_plan.tile)
    with _LOCK:
        triton = _import_triton()
        kernel = getattr(_kernels(interpreted=True), variant.kernel)[(launch_plan.programs,)]
    values = call.scalars(launch_plan.tile) | _constants(variant, triton)
    names = [name for name, type_ in variant.types if type_.startswith("*")]

    def launch(stream: int, *tensors: Any) -> None:
        import numpy

        with _LOCK, interpreting(triton), numpy.errstate(all="ignore"):
            kernel(**dict(zip(names, tensors, strict=True)), **values)

    return launch


def _import_triton() -> ModuleType:
    with interpret_flag(False) if "triton" not in sys.modules else contextlib.nullcontext():
        import triton
        import triton.language
    return triton  # type: ignore[no-any-return]


@functools.cache
def _kernels(interpreted: bool) -> ModuleType:
    """The kernel source as a module of compiled or of interpreted functions."""
    spec = importlib.util.spec_from_file_location(f"tridal.kernels.softmax_{'interpreted' * interpreted}", _SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with interpret_flag(interpreted):
        spec.loader.exec_module(module)
    return module


def _version(triton: ModuleType) -> tuple[int, int]:
    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)
