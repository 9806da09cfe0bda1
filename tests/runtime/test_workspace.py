"""The workspace: zeroed, long enough, one tensor per stream, and one per launch while a graph is captured."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tridal.runtime import workspace

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_by_stream", {})


def launched_with(length: int, stream: int = 0) -> torch.Tensor:
    """Returns the workspace that a launch on a stream gets as its last tensor."""
    launches: list[Any] = []
    slots, rows = (lambda rows: rows + 3), length - 3
    workspace.with_workspace(lambda *arguments: launches.append(arguments), slots, CPU)(stream, rows, "out", "input")
    ((given_stream, given_rows, out, source, tensor),) = launches
    assert (given_stream, given_rows, out, source) == (stream, rows, "out", "input")
    assert tensor.dtype == torch.int64
    assert len(tensor) >= length
    assert not tensor.any()
    return tensor  # type: ignore[no-any-return]


def test_launches_on_one_stream_share_a_workspace_until_one_needs_a_longer_one() -> None:
    first = launched_with(10)
    assert launched_with(5) is first
    assert launched_with(5, stream=1) is not first
    longer = launched_with(1000)
    assert longer is not first
    assert launched_with(10) is longer
    assert len(longer) == 2000, "so that few launches need a longer one"
    assert workspace._replaced[-1] is first, "a launch of another thread may still use it"


def test_threads_that_share_a_stream_share_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace that is dropped while its launch runs may be used by another tensor."""
    allocate, both = workspace._lasting_zeros, threading.Barrier(2)

    def slow(length: int, device: torch.device) -> torch.Tensor:
        time.sleep(0.2)
        return allocate(length, device)

    def work() -> None:
        both.wait()
        found.append(launched_with(10))

    monkeypatch.setattr(workspace, "_lasting_zeros", slow)
    found: list[torch.Tensor] = []
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1]


def test_each_launch_gets_its_own_workspace_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = launched_with(10)
    monkeypatch.setattr(torch.cpu, "is_current_stream_capturing", lambda: True, raising=False)
    assert launched_with(10) is not outside
    assert launched_with(10) is not launched_with(10)


def test_a_longer_workspace_waits_for_launches_that_use_the_shorter_one(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    module = SimpleNamespace(synchronize=waited.append)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module if kind == "cpu" else None)
    zeros = workspace._lasting_zeros(8, CPU)
    assert zeros.tolist() == [0] * 8
    assert waited == [CPU]
