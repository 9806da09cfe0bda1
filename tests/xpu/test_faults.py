"""Each fault that is seeded into a compiled or a written kernel gives results that the conformance suite rejects."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
from npu.seeding import Mutant, seeded

import tridal
from opencl import driver, native
from tridal import testing
from tridal.devices import registry
from tridal.kernels.function_caches import forget_functions
from tridal.testing.cases import Case

from .conftest import NAME

SUB_GROUP_SIZE, BARRIER = 35, 224  # an execution mode and an operation of SPIR-V
Words = tuple[int, ...]

TEXTS = [
    Mutant("whole_row", "elements beyond the end of a row are loaded",
           r"(tl\.load\([^,]*), mask=in_bounds, other=[^)]*\)+", r"\1)"),
    Mutant("whole_row", "the input is read with the strides of the output", r"x_ptr \+ in_row", "x_ptr + out_row"),
    Mutant("whole_row", "rows start one element too late", r"(in_row = .*)", r"\1 + 1"),
]  # fmt: skip


def half_sub_group(words: Words) -> Words:
    """Sub-groups have 16 work-items instead of 32."""
    is_size = words[0] & 0xFFFF == native.EXECUTION_MODE and words[2] == SUB_GROUP_SIZE
    return (*words[:3], words[3] // 2) if is_size else words


def no_barrier(words: Words) -> Words:
    """Sub-groups read the local memory without waiting for the others."""
    return () if words[0] & 0xFFFF == BARRIER else words


@contextlib.contextmanager
def edited(edit: Callable[[Words], Words]) -> Iterator[None]:
    """Executes kernels whose SPIR-V instructions were edited. Raises AssertionError if none was changed."""
    changed = False

    def portable(spirv: bytes, original: Callable[[bytes], bytes] = native.portable) -> bytes:
        nonlocal changed
        words = [word for instruction in native.instructions(spirv) for word in edit(instruction)]
        new = spirv[:20] + struct.pack(f"<{len(words)}I", *words)
        changed |= new != spirv
        return original(new)

    with mock.patch.dict(driver.built, clear=True), mock.patch.object(native, "portable", portable):
        yield
    assert changed


def cases() -> list[Case]:
    """Rows of one and of several sub-groups, whose distance in memory is that of contiguous rows, and is not."""
    return [
        case
        for case in testing.cases(registry.available(NAME))
        if (case.op, case.direction, case.dtype, case.values) == ("softmax", "forward", "float32", "normal")
        and case.shape in ((37, 53), (6, 1001)) and case.dim == -1 and case.layout in ("contiguous", "sliced")
        and (case.scale, case.mask, case.causal, case.plan) == (None, None, False, "planned")
    ]  # fmt: skip


def is_found() -> bool:
    """Whether a case fails, with kernels that are loaded anew."""
    forget_functions()
    plugin = registry.get(NAME).plugin
    tridal.registry.unregister(NAME)
    tridal.registry.register(type(plugin)())
    results = [testing.run_case(case, registry.available(NAME)) for case in cases()]
    assert not [result.message for result in results if "raised" in (result.message or "")]
    return not all(result.passed for result in results)


def test_kernels_without_a_fault_pass():
    assert {case.shape for case in cases()} == {(37, 53), (6, 1001)}
    assert not is_found()


@pytest.mark.parametrize("edit", [half_sub_group, no_barrier], ids=lambda edit: edit.__name__)
def test_a_fault_of_the_compiled_kernel_is_found(edit):
    with edited(edit):
        assert is_found()


@pytest.mark.parametrize("mutant", TEXTS, ids=str)
def test_a_fault_of_the_written_kernel_is_found(mutant):
    with seeded(mutant):
        assert is_found()
