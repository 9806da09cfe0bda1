"""Launches: arguments are bound by name, and plans that cannot be launched are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from call_helpers import SM_90, WHOLE_ROW, kernel_call
from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan
from tridal.errors import PlanError
from tridal.ops.softmax import SOFTMAX
from tridal.runtime import compiler, launch
from tridal.runtime.row_kernel import RowKernel
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import NO_SCALE_MASK

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
def test_each_kernel_argument_gets_its_own_value(
    monkeypatch: pytest.MonkeyPatch,
    config: KernelConfig,
    kernel: RowKernel,
    parameters: tuple[float | None, ...],
    scale_mask: ScaleMask,
    launcher: Any,
) -> None:
    """Tensors, run-time numbers and constants, with and without a mask and a workspace."""
    triton = pytest.importorskip("triton")
    passed: list[Any] = []
    source = SimpleNamespace(fn=None, signature={})
    loaded = SimpleNamespace(
        run=lambda *a: passed.extend(a[9:]), function=0, packed_metadata=None, src=source, metadata=None
    )
    monkeypatch.setattr(launch, "_load", lambda *_: loaded)
    driver = SimpleNamespace(active=SimpleNamespace(get_current_device=lambda: 0, launcher_cls=launcher))
    monkeypatch.setattr(triton.runtime, "driver", driver)
    call = kernel_call(kernel=kernel, parameters=parameters, scale_mask=scale_mask)
    pointers = ["out_ptr", "in_ptr"] + ["in2_ptr"] * (len(kernel.reads) > 1)
    pointers += ["mask_ptr"] * (scale_mask.mask is not None) + ["workspace"] * (config.programs_per_row > 1)
    tensors = [SimpleNamespace(data_ptr=lambda name=name: name) for name in pointers]
    device = DeviceProperties("here", "sm_90", 132, target=SM_90)
    launch._bind_compiled(call, LaunchPlan(config, programs=4, reason=""), device)(0, *tensors)
    specialization = call.specialize(config)
    names = compiler.entry(specialization.entry).arg_names
    if launcher is RecordingLauncher:
        names = [name for name in names if name in dict(specialization.types)]
        passed = list(RecordingLauncher.launched[9:])
    arguments = dict(zip(names, passed, strict=True))
    addresses = {
        name: arguments[name] if launcher is RecordingLauncher else arguments[name].data_ptr() for name in pointers
    }
    assert addresses == {name: name for name in pointers}
    numbers = compiler.constants_of(specialization, triton) | dict(specialization.constants) | call.scalars(config)
    numbers["ACC_DTYPE"] = triton.language.float32
    others = [name for name in names if name not in pointers]
    assert {name: arguments[name] for name in others} == {name: numbers[name] for name in others}


def backend(planned: LaunchPlan) -> Any:
    """Returns an interpreted backend that always makes this plan."""
    return SimpleNamespace(name="fixed", interpreted=True, options={}, plan=lambda *_: planned)


def test_the_interpreter_refuses_a_cooperative_plan() -> None:
    pytest.importorskip("triton")
    planned = LaunchPlan(KernelConfig("cooperative", 1, 512, programs_per_row=2), programs=2, reason="")
    with pytest.raises(PlanError, match="runs programs one after another, so it cannot run a cooperative plan"):
        launch.prepare(kernel_call(), backend(planned), HERE, {})


def test_a_plan_without_programs_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'fixed' planned 0 programs"):
        launch.prepare(kernel_call(), backend(LaunchPlan(WHOLE_ROW, programs=0, reason="")), HERE, {})


@pytest.mark.parametrize("programs", [1, 63, 65])
def test_a_plan_without_persistent_programs_needs_one_program_per_tile(programs: int) -> None:
    planned = LaunchPlan(KernelConfig("whole_row", 1, 1024, persistent=False), programs, reason="")
    with pytest.raises(PlanError, match=rf"'fixed' planned {programs} programs that are not persistent for 64 tiles"):
        launch.plan(kernel_call((64, 1024)), backend(planned), HERE, {})


def test_a_probe_for_a_device_without_a_compile_target_raises() -> None:
    class Probing:
        name, interpreted, options = "probing", False, {}  # type: ignore[var-annotated]

        def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
            return LaunchPlan(WHOLE_ROW, 1, "", resources=probe(WHOLE_ROW))

    with pytest.raises(PlanError, match=r"'probing' probed for resources, but somewhere has no compile target"):
        launch.plan(kernel_call(), Probing(), DeviceProperties("somewhere", "?", 1), {})  # type: ignore[arg-type]
