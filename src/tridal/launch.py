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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from tridal.errors import PlanError, PluginError
from tridal.geometry import Geometry
from tridal.interpreting import interpret_flag, interpreted_library, interpreting
from tridal.shortcut import shortcut
from tridal.types import ITEMSIZE, Backend, DeviceProperties, LaunchPlan, Op, Problem, Resources, Tile
from tridal.weighing import Weighing

_SOURCE = Path(__file__).with_name("kernels") / "softmax.py"
_LOCK = threading.RLock()  # Triton's first import, its compiler and its interpreter do not bear company
_SIZES = ("outer", "inner", "cols")
_STRIDES = ("in_outer", "in_inner", "in_col", "out_outer", "out_inner", "out_col")
TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "uint8": "u8"}
ALIGNMENT = 16  # bytes of a full vector access, and what Triton specialises a multiple of
_BLOCK = 32  # parts of a row that show their (max, sum) together: the kernel's own
ADDRESS_BITS = 63  # of an address: what tells where its vectors, of up to 16 elements of 4 bytes, begin

PLAIN = Weighing()
"""Of a call whose scores are taken as they are."""

_UNITS = {"row": ("in_col", "out_col"), "inner": ("in_inner", "out_inner"), "strided": ()}
"""Strides that are one, by layout."""


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
    max_registers: int | None
    cooperative: bool
    """Whether all programs of a launch have to be resident at once."""


@dataclass(frozen=True, slots=True)
class Call:
    """A problem together with where its tensors lie: all that decides on the variant but the tile."""

    problem: Problem
    geometry: Geometry
    addresses: tuple[int, ...]
    """Of each tensor (out, input and saved output in a backward) the address, or as much as `ADDRESS_BITS` of it."""
    weighing: Weighing = PLAIN

    @classmethod
    def of(
        cls,
        op: Op,
        geometry: Geometry,
        dtypes: tuple[str, ...],
        addresses: tuple[int, ...] | None = None,
        weighing: Weighing = PLAIN,
    ) -> Call:
        """The call for tensors of these dtypes, in the order of `addresses`, which default to aligned ones."""
        addresses = addresses or (0,) * len(dtypes)
        g = geometry
        units = _UNITS[g.layout]
        strides = [
            value for name, value in zip(_STRIDES, (*g.in_strides, *g.out_strides), strict=True) if name not in units
        ]
        lengths = [*strides, g.inner if g.layout == "inner" else g.cols]
        problem = Problem(
            op=op,
            cols=g.cols,
            inner=g.inner,
            outer=g.outer,
            dtype=dtypes[1],
            out_dtype=dtypes[0],
            saved_dtype=dtypes[-1] if len(dtypes) > 2 else dtypes[0],
            layout=g.layout,
            aligned=not any(value % ALIGNMENT for value in (*lengths, *addresses)),
        )
        return cls(problem, geometry, addresses, weighing)

    @property
    def vector(self) -> int:
        """Elements of a vector access of 16 bytes, of the narrowest tensor."""
        p = self.problem
        dtypes = (p.out_dtype, p.dtype, p.saved_dtype)[: len(self.addresses)]
        return ALIGNMENT // min(ITEMSIZE[dtype] for dtype in dtypes)

    def _shifts(self) -> list[int]:
        """Elements that each tensor's first row is off a vector's boundary."""
        p = self.problem
        dtypes = (p.out_dtype, p.dtype, p.saved_dtype)
        return [a // ITEMSIZE[dtype] % self.vector for a, dtype in zip(self.addresses, dtypes, strict=False)]

    def scalars(self, tile: Tile) -> dict[str, Any]:
        """Run-time numbers of the kernel by name."""
        g = self.geometry
        numbers = (g.outer, g.inner, g.cols, *g.in_strides, *g.out_strides)
        values: dict[str, Any] = dict(zip(_SIZES + _STRIDES, numbers, strict=True))
        if tile.algorithm != "looped":
            values["shift"] = self._shifts()[1] if tile.edges else 0
        return values | ({"factor": self.weighing.factor} if self.problem.backward else self.weighing.numbers)

    def variant(self, tile: Tile) -> Variant:
        """What the compiler has to specialise on for this call with this tile.

        A stride of one is a constant, since contiguity decides how memory is read. The number of rows never is: a new
        batch size compiles nothing, unless it passes 32 bits. Where a mask does not need a number, it is one, too.
        """
        p, g, w = self.problem, self.geometry, self.weighing
        pointers = {"out_ptr": p.out_dtype, "in_ptr": p.dtype}
        if p.backward:
            pointers["y_ptr"] = p.saved_dtype
        if w.mask is not None:
            pointers["mask_ptr"] = w.mask
        units = _UNITS[p.layout]
        constants: dict[str, Any] = dict.fromkeys(units, 1)
        constants |= {
            "LOG": p.op.startswith("log_"),
            "ACC": "fp64" if p.accumulator == 8 else "fp32",
            "EXP2_BIAS": tile.exp2_bias,
            "WIDE": max(g.extent(tile.rows, tile.cols), (tile.cols - 1) * w.strides[-1]) >= 2**31,
            "AXIS": 0 if p.layout == "inner" else 1,
            "ROWS": tile.rows,
            "COLS": tile.cols,
            "STAGES": tile.num_stages,
        }
        if tile.algorithm != "looped":
            constants |= self._sharing(tile)
        if p.backward:
            constants |= {} if w.factor is not None else {"factor": None}
        else:
            constants |= self._weighing(tile)
        run_time = {name: value for name, value in self.scalars(tile).items() if name not in constants}
        unspecialised = {"outer", "shift", *w.numbers} | ({"inner"} if p.layout != "inner" else set())
        divisible = [n for n, a in zip(pointers, self.addresses, strict=False) if a % ALIGNMENT == 0]
        divisible += [n for n, value in run_time.items() if n not in unspecialised and value % ALIGNMENT == 0]
        types = {name: f"*{TYPES[dtype]}" for name, dtype in pointers.items()}
        if tile.split > 1:
            types["words"] = "*i64"
            divisible.append("words")
        types |= {name: "i32" if value < 2**31 else "i64" for name, value in run_time.items()}
        if "factor" in run_time:
            types["factor"] = constants["ACC"]
        direction = "backward" if p.backward else "forward"
        return Variant(
            kernel=direction + "_looped" * (tile.algorithm == "looped"),
            types=tuple(types.items()),
            constants=tuple(constants.items()),
            divisible=tuple(divisible),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            max_registers=tile.max_registers,
            cooperative=tile.split > 1,
        )

    def _sharing(self, tile: Tile) -> dict[str, Any]:
        """Constants of the kernels that hold rows whole: how a row is shared, and what its ends are like."""
        g, vector, shifts = self.geometry, self.vector, self._shifts()
        strides = zip(g.in_strides[:2], g.out_strides[:2], strict=True)
        alike = len(set(shifts)) == 1 and all((read - written) % vector == 0 for read, written in strides)
        unused: dict[str, Any] = {} if tile.split > 1 else {"words": None}
        if not tile.edges:
            unused["shift"] = 0
        return unused | {
            "SPLIT": tile.split,
            "PARTS": _parts(tile),
            "WORDS": _words(tile),
            "EDGES": tile.edges,
            "VECTOR": vector,
            "ALIGNED": tile.edges and alike,
        }

    def _weighing(self, tile: Tile) -> dict[str, Any]:
        """Constants of a forward that tell how scores are weighed: all of its numbers, where nothing is done."""
        w = self.weighing
        constants: dict[str, Any] = {} if w.mask is not None else {"mask_ptr": None}
        constants |= {n: v for n, v in w.numbers.items() if v is None or (n != "factor" and v in (0, 1))}
        return constants | {"CAUSAL": w.causal, "ZERO": w.zero, "MASK_BYTES": self._mask_bytes(tile)}

    def _mask_bytes(self, tile: Tile) -> int:
        if self.problem.layout == "inner":  # then a tile's vectors lie across rows
            return 1
        return self.weighing.boundary(self.vector, tile.cols, self._shifts()[1] if tile.edges else None)

    def words(self, launch_plan: LaunchPlan) -> int:
        """64-bit words, zero before and after, that the programs of a launch exchange through."""
        tile = launch_plan.tile
        if tile.split == 1:
            return 0
        tiles = self.geometry.outer * -(-self.geometry.inner // tile.rows)
        return tiles * _words(tile) + launch_plan.programs // tile.split


def _parts(tile: Tile) -> int:
    """Parts of a tile of several rows, rounded up until no word is polled by two warps.

    Warps that poll the same words may see them change at different times, and leave a loop with a barrier one by one.
    """
    least = 2 * 32 * tile.num_warps // tile.rows
    return max(1 << (tile.split - 1).bit_length(), least if tile.split > 1 < tile.rows else 1)


def _words(tile: Tile) -> int:
    """Words of a tile: one for each part of each row, and one for each block of parts where a row has many."""
    blocks = -(-tile.split // _BLOCK) if tile.rows == 1 and tile.split > 2 * _BLOCK else 0
    return tile.split * tile.rows + blocks


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
    if launch_plan.programs < 1:
        raise PlanError(f"backend {backend.name!r} planned {launch_plan.programs} programs for {call.problem}")
    bind = _bind_interpreted if backend.interpreted else _bind_compiled
    return Prepared(launch_plan, bind(call, launch_plan, device), call.words(launch_plan))


def plan(call: Call, backend: Backend, device: DeviceProperties, options: Mapping[str, Any]) -> LaunchPlan:
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
