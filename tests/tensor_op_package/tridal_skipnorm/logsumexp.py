"""The logarithm of the sum of exponentials of each row."""

from __future__ import annotations

from torch import Tensor

import tridal
from tridal import ops

KERNELS = "tridal_skipnorm.logsumexp_kernels"
STATISTICS = (
    ops.Statistic("row_max", "max", term="x"),
    ops.Statistic("row_sum", "sum", term="exponential", rebase="rebase"),
)


def reference(x: Tensor, reduce: ops.RowReduce) -> Tensor:
    """log(sum(exp(x)))."""
    top = reduce(x, "max").detach()
    top = top.masked_fill(top.isinf(), 0.0)
    return reduce((x - top).exp(), "sum").log() + top


def gradient(
    dy: Tensor, x: Tensor, y: Tensor, reduce: ops.RowReduce
) -> Tensor:
    """dy * exp(x) / sum(exp(x))."""
    return dy * (x - reference(x, reduce)).exp()


LOGSUMEXP = ops.Op(
    name="logsumexp",
    arguments=(ops.per_element("input"),),
    results=(ops.Result("output", "row", gradient="dy"),),
    kernels=(
        ops.RowKernel(
            name="logsumexp", module=KERNELS, reads=("x",),
            statistics=STATISTICS, writes=(), row_writes=("logsumexp",),
            padding=float("-inf"), neutral_padding=True, live_tiles=1,
        ),
        ops.RowKernel(
            name="logsumexp_backward", module=KERNELS, reads=("x",),
            row_reads=("dy", "y"), statistics=(), writes=("gradient",),
            live_tiles=1,
        ),
    ),
    reference=reference,
    gradient=gradient,
    saves=("input", ("y", "output")),
)  # fmt: skip

logsumexp = tridal.row_function(LOGSUMEXP)
