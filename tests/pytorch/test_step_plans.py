"""Recorded steps of a call: their plans for numbers of rows and outputs, and the addresses that launches get."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile

import tridal
from recording_backend import RecordingBackend, serving
from tridal import ops
from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Probe, Problem

triton = pytest.importorskip("triton")
Tensor = torch.Tensor


@triton.jit
def doubled(x):  # type: ignore[no-untyped-def]
    return x + x


@triton.jit
def square(x):  # type: ignore[no-untyped-def]
    return x * x


DOUBLE = ops.RowKernel("double", __name__, ("x",), (), ("doubled",))
ENERGY = ops.RowKernel(
    "energy", __name__, ("x",), (ops.Statistic("energy", "sum", term="square"),), (), row_writes=("energy",)
)


def new_part(x: Tensor, start: int) -> Tensor:
    return x.new_empty(start + x.numel())[start:].view(x.shape)


def steps(call: Any, named: Any) -> tuple[Tensor, ...]:
    x, start = named["input"], named["start"]
    out = None if start < 0 else call.torch(new_part, x, start)
    (twice,) = call.kernel(DOUBLE, x, out=out)
    return call.kernel(ENERGY, twice)  # type: ignore[no-any-return]


energy_of_double = tridal.row_function(
    ops.Op(
        name="energy_of_double",
        arguments=(ops.per_element("input"), ops.number("start", -1)),
        results=(ops.Result("output", "row", gradient="dy"),),
        kernels=(DOUBLE, ENERGY),
        reference=lambda x, reduce, start: reduce(4 * x * x, "sum"),
        steps=steps,
    )
)


class Backend(RecordingBackend):
    """Its plans of a kernel with statistics are those of one program."""

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        plan = super().plan(problem, device, probe, options)
        one = LaunchPlan(KernelConfig("whole_row", 1, 64), 1, "one program computes all rows")
        return one if problem.statistics else plan


@pytest.fixture
def recording() -> Iterator[RecordingBackend]:
    backend = Backend()
    with serving(backend):
        yield backend


def test_every_step_is_planned_for_the_rows_of_a_call(recording: RecordingBackend) -> None:
    for rows, most in ((20, 32), (100, 128)):
        x = torch.randn(rows, 16)
        for _ in range(2):
            torch.testing.assert_close(energy_of_double(x), 4 * x.square().sum(-1))
        assert any(most // 2 < problem.rows <= most for problem in recording.problems if not problem.statistics)


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("numbers", [*itertools.permutations((48, 57))], ids=str)
def test_rows_of_which_a_step_merges_16_are_all_computed(numbers: tuple[int, ...]) -> None:
    """Rows of 5 elements are no whole vectors, so the first step computes 16 of them as one."""
    for rows in numbers:
        x = torch.randn(rows, 5)
        torch.testing.assert_close(energy_of_double(x), 4 * x.square().sum(-1))


@pytest.mark.usefixtures("recording")
def test_with_batch_invariance_kernels_do_not_depend_on_the_memory_of_an_output(tmp_path: Path) -> None:
    x = torch.randn(20, 16)
    with tridal.use(batch_invariant=True, dump=str(tmp_path)):
        for start in (-1, 0, 1, 3):
            torch.testing.assert_close(energy_of_double(x, start=start), 4 * x.square().sum(-1))
    assert sorted(file.name.split("_")[0] for file in tmp_path.iterdir()) == ["double", "energy"]


@pytest.fixture
def launched(fresh_registry: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """The arguments of the launches on an architecture without a device, which compute nothing."""
    driver: Any = triton.runtime.driver
    name = "_active" if hasattr(driver, "_active") else "active"  # the latter until Triton 3.3
    monkeypatch.setattr(driver, name, getattr(driver, name))
    record_kernels, found = importlib.import_module("record_kernels"), list[tuple[int, ...]]()

    class Launcher(record_kernels.Launcher):  # type: ignore[misc, name-defined]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.launch = lambda programs, stream, function, arguments: found.append(arguments)

    monkeypatch.setattr(record_kernels.Driver, "launcher_cls", Launcher)
    with record_kernels.recording("sm_90") as recorder, tridal.use(device=recorder.name, fallback="error"):
        yield found


@pytest.mark.parametrize("grad", [True, False])
def test_launches_get_the_addresses_of_views_that_are_not_made(launched: list[tuple[int, ...]], grad: bool) -> None:
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


@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"return_lse": True}], ids=str)
def test_numbers_for_all_rows_are_read_by_the_kernel(launched: list[tuple[int, ...]], options: Any) -> None:
    """The gradient of a reduced loss, and the denominator of its mean: no op of torch has to compute them per row."""
    for _ in range(3):
        x, target = torch.randn(20, 64, requires_grad=True), torch.arange(20)
        found = tridal.cross_entropy(x, target, **options)
        results = found if isinstance(found, tuple) else (found,)
        grads = [torch.randn(result.shape) for result in results]
        launched.clear()
        with profile() as profiled:
            torch.autograd.grad(results, x, grads)
    assert {event.key for event in profiled.key_averages() if event.key.startswith("aten::")} <= {"aten::empty_strided"}
    (arguments,) = launched
    assert {grad.data_ptr() for grad in grads} <= {*arguments}


@pytest.mark.parametrize("rows", [2048, 2049])
def test_kernels_round_the_gradients_of_parameters(launched: list[tuple[int, ...]], rows: int) -> None:
    """The kernel that adds partial sums writes the dtype of the parameter, so no op of torch has to cast the sums."""
    for _ in range(3):
        x, weight, bias = (
            torch.randn(*s, requires_grad=True, dtype=torch.bfloat16) for s in ((rows, 128), (128,), (128,))
        )
        y = tridal.layer_norm(x, (128,), weight, bias)
        grad = torch.randn_like(y)
        launched.clear()
        with profile() as profiled:
            found = torch.autograd.grad(y, (x, weight, bias), grad)
    assert [gradient.dtype for gradient in found] == [torch.bfloat16] * 3
    assert "aten::copy_" not in {event.key for event in profiled.key_averages()}
    assert len(launched) == 3
