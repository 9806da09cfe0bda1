"""Cleanup: caches stay bounded, memory stays flat, and exceptions leave nothing locked or changed."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from conformance_helpers import INTERPRETER, registered
from tridal.devices import registry, settings
from tridal.devices.lock import LOCK
from tridal.pytorch import device_context
from tridal.pytorch.path.call import CALLS
from tridal.runtime import launch

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("no_calls")


class Wrapped:
    """The interpreter with another name. A test sets members that raise."""

    def __init__(self, name: str, **members: Any) -> None:
        self.name = name
        vars(self).update(members)

    def __getattr__(self, member: str) -> Any:
        return getattr(INTERPRETER, member)


def assert_clean() -> None:
    """The lock is free for other threads, and a call in this thread and in another one is correct."""
    results: list[Any] = []

    def work() -> None:
        acquired = LOCK.acquire(timeout=10)
        results.append(acquired)
        if acquired:
            LOCK.release()
            with tridal.use(device="interpreter"):
                results.append(tridal.softmax(x))

    x = torch.randn(3, 5)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert results[0] is True
    assert_close(results[1], torch.softmax(x, -1))
    with tridal.use(device="interpreter"):
        assert_close(tridal.softmax(x), torch.softmax(x, -1))


@pytest.mark.parametrize(("error", "direction"), [(KeyboardInterrupt, "forward"), (ValueError, "backward")])
def test_after_an_exception_inside_a_kernel_everything_is_restored(
    error: type[BaseException], direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The KeyboardInterrupt is that of a signal, as for Ctrl-C. test_interpreter_mode.py compares Triton's language."""
    from triton.runtime.interpreter import InterpreterBuilder

    armed: list[bool] = []
    load = InterpreterBuilder.create_masked_load

    def interrupted(self: Any, *arguments: Any) -> Any:
        if armed and threading.current_thread() is threading.main_thread():
            armed.clear()
            if error is KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)
            raise error("stop")
        return load(self, *arguments)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", interrupted)
    assert_clean()  # Triton adds names to a module of its library when it interprets its first kernel
    x = torch.randn(4, 6, requires_grad=True)
    flag, current = os.environ.get("TRITON_INTERPRET"), settings.current()
    with tridal.use(device="interpreter"):
        y = tridal.softmax(x) if direction == "backward" else None
        armed.append(True)
        # Triton's interpreter wraps exceptions, but not those that end a program.
        with pytest.raises(Exception if issubclass(error, Exception) else error):
            tridal.softmax(x) if y is None else y.sum().backward()
        assert not armed, "the exception was raised inside the kernel"
    assert os.environ.get("TRITON_INTERPRET") == flag
    assert settings.current() is current
    assert_clean()


def raises(*_: Any) -> Any:
    raise OSError("driver lost")


@contextmanager
def raises_on_exit(index: int) -> Iterator[None]:
    yield
    raise OSError("driver lost")


@pytest.mark.parametrize(
    ("member", "value"), [("plan", raises), ("guard", raises), ("guard", raises_on_exit), ("stream", raises)]
)
def test_after_an_exception_of_a_backend_the_same_call_succeeds(member: str, value: Callable[..., Any]) -> None:
    x, current = torch.randn(3, 7), settings.current()
    with registered(Wrapped("failing", **{member: value})) as backend:
        with tridal.use(device="failing"):
            for _ in range(2):
                with pytest.raises(Exception, match="driver lost"):
                    tridal.softmax(x)
            delattr(backend, member)
            registry.unregister("failing")  # a registered backend and a call keep the stream function
            registry.register(backend)
            assert_close(tridal.softmax(x), torch.softmax(x, -1))
        assert settings.current() is current
    assert_clean()


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches write zeros instead of interpreting a kernel, which would take most of the time."""
    monkeypatch.setattr(
        launch, "_bind_interpreted", lambda found, *_: found._replace(launch=lambda stream, rows, out, *_: out.zero_())
    )


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "softmax": tridal.softmax,
    "cross_entropy": lambda x: tridal.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long)),
}


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("name", ["softmax", "cross_entropy"])
def test_hundreds_of_shapes_keep_caches_bounded_and_memory_flat(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tridal.pytorch.path.call.CAPACITY", 60)
    largest = 0
    with tridal.use(device="interpreter"):
        # Two calls are new. torch's first gradient imports its DTensor, and the next new call imports the rules of it,
        # whose 300 objects stay.
        for columns in (3, 3, 4, 4):
            FUNCTIONS[name](torch.ones(2, columns, requires_grad=True)).sum().backward()
        registry.invalidate()
        gc.collect()
        before = len(gc.get_objects())
        for number in range(1, 121):
            for x in torch.ones(2, 1 + number % 7, 1 + number // 7):
                FUNCTIONS[name](x.requires_grad_()).sum().backward()
            largest = max(largest, len(CALLS))
    assert 50 < largest <= 60
    filled = len(gc.get_objects())
    registry.invalidate()
    assert not CALLS
    gc.collect()
    assert filled - 250 > len(gc.get_objects()), "the caches held objects, and were cleared"
    assert len(gc.get_objects()) < before + 60, "none of the 240 calls keeps an object"


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("name", ["softmax", "cross_entropy"])
def test_unregistered_backends_are_released(name: str) -> None:
    x, references = torch.ones(3, 5, requires_grad=True), []
    for number in range(3):
        with registered(Wrapped(f"temporary{number}")) as backend:
            references.append(weakref.ref(backend))
            with tridal.use(device=backend.name, batch_invariant=number == 1):
                for _ in range(3):
                    FUNCTIONS[name](x).sum().backward()
        del backend
    settings.reload()
    gc.collect()
    assert sum(reference() is not None for reference in references) == 0
    assert device_context._context.cache_info().currsize <= 1


def test_threads_compute_while_others_change_settings_and_backends() -> None:
    def compute(number: int) -> None:
        with tridal.use(device="interpreter"):
            x = torch.randn(2, 3 + number, requires_grad=True)
            y = tridal.softmax(x)
            assert_close(y, torch.softmax(x, -1))
            y.sum().backward()
            assert_close(x.grad, torch.zeros_like(x), atol=1e-6, rtol=0)
            assert settings.current().device == "interpreter"

    def change_settings(number: int) -> None:
        with tridal.use(device="cpu", fallback="torch"):
            tridal.softmax(torch.randn(2, 3 + number))
            assert settings.current().device == "cpu"
        settings.reload()

    def change_backends(number: int) -> None:
        with registered(Wrapped(f"other{threading.get_ident()}{number}")):
            registry.invalidate()

    def repeated(work: Callable[[int], None]) -> None:
        for number in range(12):
            work(number)

    before = settings.current().device
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(repeated, (compute, compute, change_settings, change_backends), timeout=300):
            pass
    assert settings.current().device == before
    assert_clean()
