"""Scale, mask and causal masking, as a kernel applies them to loaded elements. Arithmetic only; needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tridal.devices.types import ITEMSIZE
from tridal.runtime.row_layout import coalesce_dims

ROW_LIMIT = 2**31
"""With a mask or causal masking, there must be fewer rows than this, because kernels use 32-bit row numbers."""


@dataclass(frozen=True, slots=True)
class ScaleMask:
    """Scale, mask and causal parameters of a kernel call; the defaults change nothing.

    An element x becomes scale * x + mask, or -inf where a boolean mask or causal masking excludes it.
    """

    scale: float | None = None
    """The factor of each element. None means 1 and compiles no multiplication."""
    causal: bool = False
    """Whether query i sees columns 0 to i only."""
    zero_masked_rows: bool = False
    """Whether the result is zero for a row whose elements are all excluded. Otherwise it is NaN."""
    mask: str | None = None
    """The dtype of the mask. A floating-point mask is added. A "uint8" mask is boolean and excludes where it is 0."""
    queries: int = 1
    """Queries of a head. Row n is query n % queries of head n // queries % heads of batch n // queries // heads."""
    heads: int = 1
    """Heads of a batch."""
    strides: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Strides of the mask in elements, for batch, head, query and column. A stride is 0 where the mask is broadcast."""
    address: int = 0
    """The address of the mask. The last bits suffice, because it is used only to find the alignment."""
    row_distance: int = 0
    """A common divisor, over all rows, of a row's offset in the mask minus its offset in the scores, in elements."""

    @property
    def numbers(self) -> dict[str, int | float | None]:
        """The values of the kernel's scale and mask arguments, by name."""
        names = ("mask_batch", "mask_head", "mask_query", "mask_col")
        strides = dict(zip(names, self.strides, strict=True))
        return {"scale": self.scale, "queries": self.queries, "heads": self.heads, **strides}

    def alignment(self, vector: int, cols: int, misalignment: int | None) -> int:
        """The bytes of alignment that the compiler may assume for the mask of each row of a tile, at least 1.

        A tile has `cols` columns, in vectors of `vector` elements. Without `peel`, it starts at the first element of a
        row, and `misalignment` is None. With `peel`, it starts at the first vector boundary of each row; `misalignment`
        is the distance of the first row from a vector boundary, and the mask needs the same distance in every row.
        """
        if self.mask is None or self.strides[-1] != 1 or cols % vector:
            return 1
        size = ITEMSIZE.get(self.mask, 1)
        if misalignment is None:
            proven = self.address % (vector * size) == 0 and math.gcd(*self.strides[:3]) % vector == 0
        else:
            same = self.address % size == 0 and (self.address // size - misalignment) % vector == 0
            proven = same and self.row_distance % vector == 0
        return vector * size if proven else 1


def locate_mask(
    scale_mask: ScaleMask, shape: Sequence[int], strides: Sequence[int], mask_strides: Sequence[int], dim: int
) -> ScaleMask | None:
    """Sets the fields that a kernel needs to compute the position of a row in the mask.

    `shape` and `strides` are those of the scores, `mask_strides` those of the mask expanded to that shape. Returns None
    if the dims other than `dim` need more than three strides, or if there are `ROW_LIMIT` rows or more.
    """
    if math.prod(shape) // shape[dim] >= ROW_LIMIT:
        return None
    queries = len(shape) - 2 if scale_mask.causal else None  # the kernel needs the index of each query
    levels = coalesce_dims(shape, mask_strides, without=dim, separate=queries)
    if len(levels) > 3:
        return None
    innermost = 1 if scale_mask.causal else 0  # the queries are the last of three dims
    outer, inner = levels[: len(levels) - innermost], levels[len(levels) - innermost :]
    missing: list[tuple[int, ...]] = [(1, 0)] * (3 - len(levels))
    (_, batch), (heads, head), (rows, query) = [*outer, *missing, *inner]
    distances = [a - b for a, b in zip(strides, mask_strides, strict=True)]
    row_distance = math.gcd(*(d for axis, d in enumerate(distances) if axis != dim and shape[axis] > 1))
    located = (batch, head, query, mask_strides[dim])
    return replace(scale_mask, queries=rows, heads=heads, strides=located, row_distance=row_distance)
