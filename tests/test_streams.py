"""The argument `stream` of all functions: errors, and the stream on which launches, matmuls and the backward run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tridal
from tridal.errors import StreamError
from tridal.pytorch.call_records import RECORDERS

Tensor = torch.Tensor


def functions(device: torch.device) -> dict[str, Callable[..., Tensor]]:
    """Returns f(x, **options) for each function, which returns one tensor."""
    weight, target = torch.ones(5, device=device), torch.tensor([0, 4, 2], device=device)
    return {
        "softmax": tridal.softmax,
        "log_softmax": tridal.log_softmax,
        "rms_norm": lambda x, **options: tridal.rms_norm(x, (5,), weight, residual=x, **options)[0],
        "layer_norm": lambda x, **options: tridal.layer_norm(x, (5,), weight, **options),
        "cross_entropy": lambda x, **options: tridal.cross_entropy(x, target, **options),
        "linear_cross_entropy": lambda x, **options: tridal.linear_cross_entropy(
            x, torch.eye(5, device=device), target, **options
        ),
    }


NAMES = list(functions(torch.device("cpu")))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stream", [True, "fast", object(), 1.5])
def test_invalid_stream_raises(device: torch.device, name: str, stream: Any) -> None:
    with pytest.raises(StreamError, match="stream must be a torch stream or a raw handle"):
        functions(device)[name](torch.randn(3, 5, device=device), stream=stream)


@pytest.mark.parametrize("name", NAMES)
def test_stream_raises_where_torch_computes(name: str) -> None:
    meta = torch.device("meta")
    with tridal.use(device="auto"), pytest.raises(StreamError, match="served by torch and have no stream"):
        functions(meta)[name](torch.empty(3, 5, device=meta), stream=0)


@pytest.mark.parametrize("name", NAMES)
def test_stream_raises_in_a_compiled_function(device: torch.device, name: str) -> None:
    compiled = torch.compile(lambda x: functions(device)[name](x, stream=0), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="stream= has no meaning in a compiled function"):
        compiled(torch.randn(3, 5, device=device))


@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward_run_on_the_stream(device: torch.device, name: str) -> None:
    if device.type == "cpu":
        pytest.skip("needs an accelerator")
    module, function = torch.get_device_module(device.type), functions(device)[name]
    x, stream, seen = torch.randn(3, 5, device=device, requires_grad=True), module.Stream(device), list[Any]()

    def keep(_: object) -> None:
        seen.append(module.current_stream())

    module.synchronize()
    RECORDERS.append(keep)
    try:
        for _ in range(3):
            torch.autograd.grad(function(x, stream=stream).square().sum(), x)
    finally:
        RECORDERS.remove(keep)
    module.synchronize()
    assert len(seen) >= 3
    assert all(found == stream for found in seen)
