"""The ROCm backend without a GPU: occupancy, resources of compiled kernels, and dtypes."""

from __future__ import annotations

from typing import Any

import pytest

from tridal.devices import registry
from tridal.devices.types import KernelConfig, Resources
from tridal_rocm.architectures import ARCHITECTURES
from tridal_rocm.resources import occupancy, read_resources, waves_per_simd

ROCM = registry.get("rocm")
MI300X, MI355X, RX7900 = (ARCHITECTURES[arch] for arch in ("gfx942", "gfx950", "gfx1100"))


# Occupancy


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
