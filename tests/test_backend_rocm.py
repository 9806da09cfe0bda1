"""The ROCm backend without a GPU: occupancy, resources of compiled kernels, the stream, and what is missing."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tridal
from rocm_invariants import waves
from tridal.devices import registry, settings
from tridal.devices.types import KernelConfig, Resources
from tridal.errors import DeviceUnavailableError, DTypeError, PlanError, UnknownDeviceError
from tridal.ops import planning
from tridal.testing import check_runtime
from tridal_rocm.architectures import ARCHITECTURES, present_gpu
from tridal_rocm.resources import occupancy, read_resources, waves_per_simd

pytestmark = pytest.mark.usefixtures("nothing_prepared")  # tests pretend other machines

ROCM = registry.get("rocm")
MI300X, MI355X, RX7900 = (ARCHITECTURES[arch] for arch in ("gfx942", "gfx950", "gfx1100"))


# Occupancy


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_waves_of_a_simd_are_limited_by_registers_in_units_of_the_architecture(arch: str) -> None:
    device = ARCHITECTURES[arch]
    assert device.warp_size is not None
    for registers in range(1, 513):
        assert waves_per_simd(registers, device)[0] == waves(registers, device.warp_size)


@pytest.mark.parametrize(
    ("arch", "registers", "expected"),
    [("gfx942", 84, 5), ("gfx942", 128, 4), ("gfx942", 165, 3), ("gfx942", 256, 2), ("gfx1100", 164, 9)],
)
def test_waves_of_a_simd_are_those_of_the_compiler_comment(arch: str, registers: int, expected: int) -> None:
    assert waves_per_simd(registers, ARCHITECTURES[arch])[0] == expected


@pytest.mark.parametrize(
    ("device", "registers", "lds", "warps", "expected"),
    [
        pytest.param(MI300X, 32, 0, 1, 32, id="32-waves"),
        pytest.param(MI300X, 84, 0, 8, 2, id="registers"),
        pytest.param(MI300X, 129, 0, 16, 0, id="too-many-registers"),
        pytest.param(MI300X, 32, 20_000, 1, 3, id="lds"),
        pytest.param(MI355X, 32, 20_000, 1, 8, id="lds-of-160-kib-in-units-of-1280-bytes"),
        pytest.param(MI300X, 32, 65_537, 1, 0, id="too-much-lds"),
        pytest.param(RX7900, 32, 0, 1, 64, id="64-waves"),
        pytest.param(RX7900, 193, 0, 16, 1, id="registers-in-units-of-24"),
        pytest.param(RX7900, 32, 65_536, 4, 2, id="lds-of-a-workgroup-processor"),
        pytest.param(RX7900, 32, 65_537, 4, 0, id="too-much-lds-for-one-program"),
    ],
)
def test_occupancy_respects_each_limit(device: Any, registers: int, lds: int, warps: int, expected: int) -> None:
    config = KernelConfig("whole_row", 1, 1024, num_warps=warps)
    assert occupancy(config, Resources(registers, 0, lds), device)[0] == expected


def test_occupancy_shows_the_calculation() -> None:
    config = KernelConfig("whole_row", 1, 1024, num_warps=8)
    programs, formula = occupancy(config, Resources(84, 0, 16_384), MI300X)
    assert (programs, formula) == (2, "min(waves 4*min(8, 512//88)//8=2, LDS 65536//16384=4, programs 32)")


def test_unknown_device_properties_are_those_of_cdna_or_set_no_limit() -> None:
    unknown = replace(MI300X, registers=None, shared_memory=None, max_threads=None, max_programs=None)
    config = KernelConfig("whole_row", 1, 1024, num_warps=8)
    assert occupancy(config, Resources(84, 0, 100_000), unknown)[0] == 2


# Resources


def metadata(**values: int) -> str:
    """The metadata at the end of AMD assembly. LLVM indents it and leaves out the accumulation registers on RDNA."""
    known = {"group_segment_fixed_size": 0, "private_segment_fixed_size": 24, "sgpr_count": 30, "vgpr_count": 84}
    lines = [f"    .{name}:{' ' * 8}{value}" for name, value in (known | {"wavefront_size": 64} | values).items()]
    return "\n".join(["\tv_mov_b32 v0, 0", "amdhsa.kernels:", "  - .args:", *lines, "...\n"])


def test_resources_are_read_from_the_metadata() -> None:
    assert ROCM.resources({"amdgcn": metadata()}, 512) == Resources(registers=84, spills=24, shared_memory=512)


@pytest.mark.parametrize(
    ("sgpr_count", "wavefront_size", "registers"), [(100, 64, 40), (101, 64, 65), (106, 64, 65), (106, 32, 40)]
)
def test_many_scalar_registers_limit_cdna_to_seven_waves(sgpr_count: int, wavefront_size: int, registers: int) -> None:
    text = metadata(sgpr_count=sgpr_count, wavefront_size=wavefront_size, vgpr_count=40)
    assert read_resources(text, 0).registers == registers
    assert wavefront_size == 32 or waves_per_simd(registers, MI300X)[0] == (8 if sgpr_count <= 100 else 7)


def test_assembly_without_metadata_raises_with_the_missing_names() -> None:
    with pytest.raises(RuntimeError, match="the metadata of the AMD assembly lacks private_segment_fixed_size, sgpr_"):
        read_resources("\tv_mov_b32 v0, 0\n", 0)


# Devices


def gpu(**values: Any) -> SimpleNamespace:
    """What torch reports for an MI300X in partition mode CPX: one die with 38 compute units and its L2 cache."""
    known = {"name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+:xnack-", "multi_processor_count": 38}
    known |= {"L2_cache_size": 4 << 20, "total_memory": 24 << 30, "regs_per_multiprocessor": 65_536}
    return SimpleNamespace(**known | values)


def test_properties_of_a_present_gpu_are_those_of_torch_and_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu())
    found = present_gpu.__wrapped__(0)
    assert (found.cores, found.memory, found.arch, found.target) == (38, 24 << 30, "gfx942", ("hip", "gfx942", 64))
    assert (found.registers, found.shared_memory, found.l2_cache) == (131_072, 65_536, 256 << 20)
    assert found.aliases == ()


def test_a_gpu_without_plans_raises_with_known_names_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    other = gpu(name="AMD Radeon VII", gcnArchName="gfx906:sramecc-:xnack-")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: other)
    present_gpu.cache_clear()
    with pytest.raises(PlanError, match="device 1, AMD Radeon VII, has the architecture gfx906") as raised:
        ROCM.properties(1)
    for part in ("gfx942, gfx90a, gfx950, gfx1100, gfx1201", "TRIDAL_PLUGINS=-rocm", "HIP_VISIBLE_DEVICES"):
        assert part in str(raised.value)


@pytest.mark.parametrize(("name", "suggested"), [("gfx943", "gfx942"), ("gfx1101", "gfx1100"), ("mi300", "mi300x")])
def test_an_unknown_architecture_suggests_known_ones(name: str, suggested: str) -> None:
    with pytest.raises(UnknownDeviceError, match=f"unknown architecture '{name}'; did you mean .*'{suggested}'"):
        tridal.plan(4, 4, arch=name)


def test_the_name_of_an_architecture_as_a_device_names_the_backend() -> None:
    with pytest.raises(UnknownDeviceError, match="'gfx942'; it is an architecture of the device 'rocm'"):
        tridal.device("gfx942")


def test_an_unsupported_dtype_raises_with_the_known_ones() -> None:
    with pytest.raises(DTypeError, match="kernels compute float16, bfloat16, float32, float64"):
        tridal.plan(4, 4, arch="gfx942", dtype="float8_e4m3fn")


@pytest.mark.parametrize("product", ["MI300X", "mi355x", "RX 7900 XTX", "mi210"])
def test_a_product_is_an_alias_of_its_architecture(product: str) -> None:
    assert planning.target(arch=product)[0].name == ROCM.name


# Availability


def pretend(monkeypatch: pytest.MonkeyPatch, hip: str | None = "6.4.1", present: bool = True) -> None:
    """Makes torch look like a ROCm build, with or without a GPU."""
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: present)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(present))


def test_a_rocm_torch_with_a_gpu_makes_rocm_available_and_cuda_not(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    pretend(monkeypatch)
    assert ROCM.unavailable() is None
    reason = registry.get("cuda").unavailable()
    assert reason is not None
    assert "is built for ROCm" in reason


@pytest.mark.parametrize(("cuda", "reason"), [("12.8", "is built for CUDA"), (None, "is built without ROCm")])
def test_another_build_of_torch_is_named(monkeypatch: pytest.MonkeyPatch, cuda: str | None, reason: str) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    found = ROCM.unavailable()
    assert found is not None
    assert found.endswith(reason)
    assert torch.__version__ in found


def test_a_missing_device_names_the_driver_and_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, present=False)
    reason = ROCM.unavailable()
    assert reason is not None
    assert all(part in reason for part in ("torch sees no AMD GPU", "rocminfo", "render", "HIP_VISIBLE_DEVICES"))


@pytest.mark.parametrize("found", [None, SimpleNamespace(submodule_search_locations=["/nowhere"])])
def test_a_missing_triton_and_one_without_amd_backend_differ(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    pretend(monkeypatch)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    reason = ROCM.unavailable()
    assert reason is not None
    assert ("has no AMD backend" if found else "triton is not installed") in reason
    assert "reinstall the ROCm build of torch" in reason


@pytest.mark.parametrize(("present", "state"), [(True, "available"), (False, "not available")])
def test_cuda_by_name_with_a_rocm_torch_names_rocm(
    monkeypatch: pytest.MonkeyPatch, fresh_registry: None, present: bool, state: str
) -> None:
    pytest.importorskip("triton")
    pretend(monkeypatch, present=present)
    monkeypatch.setenv("TRIDAL_DEVICE", "cuda")
    settings.reload()
    with pytest.raises(DeviceUnavailableError, match=f"'rocm', which also serves 'cuda' tensors, is {state}"):
        tridal.device()


def test_the_extra_exists_and_is_in_the_install_text() -> None:
    from importlib import metadata

    assert "rocm" in (metadata.metadata("tridal").get_all("Provides-Extra") or [])
    assert "'tridal[rocm]'" in ROCM.install


def test_runtime_members_work_with_two_devices() -> None:
    pytest.importorskip("triton", minversion="3.5", reason="older versions need ld.lld to compile for AMD GPUs")
    assert check_runtime(ROCM.plugin) == ()


def test_without_the_private_function_the_stream_is_read_by_public_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=200 + index))
    assert ROCM.stream(1) == 201
