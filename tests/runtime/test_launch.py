"""Launches: each argument gets its own value, and plans that cannot be launched are refused."""

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
from tridal.runtime.specialization import NO_SCALE_MASK, KernelCall

PLAN = LaunchPlan(WHOLE_ROW, 1, "")
COOPERATIVE = KernelConfig("cooperative", 1, 256, programs_per_row=4)
SM_90_DEVICE = DeviceProperties("here", "sm_90", 132, target=SM_90)


def set_driver(monkeypatch: pytest.MonkeyPatch, **driver: Any) -> None:
    """Makes Triton's active driver one of sm_90. `driver` are its other attributes."""
    triton = pytest.importorskip("triton")
    target = SimpleNamespace(backend="cuda", warp_size=32)
    here = {"get_current_device": lambda: 0, "get_current_target": lambda: target, **driver}
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=SimpleNamespace(**here)))


def bound(monkeypatch: pytest.MonkeyPatch, call: KernelCall, plan: LaunchPlan, **driver: Any) -> launch.Launch:
    """Binds a call for sm_90."""
    set_driver(monkeypatch, **driver)
    return launch._bind_compiled(launch._unbound(call, plan), call, SM_90_DEVICE)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("kernel", "parameters", "scale_mask"),
    [
        (SOFTMAX.forward, (), NO_SCALE_MASK),
        (SOFTMAX.forward, (), ScaleMask(scale=0.5, mask="uint8", strides=(1024, 0, 0, 1))),
        (SOFTMAX.backward, (None,), NO_SCALE_MASK),
        (SOFTMAX.backward, (0.5,), NO_SCALE_MASK),
    ],
    ids=["forward", "masked", "backward", "scaled_backward"],
)
@pytest.mark.parametrize("config", [WHOLE_ROW, COOPERATIVE], ids=lambda config: config.schedule)
def test_each_kernel_argument_gets_its_own_value(
    monkeypatch: pytest.MonkeyPatch,
    config: KernelConfig,
    kernel: RowKernel,
    parameters: tuple[float | None, ...],
    scale_mask: ScaleMask,
    direct: bool,
) -> None:
    """Tensors, run-time numbers and constants, with and without a mask and a workspace."""
    launched: list[tuple[Any, ...]] = []

    class Launcher:
        """A launcher as Triton makes them: it passes its arguments on to its compiled part, `launch`."""

        def __init__(self, *_: Any) -> None:
            if direct:
                self.launch = lambda *arguments: launched.append(arguments)

        def __call__(self, *arguments: Any) -> None:
            launched.append(arguments) if not direct else self.launch(*arguments)

    source = SimpleNamespace(fn=None, signature={})
    loaded = SimpleNamespace(run=Launcher(), function=0, packed_metadata=None, src=source, metadata=None)
    monkeypatch.setattr(launch, "_load", lambda *_: loaded)
    call = kernel_call(kernel=kernel, parameters=parameters, scale_mask=scale_mask)
    pointers = [*kernel.pointers, *["score_mask"] * (scale_mask.mask is not None)]
    pointers += ["workspace"] * (config.programs_per_row > 1)
    tensors = [SimpleNamespace(data_ptr=lambda name=name: name) for name in pointers]
    plan = LaunchPlan(config, programs=64 // config.rows * config.programs_per_row, reason="")
    made = bound(monkeypatch, call, plan, launcher_cls=Launcher)
    for rows in (64,) if scale_mask.mask else (64, 63):  # without a mask, a launch serves all rows of the bucket
        made.launch(0, rows, *tensors)
        of_rows, passed = replace(call, layout=replace(call.layout, inner=rows)), launched[-1]
        assert passed[0] == -(-rows // config.rows) * config.programs_per_row
        names = compiler.entry(of_rows.specialize(config)).arg_names
        arguments = dict(zip(names, passed[9:], strict=True))
        numbers = of_rows.scalars(config) | {name: name for name in pointers}
        found = {
            name: value if direct or name not in pointers else value.data_ptr() for name, value in arguments.items()
        }
        assert found == {name: numbers[name] for name in names}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (("hip", 64), "here needs Triton's driver 'cuda', but 'hip' is active, and a process has one"),
        (("cuda", 64), "here has the warp size 32 in its target, but Triton's driver reports the warp size 64"),
        (None, r"here needs Triton's driver 'cuda', but Triton has none: 0 active drivers"),
    ],
)
def test_a_device_that_needs_another_driver_is_refused(
    monkeypatch: pytest.MonkeyPatch, target: tuple[str, int] | None, expected: str
) -> None:
    def current() -> SimpleNamespace:
        if target is None:
            raise RuntimeError("0 active drivers ([]). There should only be one.")
        return SimpleNamespace(backend=target[0], warp_size=target[1])

    with pytest.raises(PlanError, match=expected):
        bound(monkeypatch, kernel_call(), PLAN, get_current_target=current)


def planning(plan: Any, interpreted: bool = False) -> Any:
    """Returns a backend with this plan function."""
    return SimpleNamespace(
        name="mine", label="backend 'mine' (vendor 1.0)", interpreted=interpreted, schedules={"whole_row"},
        features=set(), plan=plan,
    )  # fmt: skip


def test_a_wrong_plan_is_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_bind_interpreted", lambda *_: pytest.fail("the plan was used"))
    wrong = LaunchPlan(KernelConfig("whole_row", 1, 512), programs=1, reason="")
    with pytest.raises(PlanError, match=r"made a wrong plan: cols = 512, expected at least 1024"):
        launch.prepare(kernel_call(), planning(lambda *_: wrong, True), DeviceProperties("here", "here", 1), {})


@pytest.mark.parametrize(
    ("config", "device", "expected"),
    [
        (replace(WHOLE_ROW, rows=3), SM_90_DEVICE, "plan.* called probe.*: rows = 3, expected a power of two"),
        (replace(WHOLE_ROW, cols=512), SM_90_DEVICE, "plan.* called probe.*: cols = 512, expected at least 1024"),
        (WHOLE_ROW, DeviceProperties("somewhere", "?", 1), "probed for resources, but somewhere has no compile target"),
    ],
)
def test_a_wrong_probe_is_refused_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch, config: KernelConfig, device: DeviceProperties, expected: str
) -> None:
    """Although a backend may ignore that its configuration is wrong, and return another plan."""

    def plan(problem: Problem, device: DeviceProperties, probe: Any, options: Any) -> LaunchPlan:
        with contextlib.suppress(*[PlanError] * (config is not WHOLE_ROW)):
            probe(config)
        return LaunchPlan(KernelConfig("whole_row", 1, 1024), 1, "another one")

    monkeypatch.setattr(compiler, "resources", lambda *_: pytest.fail("compiled"))
    with pytest.raises(PlanError, match=expected):
        launch.plan(kernel_call(), planning(plan), device, {})


def test_a_kernel_that_the_device_cannot_load_names_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("device kernel image is invalid")

    set_driver(monkeypatch)
    monkeypatch.setattr(compiler, "compile_kernel", lambda *_: SimpleNamespace(_init_handles=fail))
    launch._load.cache_clear()
    with pytest.raises(PlanError) as raised:
        launch.prepare(kernel_call(), planning(lambda *_: PLAN), SM_90_DEVICE, {})
    assert str(raised.value) == (
        "backend 'mine' (vendor 1.0): a kernel for the target ('cuda', 90, 32) cannot be loaded: "
        "device kernel image is invalid"
    )
