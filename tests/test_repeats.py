"""What is taken for the same call again, and all that must not be."""

from __future__ import annotations

import contextvars
import gc
import importlib
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
from tridal.pytorch import call_guards as repeats
from tridal.pytorch import prepared as execute


class _FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class _DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def _repeated() -> dict[str, Any]:
    return importlib.import_module("tridal.softmax")._repeated  # type: ignore[no-any-return]


def example() -> torch.Tensor:
    return torch.randn(6, 16)


@pytest.fixture
def fits() -> Callable[..., bool]:
    found = repeats.like(example(), -1, None)
    assert found is not None, "torch's check has changed: every call asks for itself again"
    return lambda input, dim=-1, dtype=None: bool(found(input, dim, dtype))


def test_a_tensor_like_the_first(fits: Callable[..., bool]) -> None:
    assert fits(example())
    assert fits(torch.zeros(12, 16)[6:])


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
def test_another_tensor(fits: Callable[..., bool], other: Callable[[], Any]) -> None:
    assert not fits(other())


def test_a_tensor_whose_memory_is_gone(fits: Callable[..., bool]) -> None:
    x = example()
    x.untyped_storage().resize_(0)
    assert not fits(x)


def test_other_arguments(fits: Callable[..., bool]) -> None:
    for dim in (0, 1, -2, True, -1.0, None):
        assert not fits(example(), dim)
    assert not fits(example(), -1, torch.float32)


@pytest.mark.parametrize(
    "elsewhere",
    [
        lambda: torch.autocast("cpu"), lambda: torch.inference_mode(), _FunctionMode, _DispatchMode,
        forward_ad.dual_level, lambda: tridal.use(fallback="error"),
        lambda: torch._subclasses.FakeTensorMode(),
    ],
)  # fmt: skip
def test_elsewhere(fits: Callable[..., bool], elsewhere: Callable[[], AbstractContextManager[Any]]) -> None:
    x = example()
    with elsewhere():
        assert not fits(x)
    assert fits(x)


def test_gradients_wanted_or_not() -> None:
    x = example().requires_grad_()
    fits = repeats.like(x, -1, None)
    assert fits is not None
    assert fits(x, -1, None)
    with torch.no_grad():
        assert not fits(x, -1, None)


def test_transforms_and_tracers(fits: Callable[..., bool]) -> None:
    plain, seen = example(), []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.extend([fits(plain), fits(x)])
        return x.sum()

    torch.func.grad(look)(example())
    torch.func.vmap(look)(torch.randn(3, 6, 16))
    torch.func.jvp(look, (example(),), (example(),))
    torch.jit.trace(look, (example(),), check_trace=False)
    assert len(seen) == 8
    assert not any(seen)


def test_nested_tensors_in_a_transform(fits: Callable[..., bool]) -> None:
    def look(x: torch.Tensor) -> torch.Tensor:
        assert not fits(x)
        return x

    torch.func.vmap(look)(torch.nested.nested_tensor([torch.randn(6, 16)] * 3))


def test_keeps_no_tensor() -> None:
    x = example()
    fits, memory = repeats.like(x, -1, None), weakref.ref(x)
    del x
    gc.collect()
    assert fits is not None
    assert memory() is None


@pytest.fixture
def served(nothing_prepared: None) -> Iterator[None]:
    """Calls on CPU tensors that a backend serves, in Triton's interpreter."""
    pytest.importorskip("triton")
    if registry.unavailable(registry.get("interpreter")):
        pytest.skip("needs the interpreter")
    with tridal.use(device="interpreter"):
        yield


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("grad", [False, True])
def test_the_third_call_goes_straight_there(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = example().requires_grad_(grad)
    for _ in range(2):
        tridal.softmax(x)
    with monkeypatch.context() as patch:
        patch.setattr(execute, "forward", None)
        y = tridal.softmax(x)
    torch.testing.assert_close(y, torch.softmax(x, -1))
    assert y.requires_grad == grad
    if grad:
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y).cumsum(1))
        (expected,) = torch.autograd.grad(torch.softmax(x, -1), x, torch.ones_like(y).cumsum(1))
        torch.testing.assert_close(dx, expected)
    registry.invalidate()
    assert not _repeated(), "a backend that comes or goes changes who serves"


@pytest.mark.usefixtures("served")
def test_gradients_that_are_wanted_after_all() -> None:
    x = example()
    for wanted in (False, False, False, True, True, True, False, False, False, True):
        y = tridal.softmax(x.requires_grad_(wanted))
        assert y.requires_grad == wanted
        with torch.no_grad():
            assert not tridal.softmax(x).requires_grad


@pytest.mark.usefixtures("served")
def test_autocast_is_part_of_a_call() -> None:
    x = example().bfloat16()
    for autocast in (nullcontext(), torch.autocast("cpu"), nullcontext()):
        with autocast:
            wanted = torch.softmax(x, -1).dtype
            assert [tridal.softmax(x).dtype for _ in range(4)] == [wanted] * 4


@pytest.mark.usefixtures("served")
def test_where_torch_does_not_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "GUARDS", None)
    x = example()
    for _ in range(4):
        torch.testing.assert_close(tridal.softmax(x), torch.softmax(x, -1))
    assert not _repeated()


@pytest.mark.usefixtures("served")
def test_threads_with_calls_of_their_own() -> None:
    failures: list[BaseException] = []

    def work(cols: int) -> None:
        try:
            for _ in range(20):
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
