"""Some elements of a row: the text that chooses them, that stores numbers of them, and that loads such numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tridal.kernels.row_kernel import Statistic

if TYPE_CHECKING:
    from tridal.kernels.pieces import Writer


def choose(w: Writer, statistic: Statistic, later: Collection[Statistic]) -> None:
    """Chooses the elements with the largest terms, and loads them again for later statistics and for outputs."""
    p, k, area = w.plan, w.kernel, w.plan.top_area
    width = max(2, 1 << (k.top - 1).bit_length())  # triton-ascend cannot load a tile of one column
    w("number_top = INDEX", INDEX=area.along(f"tl.arange(0, {width})"))
    term = w.write_term(statistic, p.body)
    columns = f"top_columns({term}, {p.column(p.body)}, in_bounds, number_top, {k.top}, {p.axis})"
    w("column_top = COLUMNS", COLUMNS=columns + p.int64)
    rows = f" & {area.across('row_in_bounds')}" * (p.rows > 1)
    w(f"in_bounds_top = (number_top < TOP){rows}")
    used = p.used("top_writes", statistics=later)
    w.load(area, used, aligned=False)
    for name in [name for name in k.column_reads if name in used]:
        w(f"X = tl.load({name}_ptr + column_top, mask=in_bounds_top, other=0).to(ACC)", X=area(name))


def store_top(w: Writer) -> None:
    """Stores a number per chosen element."""
    p, k, area = w.plan, w.kernel, w.plan.top_area
    if k.top_writes:
        w("top_at = ROW * TOP + number_top", ROW=area.across(f"({p.row_number})"))
    for name in k.top_writes:
        value = w.write_call("top_writes", name, area)
        w(f"tl.store({name}_per_top + top_at, VALUE, mask=in_bounds_top)", VALUE=value)


def load_top(w: Writer) -> None:
    """Loads the numbers of some columns, and puts them where the elements of these columns are."""
    p, k = w.plan, w.kernel
    if k.top_index is None:
        return
    names = [name for name in k.top_reads if name in p.all_used]
    w("POSITION = tl.full(SHAPE, TOP, tl.int32)", POSITION=k.top_index, SHAPE=p.shape)
    for name in names:
        w("X = tl.zeros(SHAPE, ACC)", X=name, SHAPE=p.shape)
    mask = w.plan.row_mask("")
    w("top_row = (ROW) * TOP", ROW=p.row_number)
    load = f"tl.load(POINTER + top_row + number{mask}{', other=0' if mask else ''})"
    with w("for number in tl.static_range(0, TOP):"):
        w(f"top_column = narrow_index({load})", POINTER=f"{k.top_index}_ptr")
        w("is_top = COLUMN == AT", COLUMN=p.column(p.body), AT=p.body.across("top_column"))
        w("POSITION = tl.where(is_top, number, POSITION)", POSITION=k.top_index)
        for name in names:
            w(f"top_value = {load}.to(ACC)", POINTER=f"{name}_ptr")
            w("X = tl.where(is_top, VALUE, X)", X=name, VALUE=p.body.across("top_value"))
