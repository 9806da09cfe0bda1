"""The kernel that adds the partial sums of columns, see `RowKernel.column_writes`. It reads them along dim 0."""

from __future__ import annotations

from tridal.kernels.row_kernel import RowKernel, Statistic

COLUMN_SUM = RowKernel(
    name="column_sum", module="tridal.kernels.numerics", reads=("part",), writes=(), row_writes=("total",),
    statistics=(Statistic("total", "sum", term="part"),), neutral_padding=True, live_tiles=1,
)  # fmt: skip
