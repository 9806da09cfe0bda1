"""Recorded steps pass views to compiled launches as addresses, and make only those views that something else needs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.profiler import profile

import tridal
from tridal import ops

triton = pytest.importorskip("triton")
Tensor = torch.Tensor


@triton.jit
def total(first, second):  # type: ignore[no-untyped-def]
    return first + second


TOTAL = ops.RowKernel("total", __name__, ("first", "second"), (), ("total",))


def rows(x: Tensor, first: int, last: int | None) -> Tensor:
    return x[first:last]


def steps(call: Any, named: Any) -> tuple[Tensor, ...]:
    """Adds the halves of the columns, first those of one row and then those of the others."""
    halves = call.view(Tensor.chunk, named["input"], 2, 1)
    result = call.empty_like(halves[0], torch.float32)
    for bounds in ((0, 1), (1, None)):
        call.kernel(
            TOTAL, *(call.view(rows, half, *bounds) for half in halves), dtypes=(torch.float32,),
            out=call.view(rows, result, *bounds),
        )  # fmt: skip
    return result, call.torch(torch.neg, call.view(rows, halves[1], 1, None))


def reference(input: Tensor, reduce: ops.RowReduce) -> tuple[Tensor, Tensor]:
    first, second = input.chunk(2, 1)
    return first.float() + second.float(), -second[1:]


def new_total(named: Any) -> Tensor:
    return torch.empty_like(named["input"].chunk(2, 1)[0], dtype=torch.float32)


def new_negative(named: Any) -> Tensor:
    return torch.empty_like(named["input"].chunk(2, 1)[1][1:])


SUM_OF_HALVES = ops.Op(
    name="sum_of_halves",
    arguments=(ops.whole("input"),),
    results=(
        ops.Result("sum", "whole", new=new_total, gradient="dsum"),
        ops.Result("negative", "whole", new=new_negative, gradient="dnegative"),
    ),
    kernels=(TOTAL,),
    reference=reference,
    steps=steps,
    dim=-1,
)


@tridal.pytorch.op_function(SUM_OF_HALVES)
def sum_of_halves(call: Any, input: Tensor) -> tuple[Tensor, Tensor]:
    return call(input, results=2)  # type: ignore[no-any-return]


def inputs() -> Iterator[Tensor]:
    """Views of different tensors, which have the same strides and alignment."""
    for _ in range(3):
        yield torch.randn(6, 3 * 64)[:, 64:]


@pytest.fixture
def launched(fresh_registry: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """The arguments of the launches on an architecture without a device, which compute nothing."""
    monkeypatch.setattr(triton.runtime.driver, "_active", None)
    record_kernels, found = importlib.import_module("record_kernels"), list[tuple[int, ...]]()

    class Launcher(record_kernels.Launcher):  # type: ignore[misc, name-defined]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.launch = lambda programs, stream, function, arguments: found.append(arguments)

    monkeypatch.setattr(record_kernels.Driver, "launcher_cls", Launcher)
    with record_kernels.recording("sm_90") as recorder, tridal.use(device=recorder.name, fallback="error"):
        yield found


def test_a_launch_gets_the_addresses_of_views(launched: list[tuple[int, ...]]) -> None:
    for x in inputs():
        launched.clear()
        with tridal.record_calls() as calls, profile() as profiled:
            result, negative = sum_of_halves(x)
        assert torch.equal(negative, -x[1:, 64:])
        row = x.stride(0) * 4
        of_result, first, second = result.data_ptr(), x.data_ptr(), x.data_ptr() + 64 * 4
        assert [arguments[:3] for arguments in launched] == [
            (of_result, first, second), (of_result + 64 * 4, first + row, second + row)
        ]  # fmt: skip
        assert [(call.op, call.shape) for call in calls] == [("total", (1, 64)), ("total", (5, 64))]
    counts = {event.key: event.count for event in profiled.key_averages()}
    assert counts["aten::slice"] == 3, "two of the halves, and one of the rows that a function of torch needs"


def test_the_interpreter_gets_tensors() -> None:
    if reason := tridal.registry.get("interpreter").unavailable():
        pytest.skip(reason)
    with tridal.use(device="interpreter", fallback="error"):
        for x in inputs():
            for found, wanted in zip(sum_of_halves(x), reference(x, None), strict=True):  # type: ignore[arg-type]
                torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("grad", [True, False])
def test_rotary_embedding_makes_no_view(launched: list[tuple[int, ...]], grad: bool) -> None:
    for _ in range(3):
        query = torch.randn(2, 4, 3, 16).transpose(1, 2).detach().requires_grad_(grad)
        cos, sin = torch.randn(2, 4, 16), torch.randn(4, 16)
        launched.clear()
        with profile() as profiled:
            results = tridal.rotary_embedding(query, query, cos, sin)
            del results
    names = {event.key for event in profiled.key_averages() if event.key.startswith("aten::")}
    assert names.isdisjoint({"aten::as_strided", "aten::slice", "aten::select", "aten::unbind", "aten::expand"})
    half, (out, other, *given) = 8 * 4, launched[-1][:8]
    assert other == out + half
    starts = query.data_ptr(), cos.data_ptr(), sin.data_ptr()
    assert given == [address for start in starts for address in (start, start + half)]
