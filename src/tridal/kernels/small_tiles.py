"""The small tile beside the body of a row: its unaligned head and tail, or the columns that the body does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tridal.kernels.row_kernel import Statistic

if TYPE_CHECKING:
    from tridal.kernels.pieces import Writer


def edges(w: Writer) -> None:
    """The columns of heads and tails. The first program of a row computes them."""
    p, head = w.plan, "head"
    if not p.peel:
        return
    if p.rows > 1:
        head = "head_edge"
        w(f"head_edge = {p.head('rows_edge')}")
    w("edge = tl.arange(0, 2 * VECTOR)[:, None]  # the head, then the tail")
    w("tail = HEAD + (cols - HEAD) // VECTOR * VECTOR", HEAD=head)
    w("column_edge = tl.where(edge < VECTOR, edge, tail + edge - VECTOR)")
    w("in_bounds_edge = column_edge < tl.where(edge < VECTOR, HEAD, cols)", HEAD=head)
    if p.rank:  # Triton 3.3's interpreter cannot combine a tensor with a Python bool, so rank becomes a tensor
        w("in_bounds_edge = in_bounds_edge & (tl.cast(rank, tl.int32) == 0)")
    if p.rows > 1:
        w("in_bounds_edge = in_bounds_edge & (rows_edge < inner - row)")


def rest_bounds(w: Writer) -> None:
    """The elements of a row with two tiles that are in bounds. Only the rest has padding, so only it is masked."""
    w(f"in_bounds = tl.full({w.plan.shape}, True, tl.int1)")
    w("in_bounds_rest = columns_rest < cols")


def merge_rest(w: Writer, s: Statistic) -> None:
    """Combines a statistic of the body with that of the rest, as scalars.

    If they were combined as tensors of one element, Triton would give both tiles the layout of one of them, and move
    the elements of the other one through shared memory.
    """
    how = "max" if s.reduce == "max" else "sum"
    body, rest = f"tl.{how}({s.name}, 0)", f"tl.{how}({s.name}_rest, 0)"
    both = f"tl.maximum({body}, {rest})" if how == "max" else f"{body} + {rest}"
    w(f"{s.name} = tl.full([1], {both}, ACC)")
