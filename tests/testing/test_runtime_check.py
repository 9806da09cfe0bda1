"""The check of stream, guard and resources without hardware: every backend passes it, and it finds each fault."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pytest
import torch

from backend_helpers import FakeBackend
from conformance_helpers import INTERPRETER
from torch_versions import skip_unless_compiled
from tridal import testing
from tridal.devices import registry
from tridal.devices.types import Backend, DeviceProperties, KernelConfig, LaunchPlan, Resources
from tridal.runtime.compiler import can_compile
from tridal.testing.recording import recording

pytest.importorskip("triton")

COMPILED = [backend for backend in registry.loaded() if not backend.interpreted]
TARGETS = [next(iter(backend.architectures().values())).target for backend in COMPILED]


@pytest.mark.parametrize("checked", registry.loaded(), ids=lambda backend: backend.name)
def test_every_registered_backend_passes_without_its_hardware(checked: Backend) -> None:
    skip_unless_compiled(checked.name)
    assert testing.check_runtime(checked) == ()


def test_resources_get_the_output_of_the_compiler_and_the_plan_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: Any = next(b for b, target in zip(COMPILED, TARGETS, strict=True) if can_compile(target))
    backend = type(checked.plugin)
    stages: list[set[str]] = []
    resources, plan = backend.resources, backend.plan
    monkeypatch.setattr(
        backend, "resources", lambda self, asm, *rest: stages.append({*asm}) or resources(self, asm, *rest)
    )
    assert testing.check_runtime(checked) == ()
    assert stages
    assert all("ttir" in found for found in stages)
    monkeypatch.setattr(backend, "resources", lambda *_: (32, 0, 0))
    assert testing.check_runtime(checked)
    monkeypatch.setattr(backend, "resources", resources)
    other = Resources(7, 7, 7)
    monkeypatch.setattr(backend, "plan", lambda *given: dataclasses.replace(plan(*given), resources=other))
    assert "which resources() did not return" in "\n".join(testing.check_runtime(checked))


class Vendor(FakeBackend):
    """A correct backend, whose functions call the vendor's module `vendorlib`. Triton cannot compile for it."""

    def __init__(self) -> None:
        super().__init__(name="vendor", device_type="vendor")

    @property
    def library(self) -> Any:
        import vendorlib

        return vendorlib

    def device_count(self) -> int:
        return int(self.library.device_count())

    def architectures(self) -> dict[str, DeviceProperties]:
        return {"v1": DeviceProperties("Vendor 1", "v1", cores=4, target=("vendor", "v1", 1))}

    def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
        config = KernelConfig("whole_row", 1, 1 << (problem.cols - 1).bit_length())
        return LaunchPlan(config, device.cores, "because", resources=probe(config))

    def stream(self, index: int) -> int:
        return int(self.library.current_stream(index).vendor_stream)

    def guard(self, index: int) -> Any:
        return self.library.device(index)


def faults(backend: Any) -> str:
    return "\n".join(testing.check_runtime(backend, modules=["vendorlib"]))


def test_backend_that_calls_a_module_of_its_vendor_passes() -> None:
    assert faults(Vendor()) == ""


def test_hint_names_the_argument_for_other_modules() -> None:
    (first, *_) = testing.check_runtime(Vendor())
    assert first.startswith("raised ModuleNotFoundError: No module named 'vendorlib' (in library, ")
    assert first.endswith("; if the backend calls another module than torch's, give its name in `modules`")


@contextmanager
def without_finally(self: Vendor, index: int) -> Iterator[None]:
    before = self.library.current_device()
    self.library.set_device(index)
    yield
    self.library.set_device(before)


@contextmanager
def suppressing(self: Vendor, index: int) -> Iterator[None]:
    with self.library.device(index), suppress(Exception):
        yield


def cached(self: Vendor, index: int) -> int:
    streams = vars(self).setdefault("streams", {})
    return int(streams.setdefault(index, Vendor.stream(self, index)))


def raising(self: Vendor, *_: Any) -> Any:
    raise RuntimeError("no driver")


@pytest.mark.parametrize(
    ("member", "wrong", "message"),
    [
        ("stream", lambda self, index: 0, "stream(0) returned 0 instead of 4096 while device 0 is current"),
        (
            "stream", lambda self, index: self.library.current_stream().vendor_stream,
            "stream(1) returned 4097 instead of 8192 while device 0 is current",
        ),
        ("stream", cached, "stream(0) returned 4096 instead of 4097 after the stream was changed"),
        (
            "stream", lambda self, index: self.library.current_stream(index).stream_id,
            "the stand-in for a stream has no 'stream_id': its handle is any name that ends with '_stream',",
        ),
        ("guard", lambda self, index: nullcontext(), "device 0 is current inside guard(1)"),
        ("guard", without_finally, "device 1 is current after an exception after guard(1), instead of device 0"),
        ("guard", suppressing, "guard(0) suppresses exceptions"),
        ("guard", raising, "raised RuntimeError: no driver"),
        ("device_count", lambda self: 1, "device_count() returned 1, but there are 2 devices"),
        ("plan", raising, "raised RuntimeError: no driver"),
    ],
)  # fmt: skip
def test_a_wrong_member_is_reported(member: str, wrong: Any, message: str) -> None:
    assert message in faults(type("Faulty", (Vendor,), {member: wrong})())


def test_interpreted_backend_with_a_wrong_stream_or_guard_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(INTERPRETER.plugin), "stream", lambda self, index: None)
    monkeypatch.setattr(type(INTERPRETER.plugin), "guard", lambda self, index: None)
    assert testing.check_runtime(INTERPRETER) == (
        "guard(0) returned None, which is no context manager",
        "stream(0) returned None, which is no int",
    )


def test_modules_and_the_driver_are_restored() -> None:
    import triton

    before = torch.cuda, sys.modules["torch.cuda"], triton.runtime.driver
    with suppress(RuntimeError), recording("cuda", ("cuda", 90, 32), ["vendorlib"]) as device:
        assert torch.cuda is device
        assert torch.cuda.current_device() == 0
        assert torch.cuda.Event is not None, "other attributes are those of the real module"
        raise RuntimeError
    assert (torch.cuda, sys.modules["torch.cuda"], triton.runtime.driver) == before
    assert "vendorlib" not in sys.modules
    with recording("vendor", ("vendor", "v1", 1)):
        pass
    assert not hasattr(torch, "vendor")
