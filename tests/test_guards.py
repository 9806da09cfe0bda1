"""Call guards: they accept tensors like the first ones, in the same state, and reject all others."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from feature_axes import DispatchMode, FunctionMode
from tridal.pytorch.path.guards import guard_call
from tridal.pytorch.torch import private

Tensor = torch.Tensor


def example() -> list[Tensor | None]:
    """New tensors, and an absent one."""
    return [torch.randn(6, 16), None, torch.randn(16, requires_grad=True), torch.randint(0, 9, (6,))]


@pytest.fixture
def accepts() -> Callable[..., bool]:
    guard = guard_call(example())
    assert guard is not None, "torch's check has changed, so no call is guarded"
    return lambda tensors: bool(guard(tensors))


def test_tensors_like_the_first_ones_are_accepted(accepts: Callable[..., bool]) -> None:
    assert accepts(example())
    assert accepts((torch.zeros(12, 16)[6:], *example()[1:]))


OTHERS: list[tuple[int, Callable[[], Any]]] = [
    (0, lambda: torch.randn(6, 17)), (0, lambda: torch.randn(16, 6).T), (0, lambda: torch.randn(7, 16)),
    (0, lambda: torch.randn(6, 32)[:, ::2]), (0, lambda: torch.randn(1, 6, 16)), (0, lambda: torch.randn(12, 16)[:7]),
    (0, lambda: torch.randn(6, 16).double()), (0, lambda: torch.randn(6, 16).requires_grad_()),
    (0, lambda: torch.nn.Parameter(torch.randn(6, 16), requires_grad=False)), (0, lambda: torch.randn(6, 16).numpy()),
    (0, lambda: torch._neg_view(torch.randn(6, 16))), (0, lambda: torch.randn(97)[1:].view(6, 16)),
    (0, lambda: torch.randn(6, 16).to_sparse()), (0, lambda: torch.randn(6, 16).to_sparse_csr()),
    (0, lambda: torch.randn(6, 16).to_mkldnn()),
    (0, lambda: torch.nested.nested_tensor([torch.randn(16)] * 6)), (0, lambda: None), (0, lambda: [[1.0]]),
    (0, lambda: torch.randn(6, 16, device="meta")), (0, lambda: torch.zeros(6, 16, dtype=torch.complex64).real),
    (1, lambda: torch.randn(6, 16)), (1, lambda: 0),
    (2, lambda: torch.nn.Parameter(torch.randn(16))), (2, lambda: torch.randn(16)), (2, lambda: None),
    (2, lambda: torch.randn(16, dtype=torch.bfloat16, requires_grad=True)),
    (3, lambda: torch.randint(0, 9, (6,), dtype=torch.int32)), (3, lambda: torch.randint(0, 9, (12,))[::2]),
    (3, lambda: torch.randint(0, 9, (7,))[1:]),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(OTHERS)))
def test_another_tensor_at_any_position_is_rejected(accepts: Callable[..., bool], case: int) -> None:
    position, make = OTHERS[case]
    tensors: list[Any] = example()
    tensors[position] = make()
    assert not accepts(tensors)


def test_a_tensor_without_memory_and_a_tensor_given_twice_are_rejected() -> None:
    x, y = torch.randn(6, 16), torch.randn(6, 16)
    guard = guard_call((x, y))
    assert guard is not None
    assert guard((y, x))
    assert not guard((x, x))
    assert guard_call((x, x)) is None
    y.untyped_storage().resize_(0)
    assert not guard((x, y))
    assert guard_call((x, y)) is None


@pytest.mark.parametrize(
    "make_context",
    [
        lambda: torch.autocast("cpu"), torch.inference_mode, torch.no_grad, FunctionMode, DispatchMode,
        forward_ad.dual_level, lambda: torch._subclasses.FakeTensorMode(),
    ],
)  # fmt: skip
def test_calls_in_another_context_are_rejected(
    accepts: Callable[..., bool], make_context: Callable[[], AbstractContextManager[Any]]
) -> None:
    tensors = example()
    with make_context():
        assert not accepts(tensors)
    assert accepts(tensors)


def test_inference_tensors_are_rejected(accepts: Callable[..., bool]) -> None:
    tensors = example()
    with torch.inference_mode():
        tensors[0] = torch.randn(6, 16)
        assert not accepts(tensors)
    assert not accepts(tensors)


def test_calls_in_transforms_and_tracers_and_batched_gradients_are_rejected(accepts: Callable[..., bool]) -> None:
    plain, accepted = example(), []

    def record(x: Tensor) -> Tensor:
        accepted.extend([accepts(plain), accepts([x, *plain[1:]])])
        return x.sum()

    torch.func.grad(record)(torch.randn(6, 16))
    torch.func.vmap(record)(torch.randn(3, 6, 16))
    torch.func.jvp(record, (torch.randn(6, 16),), (torch.randn(6, 16),))
    torch.jit.trace(record, (torch.randn(6, 16),), check_trace=False)
    assert len(accepted) == 8
    assert not any(accepted)

    x = torch.randn(6, 16, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: accepted.append(accepts([grad, *plain[1:]])))
    torch.autograd.grad(y, x, torch.randn(3, 6, 16), is_grads_batched=True)
    assert accepted[8:] == [False]


def test_nested_tensors_in_a_transform_are_rejected(accepts: Callable[..., bool]) -> None:
    others = example()[1:]

    def check(x: Tensor) -> Tensor:
        assert not accepts([x, *others])
        return x

    torch.func.vmap(check)(torch.nested.nested_tensor([torch.randn(6, 16)] * 3))


def test_a_guard_keeps_no_tensor_alive() -> None:
    tensors = example()
    guard, references = guard_call(tensors), [weakref.ref(t) for t in tensors if t is not None]
    del tensors
    gc.collect()
    assert guard is not None
    assert [reference() for reference in references] == [None] * 3


def test_without_torchs_private_check_there_is_no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_TensorGuards", None)
    assert guard_call(example()) is None
