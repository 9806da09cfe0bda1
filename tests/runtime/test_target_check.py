"""The check that Triton can compile for a target: each unknown one is an error, and the process goes on."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

import triton

from backend_helpers import BUNDLED, FakeBackend, faulty
from tridal.devices import registry
from tridal.devices.checked_backend import CheckedBackend
from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan
from tridal.errors import PlanError
from tridal.ops import planning
from tridal.runtime import target_check
from tridal.runtime.target_check import check_target

GOOD = ("cuda", 87, 32)
"""A target for which Triton compiles, and which no bundled backend plans for."""


@pytest.fixture(autouse=True)
def _nothing_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    target_check._fault.cache_clear()


def device(target: Any) -> DeviceProperties:
    return DeviceProperties("Toy", "toy1", 2, target=target)


BACKEND = CheckedBackend(FakeBackend(), "vendor 1.0")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (("cuda", 3, 32), "LLVM ERROR: Cannot select: intrinsic"),
        (("cuda", "90", 32), "TypeError: "),
        (("hip", "gfx1", 64), "ValueError: "),
        (("hip", "nonsense", 64), "ValueError: "),
        (("toy", "toy1", 1), "it has no compiler for 'toy' (it has compilers of "),
    ],
)
def test_target_that_triton_cannot_compile_for_is_an_error(target: Any, reason: str) -> None:
    with pytest.raises(PlanError) as raised:
        check_target(BACKEND, device(target))
    start = f"backend 'fake' (vendor 1.0): Triton {triton.__version__} cannot compile for {target}, the target of Toy: "
    assert str(raised.value).startswith(start + reason)
    assert "\n" not in str(raised.value)


def test_success_is_kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    check_target(BACKEND, device(GOOD))
    monkeypatch.setattr(target_check, "subprocess", None)
    check_target(BACKEND, device(GOOD))
    target_check._fault.cache_clear()
    check_target(BACKEND, device(GOOD))


def test_targets_that_the_tests_compile_for_and_interpreted_devices_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target_check, "_fault", lambda target: pytest.fail("compiled"))
    bundled = [registry.get(name) for name in sorted(BUNDLED)]
    assert {"cuda", "rocm", "npu"} <= {backend.name for backend in bundled}
    for backend in (*bundled, BACKEND):  # a plan override is another backend with the targets of a bundled one
        for known in [known for each in bundled for known in each.architectures().values()]:
            check_target(backend, known)


def test_a_backend_that_is_not_registered_is_not_checked() -> None:
    check_target(FakeBackend(), device(("cuda", 3, 32)))


def test_compiler_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_check, "_SECONDS", 0.01)
    with pytest.raises(PlanError, match=r"a small kernel was not compiled within 0\.01 s"):
        check_target(BACKEND, device(GOOD))


@pytest.mark.usefixtures("no_plugins")
def test_plan_for_an_unknown_architecture_is_refused_before_the_compiler_is_called() -> None:
    """LLVM would end the process."""

    class Unknown(FakeBackend):
        def architectures(self) -> dict[str, DeviceProperties]:
            return {"sm_3": device(("cuda", 3, 32))}

        def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
            config = KernelConfig("whole_row", 1, 64)
            return LaunchPlan(config, 1, "because", resources=probe(config))

    registry.register(Unknown())
    with pytest.raises(PlanError, match=r"^backend 'fake' \(registered in code\): Triton .* cannot compile for \("):
        planning.plan(64, 64, arch="sm_3")


def test_launch_on_an_unknown_architecture_is_refused_before_the_compiler_is_called(install_plugin: Any) -> None:
    """The plan does not probe, so the launch is the first use of the compiler."""
    from test_faulty_members import compute

    target = "DeviceProperties('Toy', 'toy1', 2, target=('cuda', 3, 32))"
    install_plugin(
        "badly", {"bad": "badly:backend"}, faulty(f"Toy.interpreted = False\nToy.devices = {{'toy1': {target}}}")
    )
    with pytest.raises(
        PlanError, match=r"^backend 'bad' \(badly 1.0\): Triton .* cannot compile for \('cuda', 3, 32\)"
    ):
        compute()
