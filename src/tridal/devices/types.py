"""The frozen data that the layers exchange, and the protocol of a backend. Imports the standard library only.

A tensor gives a `Problem`. A backend's `DeviceProperties` and its `plan` give a `LaunchPlan`. The runtime launches it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

Layout: TypeAlias = Literal["row", "inner", "strided"]
Schedule: TypeAlias = Literal["whole_row", "cooperative", "column_loop"]

SCHEDULES: tuple[str, ...] = get_args(Schedule)
FEATURES = ("peel", "reload", "scale_mask")
"""Optional features of a backend; `Backend.schedules` describes them."""

ITEMSIZE: Mapping[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes of one element of each dtype that a kernel reads or writes."""

DTYPE_ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
    "bf16": "bfloat16",
}
"""Other names of dtypes that the commands and `tridal.plan` take."""

RENAMED = {"Tile": "KernelConfig", "Algorithm": "Schedule", "algorithms": "schedules", "split": "programs_per_row"}
RENAMED |= {"algorithm": "schedule", "tile": "config", "edges": "peel", "rereads": "reload", "weighed": "scale_mask"}
"""The new name of each name of version 0.1."""
_RENAMED_VALUES = {"tile": "whole_row", "split": "cooperative", "looped": "column_loop", "masked": "scale_mask"}
"""The new names of schedules and features of version 0.1. For these, they take precedence over `RENAMED`."""


def new_name(old: str, value: bool = False) -> str:
    """Returns a hint for an error message if `old` is a name of version 0.1. Set `value` for a schedule or feature."""
    new = (RENAMED | _RENAMED_VALUES if value else RENAMED).get(old)
    return f"; {old!r} is called {new!r} since version 0.2" if new else ""


class _Renamed:
    """Base class whose errors for arguments and attributes of version 0.1 give their new names."""

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        for name in kwargs.keys() & RENAMED.keys():
            raise TypeError(f"{cls.__name__} has no argument {name!r}{new_name(name)}")
        return super().__new__(cls)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{new_name(name)}")


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """Properties of a device that plans depend on. Sizes are in bytes. None means "not known".

    A core is the unit that runs a program: an SM on CUDA, a vector core on Ascend, the process in the interpreter.
    """

    name: str
    arch: str
    cores: int
    core_name: str = "core"
    target: tuple[str, int | str, int] | None = None
    """Triton's target (backend, architecture, warp size), to compile without the device; None if there is none."""
    warp_size: int | None = None
    registers: int | None = None
    """32-bit registers per core."""
    shared_memory: int | None = None
    """Fast memory per core that programs share: shared memory on CUDA, the unified buffer on Ascend."""
    max_threads: int | None = None
    """Threads that can be resident on one core."""
    max_programs: int | None = None
    """Programs that can be resident on one core."""
    l2_cache: int | None = None
    memory: int | None = None
    aliases: tuple[str, ...] = field(default=(), kw_only=True)
    """Other names that `tridal plan --arch` takes, such as products of this architecture with the same limits."""


def find_architecture(name: str, known: Mapping[str, DeviceProperties]) -> str | None:
    """Returns the key in `known` for the name or alias of an architecture. Ignores case and punctuation."""
    wanted = _letters_and_digits(name)
    names = ((key, alias) for key, device in known.items() for alias in (key, *device.aliases))
    return next((key for key, alias in names if _letters_and_digits(alias) == wanted), None)


def _letters_and_digits(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


@dataclass(frozen=True, slots=True)
class Problem(_Renamed):
    """The traits of one call that a plan depends on. A problem has no op: two ops with equal traits get equal plans.

    The tensor is `outer` blocks of `inner` rows, and each row has `cols` elements. An op over the last dimension of a
    contiguous tensor has `outer == 1`. For an op over an inner dimension, `outer` counts the dimensions before it and
    `inner` those after it; neighbouring rows are then neighbours in memory.
    """

    cols: int
    inner: int
    outer: int = 1
    reads: tuple[str, ...] = ("float32",)
    """dtype of each input with a number per element. All but the first are contiguous."""
    writes: tuple[str, ...] = ("float32",)
    """dtype of each output with a number per element."""
    row_reads: tuple[str, ...] = ()
    """dtype of each input with a number per row."""
    column_reads: tuple[str, ...] = ()
    """dtype of each input with a number per column."""
    row_writes: tuple[str, ...] = ()
    """dtype of each output with a number per row."""
    passes: int = 3
    """Passes over a row: one for each statistic that depends on the one before it, and one that writes the results."""
    live_tiles: int = 1
    """Tiles of the accumulator's dtype that are live at the same time."""
    statistics: int = 2
    """Number of statistics that a program keeps for each row."""
    layout: Layout = "row"
    """Contiguous elements: those of a row ("row"), those of a column ("inner") or neither ("strided")."""
    aligned: bool = True
    """Whether vectors are aligned: the contiguous length, all other strides and all addresses are multiples of 16."""
    scale_mask: bool = False
    """Whether elements are scaled or masked when they are loaded, which adds loads and arithmetic per element."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.outer * self.inner

    def tiles(self, rows: int) -> int:
        """Number of tiles of `rows` neighbouring rows. A tile does not extend over two blocks."""
        return self.outer * -(-self.inner // rows)

    @property
    def dtype(self) -> str:
        """dtype of the first tensor that is read."""
        return self.reads[0]

    @property
    def itemsize(self) -> int:
        """Bytes of the widest element that is read or written."""
        return max(ITEMSIZE[dtype] for dtype in (*self.reads, *self.writes))

    @property
    def bytes_read(self) -> int:
        """Bytes that are read per element, all tensors together."""
        return sum(ITEMSIZE[dtype] for dtype in self.reads)

    @property
    def accumulator(self) -> int:
        """Bytes of one element of the statistics' dtype, which is float64 if a tensor is float64, else float32."""
        return 8 if "float64" in (*self.reads, *self.writes) else 4


@dataclass(frozen=True, slots=True)
class KernelConfig(_Renamed):
    """The compile-time part of a plan: the schedule, the tile and the warps. `rows` and `cols` are powers of two."""

    schedule: Schedule
    """"whole_row": one program computes whole rows. "cooperative": several programs compute one row together and
    exchange its statistics. "column_loop": one program loops over blocks of columns, twice."""
    rows: int
    cols: int
    num_warps: int = 4
    num_stages: int = 1
    programs_per_row: int = 1
    """1 unless the schedule is "cooperative", whose programs must all be resident at the same time."""
    max_registers: int | None = None
    """Limit on the registers of a thread; None leaves it to the compiler."""
    peel: bool = False
    """Whether the unaligned head and tail of each row are computed apart from its aligned vectors ("row" layout)."""
    exp2_bias: float | None = None
    """Mean relative error of the device's exp2 in float32. Kernels compute exp by exp2 and correct this error.
    Zero means exp2 without a correction. None means the device's exp."""
    persistent: bool = True
    """Whether a program loops over tiles. If not, there is one program per tile, and it needs fewer registers."""
    reload: bool = False
    """Whether each pass loads its elements again, from the core's cache, instead of keeping them in registers."""

    def __post_init__(self) -> None:
        """Rejects an unknown schedule."""
        if self.schedule not in SCHEDULES:
            hint = new_name(str(self.schedule), value=True)
            raise ValueError(f"unknown schedule {self.schedule!r}{hint} (known: {', '.join(SCHEDULES)})")


@dataclass(frozen=True, slots=True)
class Resources:
    """What the compiler reports for a kernel: 32-bit registers and bytes spilled to memory, both per thread, and bytes
    of shared memory per program."""

    registers: int
    spills: int
    shared_memory: int


@dataclass(frozen=True, slots=True)
class LaunchPlan(_Renamed):
    """The configuration and the number of programs for a problem on a device, and the reason for them in words."""

    config: KernelConfig
    programs: int
    reason: str
    occupancy: int | None = None
    """Programs that can be resident on one core; None if the backend does not know it."""
    resources: Resources | None = None

    @property
    def schedule(self) -> Schedule:
        """The schedule of the configuration."""
        return self.config.schedule

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {"schedule": self.schedule, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of one backend."""

    default: object
    expected: str
    """The accepted values in words, for an error message."""
    accepts: Callable[[object], bool] = field(repr=False)
    help: str = ""


Probe: TypeAlias = Callable[[KernelConfig], Resources]
"""Compiles the problem's kernel with a configuration and reports its resources. Results are cached."""


@runtime_checkable
class Backend(Protocol):
    """Protocol of backends. An entry point of the group `tridal.backends` names an instance or a module with this API.

    A backend needs no base class. It has no state. It is hashable, because caches use it as a key.
    """

    name: str
    """The name in `TRIDAL_DEVICE`. The entry point has the same name."""
    device_type: str
    """`torch.device.type` of its tensors. Several backends may serve one type; the settings choose one."""
    dtypes: frozenset[str]
    """Names of the floating-point dtypes that its kernels can read and write. torch computes other dtypes."""
    schedules: frozenset[str]
    """The members of `SCHEDULES` and `FEATURES` that its plans may use.

    "peel" and "reload" allow the fields of `KernelConfig` with these names. With "scale_mask", plans may assume that
    scaling and masking need no smaller tiles, although they take more memory.
    """
    interpreted: bool
    """Whether its kernels run in Triton's interpreter. Such a backend is used only if it is requested by name."""
    options: Mapping[str, Option]
    """Options of the backend by name."""
    install: str
    """One line that tells a user how to install the backend."""

    def __hash__(self) -> int: ...

    def unavailable(self) -> str | None:
        """Returns why the backend cannot run on this machine, or None if it can. Must be cheap and must not raise."""

    def device_count(self) -> int:
        """Returns the number of devices that are present."""

    def properties(self, index: int) -> DeviceProperties:
        """Returns the properties of a device that is present."""

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """Returns the properties of devices by the names that `tridal plan --arch` takes. They need not be present."""

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Returns the plan for a problem of at least one element. `options` holds a value for each option."""

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Returns the resources of a compiled kernel. `asm` has the compiler's output by stage, such as "cubin"."""

    def stream(self, index: int) -> int:
        """Returns the raw handle of the device's current stream, or 0 if the device has no streams."""

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """Returns a context manager that makes the device the current one."""
