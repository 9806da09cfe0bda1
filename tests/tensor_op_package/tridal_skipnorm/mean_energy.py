"""Mean energy: the mean of the sums of squares of all rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

import tridal
from tridal import ops

KERNELS = "tridal_skipnorm.mean_energy_kernels"
ENERGY = ops.RowKernel(
    name="mean_energy", module=KERNELS, reads=("x",), neutral_padding=True,
    statistics=(ops.Statistic("energy", "sum", term="square"),),
    writes=(), row_writes=("energy",), live_tiles=1,
)  # fmt: skip
MEAN = ops.RowKernel(
    name="mean_energy_reduce", module=KERNELS, reads=("x",),
    statistics=(ops.Statistic("total", "sum", term="x"),), writes=(),
    row_writes=("mean",), neutral_padding=True, live_tiles=1,
)  # fmt: skip
BACKWARD = ops.RowKernel(
    name="mean_energy_backward", module=KERNELS, reads=("x",),
    row_reads=("share",), statistics=(), writes=("gradient",), live_tiles=1,
)  # fmt: skip


def reference(x: Tensor, reduce: ops.RowReduce) -> Tensor:
    """The mean of the energies of all rows."""
    return reduce.total(reduce(x * x, "sum")) / reduce.rows


def gradient(dy: Tensor, x: Tensor, reduce: ops.RowReduce) -> Tensor:
    """2 * x * dy / rows."""
    return 2.0 * x * (dy / reduce.rows)


def steps(call: Any, named: Mapping[str, Any]) -> tuple[Tensor]:
    """The energy of each row, then their mean."""
    x, dim, dtype = named["input"], named["dim"], named["dtype"]
    (energy,) = call.kernel(ENERGY, x, dim=dim, cast=dtype)
    return call.kernel(MEAN, call.view(Tensor.flatten, energy))


def gradient_steps(call: Any, named: Mapping[str, Any]) -> tuple[Tensor]:
    """The share of a row, then the gradient of each element."""
    x, dim = named["input"], named["dim"]
    share = call.torch(share_of_row, named["dy"], x, dim)
    return call.kernel(BACKWARD, x, share, dim=dim, dtypes=(named["dtype"],))


def share_of_row(dy: Tensor, x: Tensor, dim: int) -> Tensor:
    """dy / rows, one number for all rows."""
    shape = [*x.shape]
    del shape[dim]
    return dy / math.prod(shape)


MEAN_ENERGY = ops.Op(
    name="mean_energy",
    arguments=(ops.per_element("input"),),
    results=(ops.Result("output", "number", gradient="dy"),),
    kernels=(ENERGY, MEAN, BACKWARD),
    reference=reference,
    gradient=gradient,
    steps=steps,
    gradient_steps=gradient_steps,
    saves=("input",),
)

mean_energy = tridal.row_function(MEAN_ENERGY)
