"""Calls allocate their result and no other tensor of that size, except for the calls that docs/pytorch.md lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import tridal
from tridal.runtime import launch

F16, F32, F64 = torch.float16, torch.float32, torch.float64
SHAPE = (8, 16, 8, 32)
STRIDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "permuted": lambda x: x.permute(1, 3, 0, 2).contiguous().permute(2, 0, 3, 1),  # no kernel reads these strides
}
NUMBER = 8 * 16 * 8 * 32


@pytest.fixture
def cpu(device: torch.device, no_calls: None, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A CPU device. Launches do nothing, because an interpreted kernel allocates memory for its arithmetic."""
    if device.type != "cpu":
        pytest.skip("the profiler measures the memory of the CPU")
    prepare = launch.prepare
    monkeypatch.setattr(launch, "prepare", lambda *a: prepare(*a)._replace(launch=lambda *_: None))
    return device


def peak_bytes(compute: Callable[[], Any]) -> int:
    """Returns the largest number of bytes that were allocated during a call and not freed."""
    compute()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = compute()
    assert result is not None
    results: Any = profiler.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    allocated = largest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        largest = max(largest, allocated)
    return int(largest)


@pytest.mark.parametrize("strides", STRIDED)
@pytest.mark.parametrize("dtypes", [(F32, F32), (F16, F32), (F32, F16), (F64, F32)], ids=str)
def test_a_call_and_its_gradient_allocate_their_result(
    cpu: torch.device, strides: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    (source, dtype), arrange = dtypes, STRIDED[strides]
    x = arrange(torch.ones(SHAPE, dtype=source))
    copied = strides != "contiguous" and (source, dtype) == (F16, F32)
    for invariant in (False, True):
        with tridal.use(batch_invariant=invariant):
            found = peak_bytes(lambda: tridal.softmax(x, -1, dtype))
        assert found == NUMBER * (dtype.itemsize + invariant * copied * source.itemsize)
    leaf = torch.ones(SHAPE, dtype=source, requires_grad=True)
    y, dy = tridal.softmax(leaf, -1, dtype), arrange(torch.ones(SHAPE, dtype=dtype))
    found = peak_bytes(lambda: torch.autograd.grad(y, leaf, dy, retain_graph=True))
    copied = strides == "permuted" and source is not dtype  # the copy does not fit into the result
    assert found == NUMBER * (source.itemsize + copied * dtype.itemsize)


@pytest.mark.parametrize("dtype", [F16, F32])
def test_halves_of_one_tensor_and_their_gradients_are_not_copied(cpu: torch.device, dtype: torch.dtype) -> None:
    x, dy = torch.ones(64, 1536, dtype=dtype, requires_grad=True), torch.ones(64, 768, dtype=dtype)
    (gate, up), whole = x.chunk(2, -1), tridal.swiglu(x)
    for compute in (lambda: tridal.swiglu(x.detach()), lambda: tridal.swiglu(gate.detach(), up.detach())):
        with tridal.record_calls() as calls:
            assert peak_bytes(compute) == dy.nbytes
        assert [call.op for call in calls] == ["swiglu"] * 2  # the first call is not measured
    with tridal.record_calls() as calls:
        assert peak_bytes(lambda: torch.autograd.grad(whole, x, dy, retain_graph=True)) == x.nbytes
        y = tridal.swiglu(gate, up)
        assert peak_bytes(lambda: torch.autograd.grad(y, (gate, up), dy, retain_graph=True)) == x.nbytes
    assert [call.op for call in calls] == [*["swiglu_backward"] * 2, "swiglu", *["swiglu_backward"] * 2]


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({}, 2), ({"return_entropy": True}, 3), ({"return_correct": True}, 3),
        ({"ids": torch.arange(512 * 4).view(512, 4) % 1000}, 2 + 4 + 12), ({"save_logits": True}, 2 + 1007),
    ],
)  # fmt: skip
def test_token_log_probs_allocate_as_much_as_linear_cross_entropy(
    cpu: torch.device, options: dict[str, Any], numbers: int
) -> None:
    """Besides numbers per row that are saved. All logits would take 16 times as much as a chunk."""
    x, matrix = torch.randn(512, 32, requires_grad=True), torch.randn(1000, 32, requires_grad=True)
    target = torch.randint(1000, (512,))

    def train(function: Callable[..., Any], **options: Any) -> int:
        def step() -> Any:
            results = function(x, matrix, target, chunk_size=32, **options)
            results = [
                result
                for result in (results if isinstance(results, tuple) else (results,))
                if result.is_floating_point()
            ]
            return torch.autograd.grad(results, (x, matrix), [result.detach() for result in results])

        return peak_bytes(step)

    theirs = train(tridal.linear_cross_entropy, reduction="none")
    assert theirs < 512 * 1000 * 4 / 4
    assert train(tridal.token_log_probs, **options) <= theirs + 4 * 512 * numbers


def test_norms_of_heads_in_one_projection_copy_no_input(cpu: torch.device) -> None:
    """Query and key are parts of a tensor [batch, length, 3, heads, dim]; the gradient is contiguous."""
    projection, weight = torch.ones(2, 16, 3, 8, 64), torch.ones(64)
    x = projection[:, :, 1].requires_grad_()
    y, dy = tridal.rms_norm(x, (64,), weight), torch.ones(2, 16, 8, 64)
    numbers = 4 * 2 * 16 * 8  # a number per row is saved
    assert peak_bytes(lambda: tridal.rms_norm(x.detach(), (64,), weight)) <= dy.nbytes + numbers
    assert peak_bytes(lambda: torch.autograd.grad(y, x, dy, retain_graph=True)) == dy.nbytes
