"""ROCm kernels that the installed Triton compiles without a GPU: all planned kernels, or a representative part."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from plan_invariants import check_rocm_plan
from tridal.devices import registry
from tridal.devices.types import KernelConfig
from tridal.kernels.row_kernel import RowKernel
from tridal.library.softmax.softmax import SOFTMAX
from tridal.ops import planning, table
from tridal.runtime import compiler, launch
from tridal.runtime.row_layout import contiguous_strides, row_layout
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import KernelCall
from tridal_rocm.resources import waves_per_simd

triton = pytest.importorskip("triton")

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 5):
    pytest.skip("Triton 3.4 and older need ld.lld to compile for AMD GPUs", allow_module_level=True)
RESERVED_SCALARS = 16 if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9) else 0
"""Scalar registers per wave that newer LLVM adds, the size of a trap handler's. Plans do not count them."""

ROCM = registry.get("rocm")
ARCHITECTURES = ("gfx942", "gfx950", "gfx90a", "gfx1100", "gfx1201")
KERNELS = table.kernels()
SHAPES = [
    ((100_000, 3), -1), ((262_144, 64), -1), ((4096, 781), -1), ((58_254, 1152), -1), ((13_412, 10_007), -1),
    ((4096, 32_768), -1), ((2670, 50_257), -1), ((4096, 65_536), -1), ((2048, 131_072), -1), ((64, 4096, 256), 1),
    ((32, 1000, 1001), 1), ((50_257, 512), 0), ((16, 300, 5), 1),
]  # fmt: skip
DTYPES = ("bfloat16", "float32", "float16", "float64")
SCALE_MASKS = (ScaleMask(scale=0.5, causal=True), ScaleMask(mask="float32", strides=(0, 0, 0, 1)))
STEP = 991  # between the calls that are compiled by default; a prime, so that they have all shapes and dtypes


class Case(NamedTuple):
    """A planned kernel to compile."""

    arch: str
    dtype: str
    shape: tuple[int, ...]
    dim: int
    step: int = 1
    """Stride of the last dimension of the input."""
    address: int = 0
    """Bytes from a multiple of 16 to the first element of each tensor."""
    scale_mask: ScaleMask = ScaleMask()

    def call(self, kernel: RowKernel) -> KernelCall:
        """The call of a kernel."""
        strides = tuple(self.step * stride for stride in contiguous_strides(self.shape))
        layout = row_layout(self.shape, strides, self.dim % len(self.shape))
        assert layout is not None
        parameters = tuple(None if name == "scale" else 1e-5 for name in kernel.parameters)
        given = planning.tensor_dtypes(kernel, self.dtype)
        return KernelCall(kernel, layout, given, (self.address,) * len(given), parameters, self.scale_mask)


def cases(kernel: RowKernel) -> Iterator[Case]:
    """All cases of a kernel: every architecture, dtype and shape; strided, unaligned, scaled and masked rows."""
    for arch, dtype in itertools.product(ARCHITECTURES, DTYPES):
        yield from (Case(arch, dtype, shape, dim) for shape, dim in SHAPES)
        yield from (Case(arch, dtype, shape, -1, step=2) for shape in ((4096, 3000), (512, 70_000)))
        yield Case(arch, dtype, (4096, 4096), -1, address=8)
        if kernel.scale_mask:
            shapes = ((4, 8, 512, 1000), (4, 8, 512, 40_000))
            yield from (Case(arch, dtype, s, -1, scale_mask=m) for s in shapes for m in SCALE_MASKS)


def chosen(config: pytest.Config, name: str) -> list[Case]:
    """The cases to compile: all with `--all-kernels`, else a few, which differ from kernel to kernel."""
    every = list(cases(KERNELS[name]))
    return every if config.getoption("--all-kernels") else every[7 * list(KERNELS).index(name) % STEP :: STEP]


def numbers(assembly: str) -> dict[str, int]:
    """The numbers in the metadata of AMD assembly."""
    return {name: int(value) for name, value in re.findall(r"^\s+(?:- )?\.(\w+): +(\d+)$", assembly, re.MULTILINE)}


def compiler_waves(assembly: str) -> int:
    """The waves per SIMD in the compiler's comment. They ignore the LDS, which is allocated at the launch."""
    return int(re.findall(r"^; Occupancy: (\d+)", assembly, re.MULTILINE)[-1])


def check_kernel(kernel: RowKernel, case: Case) -> None:
    """Asserts that the planned kernel compiles and does not spill, and that its waves are those of the compiler."""
    call, device = case.call(kernel), ROCM.architectures()[case.arch]
    assert device.target is not None
    before = compiler.resources.cache_info().misses
    plan = launch.plan(call, ROCM, device, {})
    assert compiler.resources.cache_info().misses - before <= 12
    check_rocm_plan(call.problem, device, plan)
    assert plan.resources is not None
    assert plan.resources.spills == 0, plan
    compiled = compiler.compile_kernel(call.specialize(plan.config), device.target)
    assert compiled.asm["hsaco"].startswith(b"\x7fELF")
    assembly = compiled.asm["amdgcn"]
    reported = numbers(assembly)
    waves = waves_per_simd(plan.resources.registers, device)[0]
    if RESERVED_SCALARS and reported["wavefront_size"] == 64:  # 800 scalar registers, allocated in units of 16
        waves = min(waves, 50 // -(-(reported["sgpr_count"] + RESERVED_SCALARS) // 16))
    assert waves == compiler_waves(assembly), plan
    assert reported["private_segment_fixed_size"] == reported["vgpr_spill_count"] == 0
    assert reported["max_flat_workgroup_size"] == plan.config.num_warps * reported["wavefront_size"]
    assert reported["wavefront_size"] == device.warp_size


@pytest.mark.parametrize("name", KERNELS)
def test_planned_kernels_compile_and_have_the_waves_of_the_compiler(name: str, pytestconfig: pytest.Config) -> None:
    failed = []
    for case in chosen(pytestconfig, name):
        try:
            check_kernel(KERNELS[name], case)
        except Exception as error:
            failed.append(f"{case}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)


def compile_softmax(arch: str, shape: tuple[int, int], config: KernelConfig, dtype: str = "float32") -> Any:
    """The compiled kernel of softmax."""
    target = ROCM.architectures()[arch].target
    assert target is not None
    return compiler.compile_kernel(Case(arch, dtype, shape, -1).call(SOFTMAX.forward).specialize(config), target)


@pytest.mark.parametrize("peel", [True, False])
def test_peeled_rows_are_loaded_with_vectors(peel: bool) -> None:
    config = KernelConfig("whole_row", 1, 16_384, num_warps=8, peel=peel, exp2_bias=0.0, persistent=False)
    assembly = compile_softmax("gfx942", (4096, 10_007), config, "bfloat16").asm["amdgcn"]
    loads = Counter(re.findall(r"(?:global|buffer)_load_(\w+)", assembly))
    assert (loads["dwordx4"] >= 4) == peel
    assert (loads["ushort"] >= 32) != peel
