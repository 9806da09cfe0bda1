"""What a kernel does to scores before their softmax: a factor, and where a mask lies. Arithmetic alone, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tridal.devices.types import ITEMSIZE
from tridal.runtime.row_layout import merged

MOST_ROWS = 2**31
"""Rows have to be fewer: a kernel counts them in 32 bits where a mask or causality hangs on their number."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """softmax(factor * x + mask), or of what a mask of bytes and causality leave of it. Nothing of it by default."""

    factor: float | None = None
    """What scores, or the gradient in a backward, are multiplied with; None is 1, for nothing."""
    causal: bool = False
    """Whether query i has columns 0 to i alone."""
    zero: bool = False
    """Whether a row of which nothing is left is zero; it is NaN otherwise."""
    mask: str | None = None
    """The mask's dtype: what a floating one holds is added, and where one of "uint8" is zero, nothing is left."""
    queries: int = 1
    """Row n is query n % queries of head n // queries % heads of batch n // queries // heads."""
    heads: int = 1
    strides: tuple[int, int, int, int] = (0, 0, 0, 0)
    """The mask's, in elements, for batch, head, query and column."""
    address: int = 0
    """The mask's, or as much of it as tells how it is aligned."""
    apart: int = 0
    """What divides the distance in elements of a row in the mask from the same row in the scores, for all rows."""

    @property
    def numbers(self) -> dict[str, int | float | None]:
        """What the kernel of a forward takes, by name."""
        names = ("mask_batch", "mask_head", "mask_query", "mask_col")
        strides = dict(zip(names, self.strides, strict=True))
        return {"factor": self.factor, "queries": self.queries, "heads": self.heads, **strides}

    def boundary(self, vector: int, cols: int, shift: int | None) -> int:
        """Bytes of which a mask's part of a tile starts at a multiple: of as many elements as `vector`, or 1.

        A tile of `cols` columns starts where the row does or, if the scores' first row is known to be `shift` elements
        off a vector's boundary, where the first whole vector of each row does: the mask has to lie alike then.
        """
        if self.mask is None or self.strides[-1] != 1 or cols % vector:
            return 1
        size = ITEMSIZE.get(self.mask, 1)
        if shift is None:
            proven = self.address % (vector * size) == 0 and math.gcd(*self.strides[:3]) % vector == 0
        else:
            alike = self.address % size == 0 and (self.address // size - shift) % vector == 0
            proven = alike and self.apart % vector == 0
        return vector * size if proven else 1


def place_mask(
    weighing: Weighing, shape: Sequence[int], strides: Sequence[int], mask_strides: Sequence[int], dim: int
) -> Weighing | None:
    """With rows numbered, and a mask found for each.

    Args:
        weighing: the rest of it, causal or not.
        shape, strides: of the scores, along whose dimension `dim` softmax goes; 0 <= dim < rank, no size is zero.
        mask_strides: of the mask, expanded to that shape.

    None if the dimensions besides `dim` need more than three strides, or there are too many rows.
    """
    if math.prod(shape) // shape[dim] >= MOST_ROWS:
        return None
    queries = len(shape) - 2 if weighing.causal else None  # a dimension of its own then, whatever its size
    levels = merged(shape, mask_strides, without=dim, apart=queries)
    if len(levels) > 3:
        return None
    inside = 1 if weighing.causal else 0  # levels that are to stay innermost; the others are the outermost
    outer, inner = levels[: len(levels) - inside], levels[len(levels) - inside :]
    missing: list[tuple[int, ...]] = [(1, 0)] * (3 - len(levels))
    (_, batch), (heads, head), (rows, query) = [*outer, *missing, *inner]
    apart = math.gcd(
        *(
            a - b
            for axis, (a, b) in enumerate(zip(strides, mask_strides, strict=True))
            if axis != dim and shape[axis] > 1
        )
    )
    placed = (batch, head, query, mask_strides[dim])
    return replace(weighing, queries=rows, heads=heads, strides=placed, apart=apart)
