"""The members of bundled backends without their devices: streams, what is missing, imports, and names."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tridal.devices import registry
from tridal.errors import PlanError

pytestmark = pytest.mark.usefixtures("no_calls")  # tests pretend other machines

DEVICES = ("cuda", "rocm", "npu", "xpu")
EACH = pytest.mark.parametrize("name", DEVICES)


@pytest.fixture
def torch_modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The module with the private function of the stream of each device type, which is empty."""
    private = ModuleType("torch_npu._C")
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    monkeypatch.setitem(sys.modules, "torch_npu._C", private)
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
    monkeypatch.delattr(torch._C, "_xpu_getCurrentRawStream", raising=False)
    return {"cuda": torch._C, "npu": private, "xpu": torch._C}


@EACH
@pytest.mark.parametrize("private", [True, False])
def test_the_stream_is_read_by_a_private_function_or_without_it_by_a_public_one(
    name: str, private: bool, torch_modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = registry.get(name).device_type
    if private:
        function = f"_{kind}_getCurrentRawStream"
        monkeypatch.setattr(torch_modules[kind], function, lambda index: 100 + index, raising=False)
    handle = "sycl_queue" if kind == "xpu" else f"{kind}_stream"
    module = SimpleNamespace(current_stream=lambda index: SimpleNamespace(**{handle: 200 + index}))
    monkeypatch.setattr(torch, kind, module, raising=False)
    assert registry.get(name).stream(1) == (101 if private else 201)


@EACH
def test_the_guard_is_torch_s_unless_the_device_is_current(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = registry.get(name)
    module = SimpleNamespace(current_device=lambda: 1, device=lambda index: f"guard {index}")
    monkeypatch.setattr(torch, backend.device_type, module, raising=False)
    assert backend.plugin.guard(0) == "guard 0"
    with backend.plugin.guard(1) as entered:
        assert entered is None


# -- properties of a present device


def gpu(**values: Any) -> SimpleNamespace:
    """What torch reports for an MI300X in partition mode CPX: one die with 38 compute units and its L2 cache."""
    known = {"name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+:xnack-", "multi_processor_count": 38}
    known |= {"L2_cache_size": 4 << 20, "total_memory": 24 << 30, "regs_per_multiprocessor": 65_536}
    return SimpleNamespace(**known | values)


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> Any:
    """present(kind, reported) makes torch report these properties for all devices of a type."""

    def pretend(kind: str, reported: SimpleNamespace) -> None:
        for module in ("tridal_cuda", "tridal_rocm"):
            sys.modules[f"{module}.architectures"].present_gpu.cache_clear()
        functions = SimpleNamespace(get_device_properties=lambda index: reported)
        monkeypatch.setattr(torch, kind, functions, raising=False)

    yield pretend
    for module in ("tridal_cuda", "tridal_rocm"):
        sys.modules[f"{module}.architectures"].present_gpu.cache_clear()


def test_properties_of_a_present_amd_gpu_are_those_of_torch_and_of_the_table(present: Any) -> None:
    present("cuda", gpu())
    found = registry.get("rocm").plugin.properties(0)
    assert (found.cores, found.memory, found.arch, found.target) == (38, 24 << 30, "gfx942", ("hip", "gfx942", 64))
    assert (found.registers, found.shared_memory, found.l2_cache) == (131_072, 65_536, 256 << 20)
    assert found.aliases == ()


def test_an_amd_gpu_without_plans_raises_with_known_names_and_what_to_do(present: Any) -> None:
    present("cuda", gpu(name="AMD Radeon VII", gcnArchName="gfx906:sramecc-:xnack-"))
    with pytest.raises(PlanError, match="device 1, AMD Radeon VII, has the architecture gfx906") as raised:
        registry.get("rocm").properties(1)
    for part in ("gfx942, gfx90a, gfx950, gfx1100, gfx1201", "TRIDAL_PLUGINS=-rocm", "HIP_VISIBLE_DEVICES"):
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("capability", "max_programs"),
    [((9, 0), 32), ((8, 6), 16), ((8, 7), 16), ((11, 0), None)],
)
def test_properties_of_a_present_nvidia_gpu_are_those_of_torch_and_triton(
    present: Any, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], max_programs: int | None
) -> None:
    runtime = pytest.importorskip("triton.runtime")
    major, minor = capability
    reported = {"major": major, "minor": minor, "name": "Some GPU", "max_threads_per_multi_processor": 2048}
    present("cuda", SimpleNamespace(**reported, L2_cache_size=60 << 20, total_memory=141 << 30))
    from_triton = {"multiprocessor_count": 78, "max_num_regs": 65_536, "max_shared_mem": 232_448, "warpSize": 32}
    from_triton |= {"mem_clock_rate": 2_619_000, "mem_bus_width": 5120 if max_programs else 0}
    active = SimpleNamespace(utils=SimpleNamespace(get_device_properties=lambda index: from_triton))
    monkeypatch.setattr(runtime, "driver", SimpleNamespace(active=active))
    found = registry.get("cuda").plugin.properties(0)
    assert (found.name, found.arch, found.cores, found.core_name) == ("Some GPU", f"sm_{major}{minor}", 78, "SM")
    assert (found.target, found.warp_size) == (("cuda", 10 * major + minor, 32), 32)
    limits = (found.registers, found.shared_memory, found.max_threads, found.max_programs, found.l2_cache, found.memory)
    assert limits == (65_536, 232_448, 2048, max_programs, 60 << 20, 141 << 30)
    assert found.bandwidth == (3_352_320_000_000 if max_programs else None)


def test_properties_of_a_present_npu_are_those_of_torch_npu(present: Any) -> None:
    reported = SimpleNamespace(name="Ascend910B4", vector_core_num=40, L2_cache_size=192 << 20, total_memory=32 << 30)
    present("npu", reported)
    assert registry.get("npu").plugin.properties(0) == registry.get("npu").architectures()["ascend910b4"]


# -- availability of a GPU; test_backend_npu.py has that of an NPU


def pretend(monkeypatch: pytest.MonkeyPatch, hip: str | None, cuda: str | None, present: bool = True) -> None:
    """Makes torch look like a build for a vendor's GPUs, with or without a GPU."""
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: present)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(present))


@pytest.mark.parametrize(
    ("name", "hip", "cuda", "present", "reasons"),
    [
        ("rocm", "6.4.1", None, True, None),
        ("cuda", "6.4.1", None, True, (torch.__version__, "is built for ROCm")),
        ("cuda", None, "12.8", True, None),
        ("rocm", None, "12.8", True, (torch.__version__, "is built for CUDA")),
        ("rocm", None, None, True, (torch.__version__, "is built without ROCm")),
        ("cuda", None, None, True, (torch.__version__, "is built without CUDA")),
        ("rocm", "6.4.1", None, False, ("sees no AMD GPU", "rocminfo", "render", "HIP_VISIBLE_DEVICES")),
        ("cuda", None, "12.8", False, ("sees no CUDA device", "nvidia-smi", "CUDA_VISIBLE_DEVICES")),
    ],
)
def test_a_build_of_torch_and_a_missing_gpu_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, hip: Any, cuda: Any, present: bool, reasons: tuple[str, ...] | None
) -> None:
    pytest.importorskip("triton")
    pretend(monkeypatch, hip, cuda, present)
    found = registry.get(name).unavailable()
    assert found is None if reasons is None else all(part in (found or "") for part in reasons)
