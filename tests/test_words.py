"""Words are zero, enough, one tensor for each stream, and a graph's own while it captures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tridal.runtime import workspace as words

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_by_stream", {})


def supplied(length: int, stream: int = 0) -> torch.Tensor:
    seen: list[Any] = []
    words.with_words(lambda *arguments: seen.append(arguments), length, CPU)(stream, "out", "input")
    ((given_stream, out, source, tensor),) = seen
    assert (given_stream, out, source) == (stream, "out", "input")
    assert tensor.dtype == torch.int64
    assert len(tensor) >= length
    assert not tensor.any()
    return tensor  # type: ignore[no-any-return]


def test_one_tensor_for_each_stream() -> None:
    first = supplied(10)
    assert supplied(5) is first
    assert supplied(5, stream=1) is not first
    assert supplied(10) is first


def test_grows() -> None:
    first = supplied(10)
    again = supplied(1000)
    assert again is not first
    assert supplied(10) is again, "and keeps what it has grown to"


def test_a_graph_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = supplied(10)
    monkeypatch.setattr(torch.cpu, "is_current_stream_capturing", lambda: True, raising=False)
    assert supplied(10) is not outside
    assert supplied(10) is not supplied(10)
