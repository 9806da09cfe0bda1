"""Records of calls: every path of a call is recorded with the backend, or with torch and the reason."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tridal
from processes import python
from tridal.devices.types import Backend
from tridal.pytorch.call_records import RECORDERS, CallRecord


@pytest.fixture(autouse=True)
def no_recorders() -> None:
    assert RECORDERS == []


def ops(calls: list[CallRecord], backend: str) -> list[str]:
    """The names of the recorded ops, all of which were computed by `backend`."""
    assert {call.backend for call in calls} == {backend}
    return [call.op for call in calls]


def test_record_describes_the_call(backend: Backend, device: torch.device) -> None:
    x = torch.randn(3, 5, device=device, dtype=torch.float16)
    with tridal.record_calls() as calls:
        tridal.softmax(x, dtype=torch.float32)
    (call,) = calls
    where = x.device
    expected = ("softmax", (3, 5), "float16", str(where), backend.name, None)
    assert (call.op, call.shape, call.dtype, call.device, call.backend, call.reason) == expected
    assert call.schedule in backend.schedules
    assert str(call) == f"softmax of [3, 5] float16 on {where} by {backend.name}: {call.schedule}"


PATHS: dict[str, tuple[Callable[[torch.Tensor], object], list[str]]] = {
    "backward": (
        lambda x: tridal.log_softmax(x).sin().sum().backward(), ["log_softmax", "log_softmax_backward"],
    ),
    "compiled": (
        lambda x: torch.compile(lambda t: tridal.softmax(t).sin().sum(), backend="aot_eager", fullgraph=True)(
            x
        ).backward(), ["softmax", "softmax_backward"],
    ),
    "integers": (lambda x: tridal.softmax(x.detach().long(), dtype=torch.float32), ["softmax"]),
}  # fmt: skip


@pytest.mark.parametrize(("function", "expected"), PATHS.values(), ids=PATHS)
def test_kernels_are_recorded_on_every_path(
    backend: Backend, device: torch.device, function: Callable[[torch.Tensor], object], expected: list[str]
) -> None:
    x = torch.randn(5, 5, device=device, requires_grad=True)
    with tridal.record_calls() as calls:
        function(x)
    assert ops(calls, backend.name) == expected


def test_calls_of_other_threads_are_recorded(backend: Backend, device: torch.device) -> None:
    def work(_: int) -> None:
        with tridal.use(device=backend.name):
            tridal.softmax(torch.randn(3, 5, device=device))

    with tridal.record_calls() as calls, ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert ops(calls, backend.name) == ["softmax"] * 4


TORCH: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "no elements": (lambda x: tridal.softmax(x[:0]), "no elements"),
    "nested": (lambda x: tridal.softmax(torch.nested.nested_tensor([x, x[:1]])), "nested"),
    "subclass": (
        lambda x: tridal.softmax(torch.masked.masked_tensor(x, x > 0)), "MaskedTensor rejects tridal's op",
    ),
    "forward mode": (
        lambda x: torch.func.jvp(tridal.softmax, (x,), (x,)), "forward-mode",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # nested and masked tensors are prototypes
@pytest.mark.parametrize(("function", "reason"), TORCH.values(), ids=TORCH)
def test_calls_that_torch_computes_are_recorded_with_the_reason(
    device: torch.device, function: Callable[[torch.Tensor], object], reason: str
) -> None:
    x = torch.randn(3, 5, device=device)
    with tridal.record_calls() as calls:
        function(x)
    assert ops(calls, "torch") != []
    assert {call.schedule for call in calls} == {None}
    assert any(reason in str(call.reason) for call in calls), calls


def test_blocks_nest_and_an_exception_ends_a_block(device: torch.device) -> None:
    x = torch.randn(3, 5, device=device)
    with tridal.record_calls() as outer:
        with pytest.raises(KeyError), tridal.record_calls() as inner:  # noqa: PT012
            tridal.softmax(x)
            raise KeyError
        tridal.softmax(x)
    assert (len(outer), len(inner)) == (2, 1)


def test_variable_prints_the_number_of_calls_when_the_process_ends() -> None:
    program = """if True:
        import torch, tridal
        x = torch.randn(3, 5)
        tridal.softmax(x)
        with tridal.use(device="interpreter"):
            for _ in range(3): tridal.softmax(x)
    """
    done = python("-c", program, TRIDAL_LOG_CALLS="1", TRIDAL_DEVICE="cpu")
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "tridal: 3 of softmax by interpreter: whole_row",
        "tridal: 1 of softmax by torch: no available backend serves cpu tensors",
    ]
