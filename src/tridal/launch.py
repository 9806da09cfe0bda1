"""The only place that touches Triton objects: variants, compilation, resources, and launches on a stream.

A variant is everything that a compiled kernel was specialised on, so two launches that share one are interchangeable.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tridal.errors import PlanError, PluginError
from tridal.geometry import Geometry
from tridal.interpreting import interpret_flag, interpreted_library, interpreting
from tridal.types import Backend, DeviceProperties, LaunchPlan, Problem, Resources, Tile

_SOURCE = Path(__file__).with_name("kernels") / "softmax.py"
_LOCK = threading.RLock()  # Triton's first import, its compiler and its interpreter do not bear company
_SIZES = ("outer", "inner", "cols")
_STRIDES = ("in_outer", "in_inner", "in_col", "out_outer", "out_inner", "out_col")
_TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_ALIGNMENT = 16  # bytes of a full vector access, and what Triton specialises a multiple of


@dataclass(frozen=True, slots=True)
class Variant:
    """Everything that a compiled kernel is specialised on."""

    kernel: str
    types: tuple[tuple[str, str], ...]
    """Triton's type of each run-time argument."""
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[str, ...]
    """Arguments that are multiples of 16."""
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Call:
    """A problem together with where its tensors lie: all that decides on the variant but the tile."""

    problem: Problem
    geometry: Geometry
    aligned: bool
    """Whether the address of every tensor is a multiple of 16 bytes."""

    def scalars(self) -> dict[str, int]:
        """Run-time integers of the kernel by name."""
        g = self.geometry
        return dict(zip(_SIZES + _STRIDES, (g.outer, g.inner, g.cols, *g.in_strides, *g.out_strides), strict=True))

    def variant(self, tile: Tile) -> Variant:
        """What the compiler has to specialise on for this call with this tile.

        A stride of one is a constant, since contiguity decides how memory is read. The number of rows never is: a new
        batch size compiles nothing, unless it passes 32 bits.
        """
        p, g = self.problem, self.geometry
        pointers = {"out_ptr": p.out_dtype, "in_ptr": p.dtype}
        if p.backward:
            pointers["y_ptr"] = p.saved_dtype
        scalars = self.scalars()
        units = {
            "row": ("in_col", "out_col"),
            "inner": ("in_inner", "out_inner"),
            "strided": (),
        }[p.layout]
        constants: dict[str, Any] = dict.fromkeys(units, 1)
        constants |= {
            "LOG": p.op.startswith("log_"),
            "ACC": "fp64" if p.accumulator == 8 else "fp32",
            "WIDE": g.extent(tile.rows, tile.cols) >= 2**31,
            "AXIS": 0 if p.layout == "inner" else 1,
            "ROWS": tile.rows,
            "COLS": tile.cols,
            "STAGES": tile.num_stages,
        }
        run_time = {name: value for name, value in scalars.items() if name not in units}
        unspecialised = {"outer"} if p.layout == "inner" else {"outer", "inner"}
        divisible = list(pointers) if self.aligned else []
        divisible += [n for n, value in run_time.items() if n not in unspecialised and value % _ALIGNMENT == 0]
        types = {name: f"*{_TYPES[dtype]}" for name, dtype in pointers.items()}
        types |= {name: "i32" if value < 2**31 else "i64" for name, value in run_time.items()}
        return Variant(
            kernel=f"{'backward' if p.backward else 'forward'}_{tile.algorithm}",
            types=tuple(types.items()),
            constants=tuple(constants.items()),
            divisible=tuple(divisible),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )


Launch = Callable[..., None]
"""launch(stream, out, input[, saved output]): runs a planned kernel on a raw stream handle, on the current device."""


def prepare(
    call: Call, backend: Backend, device: DeviceProperties, options: dict[str, Any]
) -> tuple[LaunchPlan, Launch]:
    """Plans a call on a device that is present, compiles what is missing, and binds all but stream and tensors."""
    launch_plan = plan(call, backend, device, options)
    if launch_plan.programs < 1:
        raise PlanError(f"backend {backend.name!r} planned {launch_plan.programs} programs for {call.problem}")
    if backend.interpreted:
        return launch_plan, _bind_interpreted(call, launch_plan)
    return launch_plan, _bind_compiled(call, launch_plan, device)


def plan(call: Call, backend: Backend, device: DeviceProperties, options: dict[str, Any]) -> LaunchPlan:
    """The backend's plan for a call; its probes compile for `device`, which needn't be present."""

    def probe(tile: Tile) -> Resources:
        if device.target is None:
            raise PlanError(f"backend {backend.name!r} probed for registers, but {device.name} has no compile target")
        return _resources(backend, call.variant(tile), device.target)

    return backend.plan(call.problem, device, probe, options)


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
        options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
        return triton.compile(source, target=GPUTarget(*target), options=options)


def _ast_source(kernel: Any, variant: Variant, triton: ModuleType) -> Any:
    """The compiler's input; its form changed with Triton 3.3, which lists constants in the signature as well."""
    from triton.compiler import ASTSource

    types, constants = dict(variant.types), _constants(variant, triton)
    index = kernel.arg_names.index
    if _version(triton) >= (3, 3):
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        attributes = {(index(name),): [["tt.divisibility", _ALIGNMENT]] for name in variant.divisible}
        return ASTSource(kernel, signature, constants, attributes)
    from triton.backends.compiler import AttrsDescriptor

    hints = AttrsDescriptor.from_hints({index(name): _ALIGNMENT for name in variant.divisible})
    return ASTSource(kernel, types, constants, hints)


def _constants(variant: Variant, triton: ModuleType) -> dict[str, Any]:
    language = triton.language
    accumulators = {"fp32": language.float32, "fp64": language.float64}
    return {name: accumulators[value] if name == "ACC" else value for name, value in variant.constants}


def _bind_compiled(call: Call, launch_plan: LaunchPlan, device: DeviceProperties) -> Launch:
    assert device.target is not None
    variant = call.variant(launch_plan.tile)
    with _LOCK:
        triton = _import_triton()
        loaded = _load(variant, device.target, triton.runtime.driver.active.get_current_device())
    by_address = _version(triton) >= (3, 3)  # triton-ascend's 3.2 asks tensors for their shapes while it is profiled
    scalars = [value for name, value in call.scalars().items() if name in dict(variant.types)]
    if _version(triton) >= (3, 3):  # the launcher takes a value, which it ignores, for every constant too
        scalars = list(call.scalars().values()) + [value for name, value in variant.constants if name.isupper()]
    run, function, packed, programs = loaded.run, loaded.function, loaded.packed_metadata, launch_plan.programs

    def launch(stream: int, *tensors: Any) -> None:
        pointers = [tensor.data_ptr() for tensor in tensors] if by_address else tensors
        run(programs, 1, 1, stream, function, packed, None, None, None, *pointers, *scalars)

    return launch


@functools.lru_cache(maxsize=1024)
def _load(variant: Variant, target: tuple[str, int | str, int], index: int) -> Any:
    """A compiled kernel with its handles on the current device, `index`: a loaded kernel belongs to one device."""
    loaded = copy.copy(compile_variant(variant, target))
    loaded._init_handles()
    return loaded


def _bind_interpreted(call: Call, launch_plan: LaunchPlan) -> Launch:
    variant = call.variant(launch_plan.tile)
    with _LOCK:
        triton = _import_triton()
        kernel = getattr(_kernels(interpreted=True), variant.kernel)[(launch_plan.programs,)]
    constants = _constants(variant, triton)
    scalars = {name: value for name, value in call.scalars().items() if name not in constants}

    def launch(stream: int, *tensors: Any) -> None:
        import numpy

        names = [name for name, _ in variant.types][: len(tensors)]
        with _LOCK, interpreting(triton), numpy.errstate(all="ignore"):
            kernel(**dict(zip(names, tensors, strict=True)), **scalars, **constants)

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
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with interpret_flag(interpreted):
        spec.loader.exec_module(module)
    return module


def _version(triton: ModuleType) -> tuple[int, int]:
    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)
