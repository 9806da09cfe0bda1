"""The CUDA backend without a GPU: occupancy, and resources of compiled kernels."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from tridal.devices import registry
from tridal.devices.types import KernelConfig, Resources
from tridal.ops import planning
from tridal.runtime import compiler
from tridal_cuda.resources import occupancy

CUDA = registry.get("cuda")
H100 = CUDA.architectures()["sm_90"]


def test_occupancy_is_the_smallest_limit_and_shows_the_calculation() -> None:
    config = KernelConfig("whole_row", 1, 1024, num_warps=8)
    programs, formula = occupancy(config, Resources(registers=32, spills=0, shared_memory=57_344), H100)
    assert programs == 4
    assert "registers 65536//(32*32*8)=8" in formula
    assert "shared memory 233472//58368=4" in formula


@pytest.mark.parametrize(
    ("registers", "shared_memory", "warps", "expected"),
    [
        pytest.param(32, 0, 8, 8, id="no-shared-memory-is-no-limit"),
        pytest.param(33, 0, 8, 6, id="registers-are-allocated-in-eights"),
        pytest.param(16, 0, 8, 8, id="2048-threads"),
        pytest.param(255, 0, 8, 1, id="registers"),
        pytest.param(99, 0, 2, 8, id="a-quarter-holds-whole-warps"),
        pytest.param(128, 0, 32, 0, id="too-many-registers"),
        pytest.param(32, 300_000, 4, 0, id="too-much-shared-memory"),
        pytest.param(16, 32_776, 2, 6, id="driver-reserves-one-kib-per-program"),
        pytest.param(16, 232_448, 2, 1, id="all-shared-memory"),
    ],
)
def test_occupancy_respects_each_limit(registers: int, shared_memory: int, warps: int, expected: int) -> None:
    config = KernelConfig("whole_row", 1, 1024, num_warps=warps)
    assert occupancy(config, Resources(registers, 0, shared_memory), H100)[0] == expected


def test_registers_and_spills_are_those_that_cuobjdump_prints() -> None:
    triton = pytest.importorskip("triton")
    problem = planning.matrix_call(1024, 1000, "bfloat16", "softmax")
    limited = KernelConfig("whole_row", 8, 1024, num_warps=4, max_registers=32)
    cubin = compiler.compile_kernel(problem.specialize(limited), H100.target).asm["cubin"]
    found = CUDA.resources({"cubin": cubin}, 512)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "cuobjdump"
        printed = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    assert f"REG:{found.registers} STACK:{found.spills} " in printed
    assert found.spills > 0
    assert found.shared_memory == 512


@pytest.mark.parametrize("cubin", [b"", b"not a cubin", b"\x7fELF" + bytes(100)])
def test_an_unreadable_cubin_raises(cubin: bytes) -> None:
    with pytest.raises(RuntimeError, match=f"a cubin of {len(cubin)} bytes, does not state its registers"):
        CUDA.resources({"cubin": cubin}, 0)
