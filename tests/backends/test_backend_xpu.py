"""The XPU backend without a GPU and without its compiler: plans, occupancy, resources, availability, properties."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plan_invariants import check_plan, problems
from tridal.devices import registry
from tridal.devices.types import KERNEL_CONFIG, KernelConfig, LaunchPlan, Problem, Resources
from tridal.errors import PlanError
from tridal.runtime import plan_check
from tridal_xpu.architectures import ARCHITECTURES, present_gpu
from tridal_xpu.planning import plan
from tridal_xpu.resources import MAX_SPILL, occupancy, read_resources

XPU = registry.get("xpu")
PVC, BMG, DG2 = (ARCHITECTURES[arch] for arch in ("pvc", "bmg", "dg2"))
SUMS = {"column_writes": ("float32",)}


def problem(cols: int, rows: int, dtype: str = "bfloat16", reads: int = 1, **traits: Any) -> Problem:
    """The problem of a forward (`reads=1`) or a gradient (`reads=2`)."""
    return Problem(cols=cols, inner=rows, reads=(dtype,) * reads, writes=(dtype,), passes=4 - reads, **traits)


def spirv(config: KernelConfig) -> Resources:
    """What SPIR-V tells: no registers."""
    return Resources(0, 0, 4 * config.num_warps)


# Plans


@settings(max_examples=300, deadline=None)
@given(problems(), st.sampled_from(sorted(ARCHITECTURES)), st.data())
def test_invariants_hold_for_every_problem_and_every_compiler(problem: Problem, arch: str, data: st.DataObject) -> None:
    device = ARCHITECTURES[arch]
    probed: dict[KernelConfig, Resources] = {}
    spills = data.draw(st.sampled_from([st.just(0), st.integers(0, 2 * MAX_SPILL)]))
    slm = data.draw(st.sampled_from([st.just(0), st.integers(0, 4096), st.integers(0, 200_000)]))

    def probe(config: KernelConfig) -> Resources:
        return probed.setdefault(config, Resources(data.draw(st.integers(1, 128)), data.draw(spills), data.draw(slm)))

    try:
        found = plan(problem, device, probe)
    except PlanError:
        assert device.shared_memory
        assert min(used.shared_memory for used in probed.values()) > device.shared_memory - 1024
        return
    finally:
        assert len(probed) <= 2
    assert probed[found.config] == found.resources
    check_xpu_plan(problem, arch, found)
    plan_check.check_plan(XPU, problem, device, found, probe)


def check_xpu_plan(problem: Problem, arch: str, found: LaunchPlan) -> None:
    """Asserts what has to hold for plans of Intel GPUs."""
    device, config = ARCHITECTURES[arch], found.config
    check_plan(problem, device, found)
    assert config.schedule in ("whole_row", "column_loop"), "no device has shown that programs are resident together"
    assert (config.peel, config.reload, config.max_registers) == (False, False, None)
    threads = {"pvc": 64, "bmg": 64, "dg2": 128}[arch]
    assert found.occupancy is not None
    assert found.occupancy * config.num_warps <= threads
    assert f"min(threads {threads}//{config.num_warps}={threads // config.num_warps}" in found.reason
    assert found.programs_for(problem.tiles(config.rows)) * config.num_warps * 32 < 1 << 31


@settings(max_examples=100, deadline=None)
@given(problems(), st.sampled_from(sorted(ARCHITECTURES)))
def test_a_plan_without_a_compiler_is_the_one_that_spirv_gives(problem: Problem, arch: str) -> None:
    device = ARCHITECTURES[arch]
    without, compiled = plan(problem, device, None), plan(problem, device, spirv)
    assert (without.config, without.resources) == (compiled.config, None)
    check_xpu_plan(problem, arch, compiled)


@pytest.mark.parametrize(
    ("device", "problem", "expected"),
    [
        # rows of more elements than half of the registers of 1,024 work-items hold are column loops
        (PVC, problem(32_768, 4096), {"schedule": "whole_row", "num_warps": 32}),
        (PVC, problem(32_769, 4096), {"schedule": "column_loop", "cols": 8192}),
        (PVC, problem(16_384, 4096, reads=2), {"schedule": "whole_row"}),
        (PVC, problem(16_385, 4096, reads=2), {"schedule": "column_loop", "cols": 4096}),
        # DG2 has half of the registers per work-item
        (DG2, problem(16_384, 4096), {"schedule": "whole_row", "num_warps": 32}),
        (DG2, problem(16_385, 4096), {"schedule": "column_loop", "cols": 4096}),
        # narrow rows share a tile of one sub-group
        (PVC, problem(64, 1_000_000), {"rows": 8, "num_warps": 1, "persistent": False}),
        (DG2, problem(64, 1_000_000), {"rows": 4, "num_warps": 1, "persistent": False}),
        # programs loop if they sum over rows, or if there would be too many work-items
        (PVC, problem(4096, 100_000, reads=2, **SUMS), {"persistent": True}),
        (PVC, problem(4096, 1 << 24), {"persistent": True}),
        # inner-dim rows fill two cache lines if there are enough tiles, and else one
        (PVC, problem(512, 100_000, layout="inner"), {"schedule": "whole_row", "rows": 64}),
        (PVC, problem(512, 1000, layout="inner"), {"schedule": "whole_row", "rows": 32}),
        (PVC, problem(50_257, 512, layout="inner"), {"schedule": "column_loop", "rows": 32}),
    ],
)
def test_decision(device: Any, problem: Problem, expected: dict[str, Any]) -> None:
    found = plan(problem, device, spirv).config
    assert {name: getattr(found, name) for name in expected} == expected


def test_rows_that_spill_more_than_the_limit_are_a_column_loop() -> None:
    def probe(config: KernelConfig) -> Resources:
        elements = config.rows * config.cols // (32 * config.num_warps)
        return Resources(64, max(0, per_element * elements - 64) * 8, 0)

    per_element = 5
    assert plan(problem(4096, 4096), PVC, probe).schedule == "whole_row"
    per_element = 30
    assert plan(problem(4096, 4096), PVC, probe).schedule == "column_loop"


def test_a_given_configuration_is_planned() -> None:
    config = KernelConfig("whole_row", 2, 1024, num_warps=4, exp2_bias=1e-9, persistent=False)
    assert XPU.plugin.plan(problem(1000, 64, "float32"), PVC, spirv, {KERNEL_CONFIG: config}).config == config


# Resources


@pytest.mark.parametrize(
    ("device", "slm", "warps", "expected"),
    [(PVC, 0, 1, 64), (PVC, 0, 32, 2), (DG2, 0, 32, 4), (PVC, 40_000, 1, 3), (DG2, 65_537, 1, 0)],
)
def test_occupancy_respects_each_limit(device: Any, slm: int, warps: int, expected: int) -> None:
    assert occupancy(KernelConfig("whole_row", 1, 1024, num_warps=warps), Resources(1, 0, slm), device)[0] == expected


def test_spirv_has_no_registers_and_machine_code_has_those_of_the_compiler() -> None:
    assert read_resources(b"\x03\x02\x23\x07", 512) == Resources(0, 0, 512)
    native = b"\x7fELF ... execution_env:\n  grf_count:       256\n  simd_size: 32\n  spill_size:      4096\n"
    assert read_resources(native, 512) == Resources(128, 128, 512)
    assert read_resources(b"\x7fELF grf_count: 128\n", 0) == Resources(64, 0, 0)


# Host code, with stand-ins


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """present(name, **reported) makes torch report these properties for all devices."""

    def pretend(name: str, **reported: Any) -> None:
        known = {"gpu_subslice_count": 20, "total_memory": 12 << 30, "local_mem_size": 131_072}
        values = SimpleNamespace(name=name, **known | reported)
        functions = SimpleNamespace(
            get_device_properties=lambda index: values, get_device_capability=lambda index: vars(values)
        )
        monkeypatch.setattr(torch, "xpu", functions)

    present_gpu.cache_clear()
    yield pretend
    present_gpu.cache_clear()


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("Intel(R) Data Center GPU Max 1100", "pvc"),
        ("Intel(R) Data Center GPU Flex 170", "dg2"),
        ("Intel(R) Arc(TM) A770 Graphics", "dg2"),
        ("Intel(R) Arc(TM) B580 Graphics", "bmg"),
    ],
)
def test_properties_of_a_present_gpu_are_those_of_torch_and_of_the_table(present: Any, name: str, arch: str) -> None:
    present(name)
    found, example = XPU.plugin.properties(0), ARCHITECTURES[arch]
    assert (found.name, found.arch, found.cores, found.memory) == (name, arch, 20, 12 << 30)
    assert (found.shared_memory, found.l2_cache, found.max_threads) == (131_072, example.l2_cache, example.max_threads)
    assert found.target is not None
    backend, target, sub_group = found.target
    assert (backend, dict(target)["gpu_subslice_count"], sub_group) == ("xpu", 20, 32)  # type: ignore[arg-type]
    assert hash(found.target)


@pytest.mark.parametrize(
    ("built", "sees", "triton", "reason"),
    [
        (False, False, "intel", "is built without XPU"),
        (True, False, "intel", "torch sees no Intel GPU: check the driver with xpu-smi"),
        (True, True, None, "the package triton is not installed"),
        (True, True, "nvidia", "the triton that is installed is not triton-xpu"),
        (True, True, "intel", None),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, built: bool, sees: bool, triton: str | None, reason: str | None
) -> None:
    monkeypatch.setattr(torch._C, "_has_xpu", built, raising=False)
    monkeypatch.setattr(torch, "xpu", SimpleNamespace(is_available=lambda: sees))
    spec = None if triton is None else SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    (tmp_path / "backends" / (triton or "")).mkdir(parents=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: spec)
    found = XPU.plugin.unavailable()
    assert found is None if reason is None else reason in (found or "")
