"""Kernels of parts of rows, of which each is computed here as if another rank had it. DTensors are tested on ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from op_samples import OPS
from tridal import testing
from tridal.devices.types import Backend
from tridal.ops.op import Op
from tridal.ops.row_parts import MAX_PARTS, row_parts
from tridal.ops.signature import Signature
from tridal.pytorch.torch.part_kernels import launcher
from tridal.testing.implementation import overridden

NUMBERS = {"scale": 1.0, "causal": False, "zero_masked_rows": False}


def computed(op: Op, signature: Signature, rows: list[torch.Tensor], dim: int, sizes: list[int]) -> torch.Tensor:
    """Computes parts of these sizes of rows: first the statistics of each part, then the results of each part."""
    parts, found = [tensor.split(sizes, dim) for tensor in rows], row_parts(op, signature, len(sizes))
    assert found is not None
    assert found.statistics is not None
    numbers = NUMBERS | {"dim": dim, "dtype": rows[0].dtype}

    def launch(signature: Signature, part: int, *statistics: torch.Tensor) -> Any:
        absent = [None] * (len(signature.tensors) - len(rows) - len(statistics))
        given = [numbers[signature.names[index]] for index in signature.numbers]
        tensors = (*(tensor[part] for tensor in parts), *absent, *statistics)
        return launcher(op, signature, given)(*tensors)

    statistics = [statistic for part in range(len(sizes)) for statistic in launch(found.statistics, part)]
    return torch.cat([launch(found.results, part, *statistics)[0] for part in range(len(sizes))], dim)


@pytest.mark.parametrize("plan", [name for name in testing.PLAN_OVERRIDES if name != "planned"])
@pytest.mark.parametrize(("dim", "sizes"), [(-1, [40, 40]), (-1, [33, 7, 1]), (0, [9, 23])])
def test_parts_of_rows_equal_torch(
    device: torch.device, backend: Backend, plan: str, dim: int, sizes: list[int]
) -> None:
    override = testing.PLAN_OVERRIDES[plan]
    if plan not in testing.overrides(backend) or override is None:
        pytest.skip("the backend has no such plan")
    shape = (5, sum(sizes)) if dim else (sum(sizes), 5)
    with overridden(backend, "overridden", override) as name, tridal.use(device=name):
        for op, theirs in ((OPS["softmax"].op, torch.softmax), (OPS["log_softmax"].op, torch.log_softmax)):
            x, dy = (torch.randn(shape, device=device) for _ in range(2))
            x.select(1 + dim, 0)[: sizes[0]] = -torch.inf  # all of a part
            x.select(1 + dim, 1)[sizes[0]] = torch.nan
            x.select(1 + dim, 2)[:] = -torch.inf
            y = theirs(x, dim)
            assert_close(computed(op, op.signature, [x], dim, sizes), y, equal_nan=True)
            leaf = torch.randn(shape, device=device, requires_grad=True)
            (wanted,) = torch.autograd.grad(y := theirs(leaf, dim), leaf, dy)
            assert_close(computed(op, op.gradient_signature, [dy, y.detach()], dim, sizes), wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_statistics_have_the_dtype_of_sums(device: torch.device, dtype: torch.dtype) -> None:
    op, x = OPS["log_softmax"].op, torch.randn(3, 20, device=device).to(dtype)
    found = computed(op, op.signature, [x], -1, [10, 6, 4])
    assert found.dtype is dtype
    assert_close(found, torch.log_softmax(x, -1), **({"rtol": 2**-7, "atol": 2**-7} if dtype.itemsize == 2 else {}))


def test_kernels_that_use_a_column_or_the_length_of_a_row_have_no_parts(backend: Backend) -> None:
    softmax = OPS["softmax"].op
    assert row_parts(softmax, softmax.signature, MAX_PARTS) is not None
    assert row_parts(softmax, softmax.signature, MAX_PARTS + 1) is None
    for name in ("rms_norm", "layer_norm", "route_top_k", "cross_entropy"):
        assert row_parts(OPS[name].op, OPS[name].op.signature, 2) is None, name
