"""A problem and the properties of a device: the data that a plan depends on. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tridal.errors import PlanError

Layout: TypeAlias = Literal["row", "inner", "strided"]

ITEMSIZE: Mapping[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes of one element of each dtype that a kernel reads or writes."""

DTYPE_ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
    "bf16": "bfloat16",
}
"""Other names of dtypes that the commands and `tridal.plan` take."""

ALIGNMENT = 16
"""Bytes of the widest vector access. Triton also specializes integers on divisibility by this number."""

MAX_TILE = 1 << 20
"""Elements of the largest tensor in a Triton kernel."""

MAX_32_BIT_ROWS = 2**28
"""The largest number of rows for which kernels number tiles with 32 bits.

Because there are at most as many tiles as rows, and as many groups of programs as tiles, the largest number that a
kernel computes with 32 bits is at most five times the rows: `tridal.kernels.tile_counter.iterations`.
"""
MAX_32_BIT_ELEMENTS = 2**31
"""The largest number of elements with 32-bit offsets. No bucket of rows has numbers on both sides of it."""

_EXACT_BITS, _FINE_BITS = 5, 11
"""Numbers of rows up to 2^5 are exact, those up to 2^11 have five significant bits, and larger ones four."""
EXACT_ROWS = 1 << _EXACT_BITS
"""The bucket of up to so many rows has one number."""


def round_rows(rows: int) -> int:
    """Rounds up to the largest number of rows of a bucket, for which a call is planned.

    Numbers up to 32 have a bucket each. Those up to 2,048 are rounded up to five significant bits, so that rounding
    adds less than 1/16. Larger ones are rounded up to four significant bits, which adds less than 1/8.

    Cooperative plans of few rows depend on the number of programs per core. The last of these decisions changes at
    about eight rows per core: 2,048 rows on 256 cores. With more rows, few decisions depend on their number. On an
    H100, 20 calls with rows inside of buckets took 1.003 of the time that they take with plans of their own number of
    rows, and 1.020 with powers of two above 2,048.

    Example:
        >>> [tridal.types.round_rows(rows) for rows in (32, 33, 1000, 2049)]
        [32, 34, 1024, 2304]
    """
    shift = _bucket_bits(rows)
    return -(-rows >> shift) << shift


def _bucket_bits(rows: int) -> int:
    """Counts the bits that are zero in all numbers to which rows like these are rounded."""
    bits = (rows - 1).bit_length()  # 2**(bits - 1) < rows <= 2**bits
    return max(0, bits - _EXACT_BITS) if bits <= _FINE_BITS else bits - _EXACT_BITS + 1


def row_bucket(rows: int, cols: int) -> tuple[int, int]:
    """Finds the first and the last number of rows of `cols` columns in the bucket of `rows`.

    A bucket that would cross `MAX_32_BIT_ELEMENTS` is divided into two. None crosses `MAX_32_BIT_ROWS`, a power of two.

    Example:
        >>> from tridal.devices.problem import row_bucket
        >>> row_bucket(1000, 781), row_bucket(42_000, 50_257), row_bucket(43_000, 50_257)
        ((993, 1024), (40961, 42730), (42731, 45056))
    """
    last, limit = round_rows(rows), MAX_32_BIT_ELEMENTS // cols
    first = last - (1 << _bucket_bits(rows)) + 1
    if first <= limit < last:
        return (first, limit) if rows <= limit else (limit + 1, last)
    return first, last


def next_power_of_2(value: int, most: int | None = None) -> int:
    """Rounds up to a power of two of at most `most`, for the sizes of a tile.

    Example:
        >>> tridal.types.next_power_of_2(1000), tridal.types.next_power_of_2(1000, 256)
        (1024, 256)
    """
    power = 1 << (value - 1).bit_length()
    return power if most is None else min(power, most)


Target: TypeAlias = tuple[str, int | str | Mapping[str, Any], int]
"""Triton's target: the name of its backend, the architecture and the warp size."""


class Architecture(dict[str, Any]):
    """An architecture of a target that is a mapping, in the order of its keys. It is hashable, so do not change it.

    It is a dict, because Triton's compilers test for one.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """Properties of a device that plans depend on. Sizes are in bytes. None means "not known".

    A core is the unit that runs a program: an SM on CUDA, a vector core on Ascend, the process in the interpreter.
    """

    name: str
    """Name of the product, for users."""
    arch: str
    """Name of the architecture, for users and for `tridal plan --arch`."""
    cores: int
    """Number of cores."""
    core_name: str = "core"
    """What the vendor calls a core, for users."""
    target: Target | None = None
    """Triton's target (backend, architecture, warp size), to compile without the device; None if there is none. The
    architecture is an integer, text, or a mapping with text as keys."""
    warp_size: int | None = None
    """Threads per warp."""
    registers: int | None = None
    """32-bit registers per core."""
    shared_memory: int | None = None
    """Bytes of fast memory per core that programs share: shared memory on CUDA, the unified buffer on Ascend."""
    max_threads: int | None = None
    """Threads that can be resident on one core."""
    max_programs: int | None = None
    """Programs that can be resident on one core."""
    l2_cache: int | None = None
    """Bytes of the cache that all cores share."""
    memory: int | None = None
    """Bytes of the device's memory."""
    bandwidth: int | None = None
    """Bytes per second that the device's memory can transfer, reads and writes together, in theory. A copy reaches 0.85
    to 0.95 of it."""
    aliases: tuple[str, ...] = field(default=(), kw_only=True)
    """Other names that `tridal plan --arch` takes, such as products of this architecture with the same limits."""

    def __post_init__(self) -> None:
        # The target of a plugin is checked later. One with an architecture that is hashable can be a key of caches.
        if type(self.target) is tuple and len(self.target) == 3 and isinstance(self.target[1], Mapping):
            architecture = Architecture(sorted(self.target[1].items(), key=str))
            object.__setattr__(self, "target", (self.target[0], architecture, self.target[2]))


def find_architecture(name: str, known: Mapping[str, DeviceProperties]) -> str | None:
    """Finds the key in `known` for the name or alias of an architecture. Ignores case and punctuation."""
    wanted = _letters_and_digits(name)
    names = ((key, alias) for key, device in known.items() for alias in (key, *device.aliases))
    return next((key for key, alias in names if _letters_and_digits(alias) == wanted), None)


def _letters_and_digits(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


@dataclass(frozen=True, slots=True)
class Problem:
    """The traits of one call that a plan depends on. A problem has no op: two ops with equal traits get equal plans.

    The tensor is `outer` blocks of `inner` rows, and each row has `cols` elements. An op over the last dimension of a
    contiguous tensor has `outer == 1`. For an op over an inner dimension, `outer` counts the dimensions before it and
    `inner` those after it; neighboring rows are then neighbors in memory.

    A backend sees rounded numbers: `outer` and `inner` are the largest of their buckets, see `round_rows`. `inner` is
    exact in the layout "inner", where it is also the stride between columns. A plan serves all numbers of a bucket.
    """

    cols: int
    """Elements per row."""
    inner: int
    """Rows per block."""
    outer: int = 1
    """Number of blocks."""
    reads: tuple[str, ...] = ("float32",)
    """dtype of each input with a number per element."""
    writes: tuple[str, ...] = ("float32",)
    """dtype of each output with a number per element."""
    added: tuple[str, ...] = ()
    """dtype of an input with a number per element that is read when the first output is written, and added to it."""
    row_reads: tuple[str, ...] = ()
    """dtype of each input with a number per row."""
    column_reads: tuple[str, ...] = ()
    """dtype of each input with a number per column."""
    row_writes: tuple[str, ...] = ()
    """dtype of each output with a number per row."""
    column_writes: tuple[str, ...] = ()
    """dtype of each output with a number per column: the sums of a term over the rows of a group of programs. Programs
    keep these sums in registers or in fast memory, as many as a tile has elements."""
    passes: int = 3
    """Passes over a row: one for each statistic that depends on the one before it, and one that writes the results."""
    live_tiles: int = 1
    """Tiles of the accumulator's dtype that are live at the same time."""
    statistics: int = 2
    """Number of statistics that a program keeps for each row."""
    layout: Layout = "row"
    """Contiguous elements: those of a row ("row"), those of a column ("inner") or neither ("strided")."""
    aligned: bool = True
    """Whether vectors are aligned: the contiguous length and all other strides are multiples of 16, in elements, and so
    are all addresses, in bytes."""
    scale_mask: bool = False
    """Whether elements are scaled or masked when they are loaded, which adds loads and arithmetic per element."""
    per_block: bool = False
    """Whether numbers per column belong to one of the `outer` blocks. A launch rounds the number of persistent programs
    down to a multiple of `blocks`, but each block has one."""
    whole_rows: bool = False
    """Whether a program has to hold whole rows, because it reduces them again and again. The schedule is then
    "whole_row", without `peel` and `reload`."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.outer * self.inner

    def tiles(self, rows: int) -> int:
        """Number of tiles of `rows` neighboring rows. A tile does not extend over two blocks."""
        if rows < 1:
            raise PlanError(f"rows = {rows!r}: a tile has at least one row")
        return self.outer * -(-self.inner // rows)

    @property
    def blocks(self) -> int:
        """Number of blocks with numbers per column of their own. Each program computes tiles of one of them."""
        return self.outer if self.per_block else 1

    @property
    def statistics_only(self) -> bool:
        """Whether only numbers per row are written, from elements without a mask. `column_loop` can peel such rows."""
        return not (self.writes or self.column_writes or self.scale_mask)

    @property
    def dtype(self) -> str:
        """dtype of the first tensor that is read."""
        return self.reads[0]

    @property
    def element_dtypes(self) -> tuple[str, ...]:
        """dtype of each tensor with a number per element."""
        return (*self.reads, *self.added, *self.writes)

    @property
    def itemsize(self) -> int:
        """Bytes of the widest element that is read or written."""
        return max(ITEMSIZE[dtype] for dtype in self.element_dtypes)

    @property
    def bytes_read(self) -> int:
        """Bytes per element of all tensors in `reads`."""
        return sum(ITEMSIZE[dtype] for dtype in self.reads)

    @property
    def accumulator(self) -> int:
        """Bytes of one element of the statistics' dtype, which is float64 if a tensor is float64, else float32."""
        others = (*self.row_reads, *self.column_reads, *self.row_writes, *self.column_writes)
        return 8 if "float64" in (*self.element_dtypes, *others) else 4

    @property
    def can_exchange(self) -> bool:
        """Whether cooperative programs can exchange the statistics of a row: at most two numbers in float32.

        If numbers per column belong to blocks, a launch may have more programs than are resident.
        """
        return self.statistics <= 2 and self.accumulator == 4 and not (self.per_block or self.whole_rows)

    @property
    def vector(self) -> int:
        """Elements of the narrowest dtype in a vector of 16 bytes. A peeled head or tail has fewer elements."""
        return ALIGNMENT // min(ITEMSIZE[dtype] for dtype in self.element_dtypes)
