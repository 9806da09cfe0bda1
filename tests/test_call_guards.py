"""Call guards: they accept calls like the first one, and reject every call that needs another preparation."""

from __future__ import annotations

import contextvars
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tridal
from tridal.devices import registry
from tridal.pytorch import functions, prepared, private
from tridal.pytorch.call_guards import make_call_guard


class _FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class _DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def example() -> torch.Tensor:
    return torch.randn(6, 16)


@pytest.fixture
def accepts() -> Callable[..., bool]:
    """The guard of a call on `example()`."""
    guard = make_call_guard(example(), -1, None)
    assert guard is not None, "torch's check has changed, so no call is guarded"
    return lambda input, dim=-1, dtype=None: bool(guard(input, dim, dtype))


def test_a_tensor_like_the_first_is_accepted(accepts: Callable[..., bool]) -> None:
    assert accepts(example())
    assert accepts(torch.zeros(12, 16)[6:])


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch.randn(6, 17), lambda: torch.randn(16, 6).T, lambda: torch.randn(6, 32)[:, ::2],
        lambda: torch.randn(1, 6, 16), lambda: example().double(), lambda: example().int(),
        lambda: example().requires_grad_(), lambda: torch.nn.Parameter(example(), requires_grad=False),
        lambda: torch._neg_view(example()), lambda: torch.randn(97)[1:].view(6, 16),
        lambda: example().to_sparse(), lambda: example().to_sparse_csr(), lambda: example().to_mkldnn(),
        lambda: torch.nested.nested_tensor([torch.randn(16)] * 6),
        lambda: None, lambda: 3, lambda: [[1.0]], lambda: example().numpy(),
    ],
)  # fmt: skip
def test_other_tensors_and_objects_are_rejected(accepts: Callable[..., bool], other: Callable[[], Any]) -> None:
    assert not accepts(other())


def test_a_tensor_without_memory_is_rejected(accepts: Callable[..., bool]) -> None:
    x = example()
    x.untyped_storage().resize_(0)
    assert not accepts(x)


def test_other_arguments_are_rejected(accepts: Callable[..., bool]) -> None:
    for dim in (0, 1, -2, True, -1.0, None):
        assert not accepts(example(), dim)
    assert not accepts(example(), -1, torch.float32)


@pytest.mark.parametrize(
    "make_context",
    [
        lambda: torch.autocast("cpu"), lambda: torch.inference_mode(), _FunctionMode, _DispatchMode,
        forward_ad.dual_level, lambda: tridal.use(fallback="error"),
        lambda: torch._subclasses.FakeTensorMode(),
    ],
)  # fmt: skip
def test_calls_in_another_context_are_rejected(
    accepts: Callable[..., bool], make_context: Callable[[], AbstractContextManager[Any]]
) -> None:
    x = example()
    with make_context():
        assert not accepts(x)
    assert accepts(x)


def test_the_guard_of_a_differentiated_call_rejects_calls_under_no_grad() -> None:
    x = example().requires_grad_()
    guard = make_call_guard(x, -1, None)
    assert guard is not None
    assert guard(x, -1, None)
    with torch.no_grad():
        assert not guard(x, -1, None)


def test_calls_in_transforms_and_tracers_are_rejected(accepts: Callable[..., bool]) -> None:
    plain, accepted = example(), []

    def record(x: torch.Tensor) -> torch.Tensor:
        accepted.extend([accepts(plain), accepts(x)])
        return x.sum()

    torch.func.grad(record)(example())
    torch.func.vmap(record)(torch.randn(3, 6, 16))
    torch.func.jvp(record, (example(),), (example(),))
    torch.jit.trace(record, (example(),), check_trace=False)
    assert len(accepted) == 8
    assert not any(accepted)


def test_nested_tensors_in_a_transform_are_rejected(accepts: Callable[..., bool]) -> None:
    def check(x: torch.Tensor) -> torch.Tensor:
        assert not accepts(x)
        return x

    torch.func.vmap(check)(torch.nested.nested_tensor([torch.randn(6, 16)] * 3))


def test_a_guard_keeps_no_tensor_alive() -> None:
    x = example()
    guard, reference = make_call_guard(x, -1, None), weakref.ref(x)
    del x
    gc.collect()
    assert guard is not None
    assert reference() is None


@pytest.fixture
def served(nothing_prepared: None) -> Iterator[None]:
    """The interpreter serves CPU tensors."""
    pytest.importorskip("triton")
    if registry.get("interpreter").unavailable():
        pytest.skip("needs the interpreter")
    with tridal.use(device="interpreter"):
        yield


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("grad", [False, True])
def test_the_third_equal_call_skips_the_lookup_of_the_prepared_call(
    grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = example().requires_grad_(grad)
    for _ in range(2):
        tridal.softmax(x)
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "forward", None)
        y = tridal.softmax(x)
    torch.testing.assert_close(y, torch.softmax(x, -1))
    assert y.requires_grad == grad
    if grad:
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y).cumsum(1))
        (expected,) = torch.autograd.grad(torch.softmax(x, -1), x, torch.ones_like(y).cumsum(1))
        torch.testing.assert_close(dx, expected)
    registry.invalidate()
    assert not functions._guarded, "another backend may serve the tensors after a change of the registry"


@pytest.mark.usefixtures("served")
def test_repeated_calls_record_gradients_only_when_they_are_required() -> None:
    x = example()
    for required in (False, False, False, True, True, True, False, False, False, True):
        y = tridal.softmax(x.requires_grad_(required))
        assert y.requires_grad == required
        with torch.no_grad():
            assert not tridal.softmax(x).requires_grad


@pytest.mark.usefixtures("served")
def test_repeated_calls_follow_autocast() -> None:
    x = example().bfloat16()
    for autocast in (nullcontext(), torch.autocast("cpu"), nullcontext()):
        with autocast:
            expected = torch.softmax(x, -1).dtype
            assert [tridal.softmax(x).dtype for _ in range(4)] == [expected] * 4


@pytest.mark.usefixtures("served")
def test_repeated_calls_work_without_torchs_private_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_TensorGuards", None)
    x = example()
    for _ in range(4):
        torch.testing.assert_close(tridal.softmax(x), torch.softmax(x, -1))
    assert not functions._guarded


@pytest.mark.usefixtures("served")
def test_threads_that_repeat_different_calls_get_correct_results() -> None:
    failures: list[BaseException] = []

    def work(cols: int) -> None:
        try:
            for _ in range(10):
                x = torch.randn(3, cols)
                for _ in range(3):
                    torch.testing.assert_close(tridal.softmax(x), torch.softmax(x, -1))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(work, cols)) for cols in (5, 16, 33, 64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
