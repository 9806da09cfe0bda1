"""The vocabulary of tridal: what a device is, what has to be computed, and how it will run. Standard library only.

Data flows one way: a tensor gives a `Problem`, a backend's `DeviceProperties` and its `plan` give a `LaunchPlan`,
and `tridal.launch` runs it. Everything here is frozen data, except `Backend`, which is what a plugin provides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

Op: TypeAlias = Literal["softmax", "log_softmax", "softmax_backward", "log_softmax_backward"]
Layout: TypeAlias = Literal["row", "inner", "strided"]
Algorithm: TypeAlias = Literal["tile", "split", "looped"]

ITEMSIZE: Mapping[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes of one element of each dtype that a kernel reads or writes."""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What a plan needs to know of a device. Sizes are bytes, per core where a core is named; None is "not known".

    A core is what runs a program: an SM on CUDA, a vector core on Ascend, the process in the interpreter.
    """

    name: str
    arch: str
    cores: int
    core_name: str = "core"
    target: tuple[str, int | str, int] | None = None
    """Triton's target (backend, architecture, warp size) to compile for without the device; None if there is none."""
    warp_size: int | None = None
    registers: int | None = None
    """32-bit registers a core."""
    shared_memory: int | None = None
    """Fast memory of a core that programs share: shared memory on CUDA, the unified buffer on Ascend."""
    max_threads: int | None = None
    """Threads that can be resident on a core."""
    max_programs: int | None = None
    """Programs that can be resident on a core."""
    l2_cache: int | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One softmax, as a kernel sees it: `outer` blocks of `inner` rows, each row `cols` elements long.

    A softmax over the last dimension of a contiguous tensor has `outer == 1`. One over an inner dimension has the
    dimensions before it as `outer`, and those after it as `inner`: neighbouring rows are then neighbours in memory.
    """

    op: Op
    cols: int
    inner: int
    outer: int = 1
    dtype: str = "float32"
    """dtype of the input (forward) or of the incoming gradient (backward)."""
    out_dtype: str = "float32"
    saved_dtype: str = "float32"
    """dtype of the saved output that a backward reads."""
    layout: Layout = "row"
    """Where a step of one element leads: along a row ("row"), to the next row ("inner"), or neither ("strided")."""
    aligned: bool = True
    """Whether the length, every stride and every address is such that all accesses can be whole vectors."""
    weighed: bool = False
    """Whether elements are scaled or masked on their way: there is more to read, or to compute, for each of them."""

    @property
    def rows(self) -> int:
        """Number of rows in all."""
        return self.outer * self.inner

    def tiles(self, rows: int) -> int:
        """Tiles of so many neighbouring rows: none reaches from one block into the next."""
        return self.outer * -(-self.inner // rows)

    @property
    def backward(self) -> bool:
        """Whether this is a gradient: two tensors are read, and one is written."""
        return self.op.endswith("_backward")

    @property
    def itemsize(self) -> int:
        """Bytes of the widest element read or written."""
        return max(ITEMSIZE[self.dtype], ITEMSIZE[self.out_dtype])

    @property
    def accumulator(self) -> int:
        """Bytes of the type that sums are kept in: float64 for float64, else float32."""
        return 8 if "float64" in (self.dtype, self.out_dtype) else 4


@dataclass(frozen=True, slots=True)
class Tile:
    """The compile-time half of a launch: which algorithm, on tiles of how many rows and columns, by how many warps.

    "tile" holds whole rows in a tile, "split" shares a row among several programs, "looped" goes over column tiles.
    Rows and columns are powers of two.
    """

    algorithm: Algorithm
    rows: int
    cols: int
    num_warps: int = 4
    num_stages: int = 1
    split: int = 1
    """Programs that share a row; above one only for "split", where all programs have to be resident at once."""
    max_registers: int | None = None
    """Registers that the compiler may give a thread; None leaves it to the compiler."""
    edges: bool = False
    """Whether the ends of rows that are not aligned are taken apart from their whole vectors ("row" layout only)."""
    exp2_bias: float | None = None
    """Mean relative error of the device's exp2 in float32, if exp is to be computed by that and to make up for it; zero
    if results don't show it. None takes the device's exp.
    """
    persistent: bool = True
    """Whether programs go on to further tiles. If not, there is one for each, and it takes fewer registers."""
    rereads: bool = False
    """Whether elements are read for each pass, from a core's cache, instead of being held in registers."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What the compiler reports of a kernel: 32-bit registers and spilled bytes a thread, shared memory in bytes."""

    registers: int
    spills: int
    shared_memory: int


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How a problem runs on a device, and why in words."""

    tile: Tile
    programs: int
    reason: str
    occupancy: int | None = None
    """Programs that fit on one core at once, where the backend knows."""
    resources: Resources | None = None

    @property
    def algorithm(self) -> Algorithm:
        """The tile's algorithm."""
        return self.tile.algorithm

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"algorithm": self.algorithm, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of one backend: its default, what is accepted, and that in words for an error message."""

    default: object
    expected: str
    accepts: Callable[[object], bool] = field(repr=False)
    help: str = ""


Probe: TypeAlias = Callable[[Tile], Resources]
"""Compiles the problem's kernel for a tile and reports what it uses. Cached: asking twice costs nothing."""


@runtime_checkable
class Backend(Protocol):
    """What a plugin provides: numbers, a stream and a guard. No base class, no state, nothing imported before a call.

    An instance (or a module) with these members is what an entry point of the group `tridal.backends` names.
    """

    name: str
    """As people write it in `TRIDAL_DEVICE`; the entry point has the same name."""
    device_type: str
    """`torch.device.type` of the tensors it serves. Several backends may serve one type; settings choose among them."""
    dtypes: frozenset[str]
    """Names of the floating dtypes its kernels can read and write; other dtypes go to torch."""
    algorithms: frozenset[str]
    """What its plans may ask for: some of `Algorithm`, "edges" if a tile may take the ends of rows apart, and "rereads"
    if it may read its elements again.

    And "masked" if its tiles for softmax do for scores that are scaled and masked on the way, which takes more memory;
    the problem is the same, and what a mask takes, only a probe tells.
    """
    interpreted: bool
    """Whether its kernels run in Triton's interpreter: then it serves tensors only when asked for by name."""
    options: Mapping[str, Option]
    """Its settings by name."""
    install: str
    """What a person has to do to get it, in one line."""

    def __hash__(self) -> int:
        """Backends are keys of caches."""
        ...

    def unavailable(self) -> str | None:
        """Why it can't run here, in words for people; None if it can. Cheap, and never raises."""
        ...

    def device_count(self) -> int:
        """Devices present."""
        ...

    def properties(self, index: int) -> DeviceProperties:
        """Properties of a device that is present."""
        ...

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """Devices that needn't be present, by the name that `tridal plan --arch` takes."""
        ...

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """The launch plan for a problem of at least one element. `options` holds a value for each of its settings."""
        ...

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Reads what a compiled kernel uses from the compiler's outputs by stage (say "cubin"), without a device."""
        ...

    def stream(self, index: int) -> int:
        """Raw handle of the device's current stream; 0 where streams don't exist."""
        ...

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """Makes a device the current one for a block of code."""
        ...
