"""Faults that are found when a plugin is called: the error names the backend, the distribution and the member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tridal
from backend_helpers import assert_others_work, faulty
from tridal.devices import registry
from tridal.errors import DeviceUnavailableError, PlanError, PluginError, TridalError
from tridal.ops import planning

pytestmark = pytest.mark.usefixtures("fresh_registry")


def compute() -> None:
    """Computes a softmax of a CPU tensor with the backend "bad"."""
    with tridal.use(device="bad"):
        tridal.softmax(torch.zeros(6, 5))


def ask_availability() -> None:
    registry.available("bad")


def count_devices() -> None:
    registry.resolve("bad:0")


PLAN = "Toy.plan = lambda self, problem, device, probe, options: "
CALLING: dict[Callable[[], None], dict[str, str]] = {
    ask_availability: {
        "Toy.unavailable = lambda self: 1 / 0": "unavailable() raised ZeroDivisionError: division by zero",
        "def unavailable(self): raise SystemExit(2)\nToy.unavailable = unavailable":
            "unavailable() raised SystemExit: 2",
    },
    count_devices: {
        "Toy.device_count = lambda self: None": "device_count(): expected a count from 0 to 128, found nothing",
    },
    compute: {
        "Toy.stream = lambda self, index: None":
            "stream(0): expected an integer, 0 for a device without streams, found nothing",
        "Toy.guard = lambda self, index: None": "guard(0): expected a context manager, found nothing",
        "from contextlib import ExitStack\n"
        "class Guard(ExitStack):\n"
        "    def __enter__(self): raise OSError('no such device')\n"
        "Toy.guard = lambda self, index: Guard()":
            "entering guard(0) raised OSError: no such device",
        "Toy.properties = lambda self, index: self.handle":
            "properties(0) raised AttributeError: 'Toy' object has no attribute 'handle'",
        "Toy.properties = lambda self, index: {'cores': 4}":
            "properties(0): expected DeviceProperties, found {'cores': 4}",
        "Toy.properties = lambda self, index: DeviceProperties('Toy', 'toy1', 0)":
            "properties(0).cores: expected a positive integer, found 0",
        "Toy.properties = lambda self, index: DeviceProperties('T', 't', 1, target=('cuda', 90, 64), warp_size=32)":
            "properties(0).target: expected (backend, architecture, warp size) with the warp size 32 of `warp_size`",
        "Toy.properties = lambda self, index: DeviceProperties('Toy', 'toy1', 1, target=('cuda', 90.0, 32))":
            "properties(0).target: expected (backend, architecture, warp size) or None, found ('cuda', 90.0, 32)",
        "Toy.properties = lambda self, index: DeviceProperties('Toy', 'toy1', 1, aliases=(5,))":
            "properties(0).aliases: expected a tuple of texts, found (5,)",
        "def plan(self, problem, device, probe, options): raise ValueError('no\\n\\nplan')\nToy.plan = plan":
            "plan() raised ValueError: no plan",
        PLAN + "(1, 2)": "plan(): expected a LaunchPlan, found (1, 2)",
        PLAN + "LaunchPlan(None, 1, '')": "plan().config: expected a KernelConfig, found nothing",
        PLAN + "LaunchPlan(KernelConfig('wholerow', 1, 8), 1, '')":
            "made a wrong plan: schedule = 'wholerow', expected one of the backend's `schedules`: column_loop, ",
        PLAN + "LaunchPlan(KernelConfig('whole_row', 0, 8), problem.tiles(0), '')":
            "plan(): rows = 0: a tile has at least one row",
        PLAN + "probe((1, 2))": "plan() called probe(config): expected a KernelConfig",
        "Toy.interpreted = False":
            "properties(0).target: expected Triton's target, because kernels are compiled, found nothing",
    },
}  # fmt: skip
"""Code that breaks the class `Toy` of a plugin, and a part of the error, by the action that finds the fault."""


@pytest.mark.parametrize(
    ("action", "fault", "expected"),
    [(action, fault, expected) for action, faults in CALLING.items() for fault, expected in faults.items()],
    ids=[fault for faults in CALLING.values() for fault in faults],
)
def test_fault_in_a_call_names_backend_distribution_and_member(
    install_plugin: Callable[..., None], fault: str, action: Callable[[], None], expected: str
) -> None:
    install_plugin("badly", {"bad": "badly:backend"}, faulty(fault))
    for _ in range(2):  # the second call fails as the first one
        with pytest.raises((PluginError, PlanError, DeviceUnavailableError)) as raised:
            action()
        assert "backend 'bad' (badly 1.0)" in str(raised.value)
        assert expected in str(raised.value)
        assert "\n" not in str(raised.value)
    assert_others_work()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("lambda self: 1 / 0", "architectures() raised ZeroDivisionError: division by zero"),
        ("lambda self: None", "architectures(): expected a mapping from names to DeviceProperties, found nothing"),
        ("lambda self: {1: self.properties(0)}", "architectures(): expected a mapping from names"),
        ("lambda self: {'toy1': None}", "architectures()['toy1']: expected DeviceProperties, found nothing"),
    ],
)
def test_fault_in_architectures_is_logged_once_and_others_can_be_planned(
    install_plugin: Callable[..., None], caplog: Any, fault: str, expected: str
) -> None:
    planning._log_fault.cache_clear()
    install_plugin("badly", {"bad": "badly:backend"}, faulty(f"Toy.architectures = {fault}"))
    for _ in range(2):
        assert planning.plan(1823, 781, arch="ascend910b").programs == 32
        with pytest.raises(TridalError, match="unknown architecture 'toy1'"):
            planning.plan(1823, 781, arch="toy1")
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"backend 'bad' (badly 1.0): {expected}")
    assert registry.find_architectures()[1] == [message]
    assert_others_work()


def test_architecture_of_another_backend_gets_a_longer_name(install_plugin: Callable[..., None], caplog: Any) -> None:
    planning._log_fault.cache_clear()
    install_plugin("badly", {"bad": "badly:backend"}, faulty("Toy.devices = {'ascend910b': Toy.devices['toy1']}"))
    assert planning.target(arch="ascend910b")[0] is registry.get("npu")
    assert planning.target(arch="bad:ascend910b")[0] is registry.get("bad")
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("backend 'bad' (badly 1.0): architectures(): backend 'npu' (tridal")
    assert message.endswith("has 'ascend910b', so this one is 'bad:ascend910b'")
