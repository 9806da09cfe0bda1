"""Launches: arguments are bound by name, and plans that cannot be launched are refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from call_helpers import SM_90, WHOLE_ROW, kernel_call
from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Problem
from tridal.errors import PlanError
from tridal.kernels.row_kernel import RowKernel
from tridal.library.softmax.softmax import SOFTMAX
from tridal.runtime import compiler, launch
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import NO_SCALE_MASK

CALL, PLAN = kernel_call(), LaunchPlan(WHOLE_ROW, 1, "")
HERE = DeviceProperties("here", "here", 1)


class RecordingLauncher:
    """A launcher as Triton makes them: it passes its arguments on to its compiled part, `launch`."""

    launched: tuple[Any, ...] = ()

    def __init__(self, *_: Any) -> None:
        self.launch = self._launch

    def _launch(self, *arguments: Any) -> None:
        RecordingLauncher.launched = arguments

    def __call__(self, *arguments: Any) -> None:
        self.launch(*arguments)


@pytest.mark.parametrize("launcher", [RecordingLauncher, lambda *_: None], ids=["direct", "by_triton"])
@pytest.mark.parametrize(
    ("kernel", "parameters", "scale_mask"),
    [
        (SOFTMAX.forward, (), NO_SCALE_MASK),
        (SOFTMAX.forward, (), ScaleMask(scale=0.5)),
        (SOFTMAX.forward, (), ScaleMask(scale=0.5, mask="uint8", strides=(1024, 0, 0, 1))),
        (SOFTMAX.backward, (None,), NO_SCALE_MASK),
        (SOFTMAX.backward, (0.5,), NO_SCALE_MASK),
    ],
    ids=["forward", "scaled", "masked", "backward", "scaled_backward"],
)
@pytest.mark.parametrize(
    "config",
    [WHOLE_ROW, KernelConfig("cooperative", 1, 256, programs_per_row=4), KernelConfig("column_loop", 1, 256)],
    ids=lambda config: config.schedule,
)
@pytest.mark.parametrize("rows", [64, 63])
def test_each_kernel_argument_gets_its_own_value(
    monkeypatch: pytest.MonkeyPatch,
    config: KernelConfig,
    kernel: RowKernel,
    parameters: tuple[float | None, ...],
    scale_mask: ScaleMask,
    launcher: Any,
    rows: int,
) -> None:
    """Tensors, run-time numbers and constants, with and without a mask and a workspace."""
    triton = pytest.importorskip("triton")
    passed: list[Any] = []
    launched: list[Any] = []
    source = SimpleNamespace(fn=None, signature={})
    loaded = SimpleNamespace(
        run=lambda *a: launched.extend(a) or passed.extend(a[9:]),
        function=0,
        packed_metadata=None,
        src=source,
        metadata=None,
    )
    monkeypatch.setattr(launch, "_load", lambda *_: loaded)
    here = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_target=lambda: SimpleNamespace(backend="cuda", warp_size=32),
        launcher_cls=launcher,
    )
    driver = SimpleNamespace(active=here)
    monkeypatch.setattr(triton.runtime, "driver", driver)
    call = kernel_call(kernel=kernel, parameters=parameters, scale_mask=scale_mask)
    pointers = (
        [*kernel.pointers]
        + ["score_mask"] * (scale_mask.mask is not None)
        + ["workspace"] * (config.programs_per_row > 1)
    )
    tensors = [SimpleNamespace(data_ptr=lambda name=name: name) for name in pointers]
    device = DeviceProperties("here", "sm_90", 132, target=SM_90)
    # The launch of another number of rows of the bucket serves the call, too, unless there is a mask.
    plan = LaunchPlan(config, programs=64 // config.rows * config.programs_per_row, reason="")
    launch._bind_compiled(call, plan, device, launch._Numbers(call, plan)).by_tensor(0, rows, *tensors)
    if scale_mask.mask is None:
        call = replace(call, layout=replace(call.layout, inner=rows))
    specialization = call.specialize(config)
    names = compiler.entry(specialization).arg_names
    programs = launched[0] if launched else RecordingLauncher.launched[0]
    assert programs == -(-call.layout.rows // config.rows) * config.programs_per_row
    if launcher is RecordingLauncher:
        passed = list(RecordingLauncher.launched[9:])
    arguments = dict(zip(names, passed, strict=True))
    addresses = {
        name: arguments[name] if launcher is RecordingLauncher else arguments[name].data_ptr() for name in pointers
    }
    assert addresses == {name: name for name in pointers}
    numbers = call.scalars(config)
    others = [name for name in names if name not in pointers]
    assert {name: arguments[name] for name in others} == {name: numbers[name] for name in others}


def test_a_device_that_needs_another_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    active = SimpleNamespace(get_current_target=lambda: SimpleNamespace(backend="hip", warp_size=64))
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=active))
    device = DeviceProperties("here", "sm_90", 132, target=SM_90)
    with pytest.raises(
        PlanError, match="here needs Triton's driver 'cuda', but 'hip' is active, and a process has one"
    ):
        launch._bind_compiled(CALL, PLAN, device, launch._Numbers(CALL, PLAN))


def test_a_target_with_another_warp_size_than_the_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    active = SimpleNamespace(get_current_target=lambda: SimpleNamespace(backend="hip", warp_size=64))
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=active))
    device = DeviceProperties("here", "gfx942", 132, target=("hip", "gfx942", 32))
    with pytest.raises(
        PlanError, match="here has the warp size 32 in its target, but Triton's driver reports the warp size 64"
    ):
        launch._bind_compiled(CALL, PLAN, device, launch._Numbers(CALL, PLAN))


def test_a_machine_without_a_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")

    class NoDriver:
        @property
        def active(self) -> None:
            raise RuntimeError("0 active drivers ([]). There should only be one.")

    monkeypatch.setattr(triton.runtime, "driver", NoDriver())
    device = DeviceProperties("here", "sm_90", 132, target=SM_90)
    with pytest.raises(PlanError, match=r"here needs Triton's driver 'cuda', but Triton has none: 0 active drivers"):
        launch._bind_compiled(CALL, PLAN, device, launch._Numbers(CALL, PLAN))


def test_a_wrong_plan_is_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_bind_interpreted", lambda *_: pytest.fail("the plan was used"))
    planned = LaunchPlan(KernelConfig("whole_row", 1, 512), programs=1, reason="")
    backend: Any = SimpleNamespace(
        name="fixed", interpreted=True, schedules={"whole_row"}, features=set(), plan=lambda *_: planned
    )
    with pytest.raises(PlanError, match=r"backend 'fixed' made a wrong plan: cols = 512, expected at least 1024"):
        launch.prepare(kernel_call(), backend, HERE, {})


def test_a_probe_for_a_device_without_a_compile_target_raises() -> None:
    class Probing:
        name, interpreted, schedules, features = "probing", False, {"whole_row"}, set[str]()

        def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
            return LaunchPlan(WHOLE_ROW, 1, "", resources=probe(WHOLE_ROW))

    with pytest.raises(PlanError, match=r"'probing' probed for resources, but somewhere has no compile target"):
        launch.plan(kernel_call(), Probing(), DeviceProperties("somewhere", "?", 1), {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (KernelConfig("whole_row", 3, 1024), "rows = 3, expected a power of two"),
        (
            KernelConfig("whole_row", 1, 1024, num_stages=10**6),
            "num_stages = 1000000, expected an integer from 1 to 32",
        ),
        (KernelConfig("whole_row", 1, 1024, exp2_bias="x"), "exp2_bias = 'x', expected a float from "),  # type: ignore[arg-type]
        (KernelConfig("whole_row", 1, 512), "cols = 512, expected at least 1024, because a tile holds whole rows"),
        (KernelConfig("column_loop", 1, 512), "schedule = 'column_loop', expected one of the backend's `schedules`"),
    ],
)
@pytest.mark.parametrize("ignored", [False, True])
def test_a_probe_of_a_wrong_configuration_is_refused_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch, config: KernelConfig, expected: str, ignored: bool
) -> None:
    """Also if the backend ignores the error and returns another plan."""

    def plan(problem: Problem, device: DeviceProperties, probe: Any, options: Any) -> LaunchPlan:
        with contextlib.suppress(PlanError if ignored else ()):
            probe(config)
        return LaunchPlan(KernelConfig("whole_row", 1, 1024), 1, "another one")

    monkeypatch.setattr(compiler, "resources", lambda *_: pytest.fail("compiled"))
    backend: Any = SimpleNamespace(
        name="probing", label="backend 'probing' (vendor 1.0)", interpreted=False, schedules={"whole_row"},
        features=set(), plan=plan,
    )  # fmt: skip
    device = DeviceProperties("here", "sm_90", 132, target=SM_90)
    with pytest.raises(PlanError) as raised:
        launch.plan(kernel_call(), backend, device, {})
    start = f"backend 'probing' (vendor 1.0): plan() called probe(config): {expected}"
    assert str(raised.value).startswith(start)


def test_a_kernel_that_the_device_cannot_load_names_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")

    class Compiled:
        def _init_handles(self) -> None:
            raise RuntimeError("device kernel image is invalid")

    active = SimpleNamespace(
        get_current_target=lambda: SimpleNamespace(backend="cuda", warp_size=32), get_current_device=lambda: 0
    )
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(compiler, "compile_kernel", lambda *_: Compiled())
    monkeypatch.setattr(launch, "check_target", lambda *_: None)
    backend: Any = SimpleNamespace(
        name="other", label="backend 'other' (vendor 1.0)", interpreted=False, schedules={"whole_row"}, features=set(),
        plan=lambda *_: LaunchPlan(WHOLE_ROW, 1, ""),
    )  # fmt: skip
    launch._load.cache_clear()
    with pytest.raises(PlanError) as raised:
        launch.prepare(kernel_call(), backend, DeviceProperties("here", "sm_90", 132, target=SM_90), {})
    assert str(raised.value) == (
        "backend 'other' (vendor 1.0): a kernel for the target ('cuda', 90, 32) cannot be loaded: "
        "device kernel image is invalid"
    )
