"""The argument `stream` of all functions: errors, and the stream on which launches, matmuls and the backward run."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

import tridal
from op_samples import EACH_OP, Sample, each_kind, gradients
from torch_versions import compiled_error
from tridal.errors import StreamError
from tridal.pytorch.call_records import RECORDERS
from tridal.pytorch.path import function


@EACH_OP
def test_invalid_stream_raises(device: torch.device, sample: Sample) -> None:
    for stream in (True, "fast", 1.5):
        with pytest.raises(StreamError, match=r"stream must be a torch stream of .* or a raw handle"):
            sample.function(**sample.leaves(3, 5, device=device), stream=stream)


@EACH_OP
def test_stream_raises_where_torch_computes(sample: Sample) -> None:
    tensors = sample.tensors(torch.empty(3, 5, device="meta"))
    with tridal.use(device="auto"), pytest.raises(StreamError, match="served by torch and have no stream"):
        sample.function(**tensors, stream=0)


@each_kind("this test with an op that is declared in the same way")
def test_stream_raises_in_a_compiled_function(device: torch.device, sample: Sample) -> None:
    tensors = sample.tensors(torch.randn(3, 5, device=device))
    compiled = torch.compile(lambda: sample.function(**tensors, stream=0), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=compiled_error("stream= has no meaning in a compiled function")):
        compiled()


def test_a_call_on_a_stream_returns_its_result(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "on_stream", lambda *arguments: contextlib.nullcontext())
    x = torch.randn(3, 5, device=device)
    assert torch.equal(tridal.softmax(x, stream=0), tridal.softmax(x))


@EACH_OP
def test_forward_and_backward_run_on_the_stream(device: torch.device, sample: Sample) -> None:
    if device.type == "cpu":
        pytest.skip("needs an accelerator")
    module = torch.get_device_module(device.type)
    tensors, stream, seen = sample.leaves(3, 5, device=device), module.Stream(device), list[Any]()

    def keep(_: object) -> None:
        seen.append(module.current_stream())

    module.synchronize()
    RECORDERS.append(keep)
    try:
        for _ in range(3):
            gradients(lambda **given: sample.function(**given, stream=stream), tensors)
    finally:
        RECORDERS.remove(keep)
    module.synchronize()
    assert len(seen) >= 3
    assert all(found == stream for found in seen)
