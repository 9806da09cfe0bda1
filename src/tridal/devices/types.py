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
"""What a backend may support beside schedules: see `Backend.schedules`."""

ITEMSIZE: Mapping[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes of one element of each dtype that a kernel reads or writes."""

RENAMED = {"Tile": "KernelConfig", "Algorithm": "Schedule", "algorithms": "schedules", "split": "programs_per_row"}
RENAMED |= {"algorithm": "schedule", "tile": "config", "edges": "peel", "rereads": "reload", "weighed": "scale_mask"}
"""Names of version 0.1 and what replaces them."""
_RENAMED_VALUES = {"tile": "whole_row", "split": "cooperative", "looped": "column_loop", "masked": "scale_mask"}
"""The same for the names of schedules and features, where `RENAMED` has another name or none."""


def new_name(old: str, value: bool = False) -> str:
    """A hint for a name of version 0.1, or "". `value` says that it is the value of a schedule or feature."""
    new = (RENAMED | _RENAMED_VALUES if value else RENAMED).get(old)
    return f"; {old!r} is called {new!r} since version 0.2" if new else ""


class _Renamed:
    """Raises an error with the new name where a keyword or an attribute has a name of version 0.1."""

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        for name in kwargs.keys() & RENAMED.keys():
            raise TypeError(f"{cls.__name__} has no argument {name!r}{new_name(name)}")
        return super().__new__(cls)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{new_name(name)}")


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What a plan needs to know about a device. Sizes are bytes; None means "not known".

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
    """dtype of each tensor that is read once per element. All but the first are contiguous."""
    writes: tuple[str, ...] = ("float32",)
    """dtype of each tensor that is written once per element."""
    row_reads: tuple[str, ...] = ()
    """dtype of each tensor with a number per row that is read."""
    column_reads: tuple[str, ...] = ()
    """dtype of each tensor with a number per column that is read."""
    row_writes: tuple[str, ...] = ()
    """dtype of each tensor with a number per row that is written."""
    passes: int = 3
    """Passes over a row: one for each statistic that depends on the one before it, and one that writes the results."""
    live_tiles: int = 1
    """Tiles of the accumulator's dtype that are live at the same time."""
    statistics: int = 2
    """Numbers that a program keeps for each row."""
    layout: Layout = "row"
    """The index that moves by one element in memory: along a row ("row"), across rows ("inner"), none ("strided")."""
    aligned: bool = True
    """Whether the length, every stride and every address allow vector accesses only."""
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
        """Bytes of the dtype of the statistics: float64 if one tensor is float64, else float32."""
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
    """Above one for "cooperative" only. All programs of such a launch have to be resident at the same time."""
    max_registers: int | None = None
    """Limit on the registers of a thread; None leaves it to the compiler."""
    peel: bool = False
    """Whether the unaligned head and tail of each row are computed apart from its aligned vectors ("row" layout)."""
    exp2_bias: float | None = None
    """Mean relative error of the device's exp2 in float32. If it is given, exp is computed by exp2, and the error is
    corrected; zero means exp2 without a correction. None means the device's exp."""
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
    """How a problem runs on a device, and the reason in words."""

    config: KernelConfig
    programs: int
    reason: str
    occupancy: int | None = None
    """Programs that can be resident on one core, where the backend knows it."""
    resources: Resources | None = None

    @property
    def schedule(self) -> Schedule:
        """The schedule of the configuration."""
        return self.config.schedule

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
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
    """What a plugin provides. An entry point of the group `tridal.backends` names an instance or a module like this.

    There is no base class and no state. A backend is hashable, because it is a key of caches.
    """

    name: str
    """The name in `TRIDAL_DEVICE`. The entry point has the same name."""
    device_type: str
    """`torch.device.type` of its tensors. Several backends may serve one type; the settings choose one."""
    dtypes: frozenset[str]
    """Names of the floating-point dtypes that its kernels can read and write. torch computes other dtypes."""
    schedules: frozenset[str]
    """The members of `SCHEDULES` and `FEATURES` that its plans may use.

    "peel" and "reload" allow the fields of `KernelConfig` with these names. "scale_mask" says that tiles which fit
    without a scale and a mask also fit with them, although they need more memory.
    """
    interpreted: bool
    """Whether its kernels run in Triton's interpreter. Such a backend is used only if it is requested by name."""
    options: Mapping[str, Option]
    """Its settings, by name."""
    install: str
    """How a user gets it, in one line."""

    def __hash__(self) -> int: ...

    def unavailable(self) -> str | None:
        """The reason why it cannot run here, in words; None if it can. It is cheap and never raises."""

    def device_count(self) -> int:
        """Number of devices that are present."""

    def properties(self, index: int) -> DeviceProperties:
        """Properties of a device that is present."""

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """Devices that need not be present, by the name that `tridal plan --arch` takes."""

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """The plan for a problem of at least one element. `options` holds a value for each of its settings."""

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Reads the resources of a compiled kernel from the compiler's outputs by stage (say "cubin")."""

    def stream(self, index: int) -> int:
        """Raw handle of the device's current stream; 0 where there are no streams."""

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """A context in which the device is the current one."""
