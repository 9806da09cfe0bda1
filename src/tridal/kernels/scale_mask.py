"""Scale, mask and causal masking of elements after they are loaded.

Rows are numbered: row n is query n % queries of head n // queries % heads of batch n // queries // heads. The mask has
a stride for each of these, zero where it is broadcast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tridal.kernels.text_plan import Area, times

if TYPE_CHECKING:
    from tridal.kernels.pieces import Writer


def scale_mask(w: Writer, area: Area, x: str) -> None:
    """Writes `x` times the scale plus the mask, and -inf where a boolean mask is 0 or a column is not visible.

    Elements out of bounds stay -inf, which is their padding, with any scale.
    """
    p, has_mask = w.plan, "score_mask" in w.plan.arguments
    columns = "column_edge" if area is p.edge else area("columns")
    begin = area("begin") if area is not p.edge and (p.begins or area is p.chunk) else "0"
    names = {"X": x, "IN_BOUNDS": area("in_bounds"), "COLUMNS": columns}
    if "scale" in p.arguments:
        w('X = tl.where(IN_BOUNDS, X * scale, -float("inf"))', **names)
    query = "query" if p.number("queries") != "1" else "0"
    terms = _mask_terms(w, query) if has_mask else []
    used = " ".join(terms).replace("mask_query", "stride") + query * p.causal  # a stride is no use of the query
    if "row_number" in used or "query" in used:
        row = area.across(f"tl.arange(0, {p.rows})") if p.rows > 1 else "0"
        w("row_number = tl.cast(block * inner + row, tl.int32) + ROW", ROW=row)
    if "query" in used:
        w("query = row_number % QUERIES")
    if has_mask:
        w(f"mask_at = {' + '.join(['score_mask', *terms, *_along(w, begin, columns)])}")
        if p.rows > 1 and not any("row_number" in term or "(query," in term for term in terms):
            w("mask_at = tl.broadcast_to(mask_at, IN_BOUNDS.shape)", **names)  # Triton 3.3 does not do it for a load
        if area is not p.edge and p.mask_bytes > 1:
            w("mask_at = tl.multiple_of(mask_at, [1, MASK_BYTES])")
        w("mask = tl.load(mask_at, mask=IN_BOUNDS, other=0)", **names)
        w('X = tl.where(mask != 0, X, -float("inf"))' if p.mask_is_bool else "X += mask.to(ACC)", **names)
    if p.causal:
        w('X = tl.where(COLUMNS <= QUERY - BEGIN, X, -float("inf"))', **names, QUERY=query, BEGIN=begin)


def _mask_terms(w: Writer, query: str) -> list[str]:
    """Writes the terms of the position of a row in the mask."""
    positions = {
        "mask_batch": "tl.cast(row_number // QUERIES // HEADS, tl.int64)",
        "mask_query": f"tl.cast({query}, tl.int64)",
        "mask_head": "tl.cast(row_number // QUERIES % HEADS, tl.int64)",
    }
    strides = {name: w.plan.number(name) for name in positions}
    return [times(position, strides[name]) for name, position in positions.items() if strides[name] != "0"]


def _along(w: Writer, begin: str, columns: str) -> list[str]:
    """Writes the terms of the position of each element in a row of the mask."""
    col = w.plan.number("mask_col")
    if col == "0":  # pointers have the shape of the tile
        return [f"tl.zeros_like({columns})"]
    return [times(begin, "1" if col == "1" else f"{col}.to(tl.int64)")] * (begin != "0") + [times(columns, col)]
