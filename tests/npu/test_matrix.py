"""Every kernel that the NPU's plan emits compiles, and what was compiled computes softmax."""

from __future__ import annotations

import functools
import mmap

import pytest
import torch

from offboard import device, lint, native
from tridal.runtime import launch
from tridal.runtime import specialization as variants
from tridal.runtime.row_layout import geometry
from tridal_npu import backend

from .execution import complaints
from .matrix import DTYPES, LAYOUTS, OPS, Case, group, properties

GROUPS = [
    pytest.param(
        op, dtypes, layout,
        id="-".join((op, *dict.fromkeys(dtypes), layout)),
        marks=pytest.mark.xdist_group("-".join((op, *dtypes, layout))),
    )
    for op in OPS for dtypes in DTYPES for layout in LAYOUTS
]  # fmt: skip


@functools.lru_cache(maxsize=2)
def compiled(op: str, dtypes: tuple[str, str], layout: str) -> dict[variants.Variant, tuple[Case, str]]:
    """Each different kernel of a group, with a case that it is compiled for and its linalg IR."""
    found: dict[variants.Variant, tuple[Case, str]] = {}
    for case in group(op, dtypes, layout):
        variant = case.variant()
        if variant not in found:
            found[variant] = case, launch.compile_variant(variant, properties().target).asm["ttadapter"]
    return found


@pytest.mark.parametrize(("op", "dtypes", "layout"), GROUPS)
def test_compiles(op, dtypes, layout, count):
    kernels = compiled(op, dtypes, layout)
    found = {
        str(case): problems
        for case, linalg in kernels.values()
        if (problems := lint.problems(linalg, contiguous=layout != "strided"))
    }
    assert not found
    algorithms = {case.plan().algorithm for case, _ in kernels.values()}
    assert algorithms == {"tile", "looped"}
    count("kernels compiled", len(kernels))


@pytest.mark.parametrize(("op", "dtypes", "layout"), GROUPS)
def test_computes(op, dtypes, layout, count):
    cases = group(op, dtypes, layout)
    native.build(linalg for _, linalg in compiled(op, dtypes, layout).values())
    found = {str(case): wrong for case in cases if (wrong := complaints(case))}
    assert not found
    count("cases executed", len(cases))


@pytest.mark.parametrize("num_programs", [1, 32])
def test_rows_that_lie_further_apart_than_32_bits_count(num_programs, count):
    shape, strides = (3, 70), ((1 << 31) + 3, 1)
    size = 2 * (shape[0] * strides[0] + shape[1])
    no_reserve = 0x4000  # of Linux: addresses at first, and memory only where it is used
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve) as memory:
        source = torch.frombuffer(memory, dtype=torch.float16).as_strided(shape, strides)
        source.copy_(torch.randn(shape))
        out = torch.empty(shape, dtype=torch.float16)
        call = variants.Call.of("softmax", geometry(shape, strides, 1), ("float16", "float16"))
        prepared = launch.prepare(call, backend, properties(), {"num_programs": num_programs})
        wide = dict(call.variant(prepared.plan.tile).constants)["WIDE"]
        assert wide == (num_programs == 1), "several rows in a tile, unless every row has a program"
        prepared.launch(device.current_stream().npu_stream, out, source)
        assert torch.allclose(out.double(), torch.softmax(source.double(), -1), rtol=2**-10, atol=1e-7)
        del source
    count("cases executed", 1)
