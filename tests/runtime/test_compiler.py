"""The compiler: specializations compile for architectures that are not present."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from call_helpers import SM_90, WHOLE_ROW, kernel_call
from tridal.devices import registry
from tridal.devices.types import KernelConfig, Resources
from tridal.errors import PlanError
from tridal.library.softmax.softmax import SOFTMAX
from tridal.runtime import compiler
from tridal.runtime.specialization import KernelCall

TARGETS = {name: p.target for name, p in registry.get("cuda").architectures().items()}


@pytest.mark.parametrize(
    ("arch", "call", "config"),
    [
        ("sm_80", kernel_call((64, 1024), kernel=SOFTMAX.backward, dtypes="float16"), WHOLE_ROW),
        ("sm_90", kernel_call((64, 1001), dtypes="bfloat16"), replace(WHOLE_ROW, peel=True)),
        ("sm_100", kernel_call((9, 50_257)), KernelConfig("cooperative", 1, 8192, programs_per_row=7, peel=True)),
        ("sm_90", kernel_call((64, 1024), dtypes="float64"), KernelConfig("column_loop", 1, 256, num_stages=2)),
    ],
)
def test_kernels_compile_for_architectures_that_are_not_present(
    arch: str, call: KernelCall, config: KernelConfig
) -> None:
    triton = pytest.importorskip("triton")
    if config.programs_per_row > 1 and compiler.triton_version(triton) < (3, 3):
        pytest.skip("Triton 3.2 has no cooperative launch")
    target = TARGETS[arch]
    assert target is not None
    compiled = compiler.compile_kernel(call.specialize(config), target)
    cubin = compiled.asm["cubin"]
    assert cubin[:4] == b"\x7fELF"
    used = registry.get("cuda").resources(compiled.asm, compiled.metadata.shared)
    assert 16 <= used.registers <= 255
    assert used.shared_memory == compiled.metadata.shared
    assert getattr(compiled.metadata, "launch_cooperative_grid", False) == (config.programs_per_row > 1)


def test_a_cooperative_kernel_is_refused_if_triton_ignores_the_cooperative_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton, "compile", lambda *_, **__: SimpleNamespace(metadata=SimpleNamespace(shared=0)))
    call = kernel_call((16, 131_072))
    cooperative = call.specialize(KernelConfig("cooperative", 1, 8192, 4, programs_per_row=16))
    with pytest.raises(PlanError, match=r"cannot start all programs of a cooperative kernel .* triton>=3\.3"):
        compiler.compile_kernel.__wrapped__(cooperative, SM_90)

    def probe(config: KernelConfig) -> Resources:
        compiler.compile_kernel.__wrapped__(call.specialize(config), SM_90)
        return Resources(registers=32, spills=0, shared_memory=0)

    cuda = registry.get("cuda")
    device = cuda.architectures()["sm_90"]
    assert cuda.plan(call.problem, device, probe, {}).schedule == "column_loop"


def test_programs_claim_tiles_unless_tiles_have_64_bits() -> None:
    config = KernelConfig("cooperative", 1, 1024, programs_per_row=5)
    texts = [compiler.source(kernel_call((rows, 5000)).specialize(config)) for rows in (2**28, 2**28 + 1)]
    assert ["claim(" in text for text in texts] == [True, False]
