"""Tensors with a number per row and per column, and two written tensors, with every schedule of every backend."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import tridal
from call_helpers import SM_90
from tridal import ops
from tridal.devices.types import Backend, KernelConfig
from tridal.kernels.row_kernel import RowKernel
from tridal.runtime import compiler, launch
from tridal.runtime.row_layout import row_layout
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import NO_SCALE_MASK, KernelCall
from tridal.testing.implementation import with_plans
from tridal.testing.plan_overrides import PLAN_OVERRIDES, overrides

pytest.importorskip("triton")

import row_tensors
import three_statistics
from row_tensor_reference import EPS, dtypes, expected, make

PARAMETERS = {"eps": EPS, "factor": 0.5, "offset": 2.0}
KERNELS = ["LAYER_NORM", "RMS_NORM", "LAYER_NORM_BACKWARD", "CROSS_ENTROPY", "CROSS_ENTROPY_BACKWARD", "MOMENTS"]
KERNELS += ["THREE"]
SHAPES = [((9, 200), 1, 0), ((5, 781), 1, 0), ((5, 780), 1, 1), ((3, 300, 33), 1, 0), ((5, 3, 100), 2, 0)]
"""Shape, dim, and the number of elements between an aligned address and the input."""


@pytest.mark.parametrize(("shape", "dim", "offset"), SHAPES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_written_tensors_agree_with_float64(
    backend: Backend, device: torch.device, name: str, shape: tuple[int, ...], dim: int, offset: int,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """All pairs of a kernel, a shape and a plan."""
    kernel: RowKernel = getattr(three_statistics if name == "THREE" else row_tensors, name)
    tensors = make(kernel, shape, dim, offset, device)
    number = KERNELS.index(name) + SHAPES.index((shape, dim, offset))
    number = None if request.config.getoption("--matrix") else number
    check(backend, kernel, shape, dim, tensors, expected(kernel, tensors, dim), number=number)


def test_a_mask_is_added_to_the_row_that_has_it(backend: Backend, device: torch.device) -> None:
    kernel, shape = row_tensors.LAYER_NORM, (12, 781)
    tensors, mask = make(kernel, shape, 1, 0, device), torch.randn(shape, device=device)
    wanted = expected(kernel, {**tensors, "x": tensors["x"] + mask}, 1)
    added = ScaleMask(mask="float32", queries=12, strides=(0, 0, 781, 1))
    check(backend, replace(kernel, scale_mask=True), shape, 1, tensors, wanted, added, mask)


def check(
    backend: Backend, kernel: RowKernel, shape: tuple[int, ...], dim: int, tensors: dict[str, Any],
    results: list[torch.Tensor], scale_mask: ScaleMask = NO_SCALE_MASK, *mask: torch.Tensor, number: int | None = None,
) -> None:  # fmt: skip
    """Compares what each plan writes with float64. With a number, the interpreter runs a quarter of the plans."""
    device = tensors["x"].device
    row = [1 if axis == dim else size for axis, size in enumerate(shape)]
    layout = row_layout(shape, tensors[kernel.reads[0]].stride(), dim)
    assert layout is not None
    names = "planned", *overrides(backend)
    for override in names[number % 4 :: 4] if number is not None and backend.interpreted else names:
        written = [torch.full(shape, torch.nan, device=device) for _ in kernel.writes]
        written += [torch.full(row, torch.nan, device=device) for _ in kernel.row_writes]
        addresses = [t.data_ptr() & 63 for t in written] + [0] * len(kernel.column_writes)
        addresses += [t.data_ptr() & 63 for t in tensors.values()]
        parameters = tuple(PARAMETERS[p] for p in kernel.parameters)
        call = KernelCall(kernel, layout, dtypes(kernel), tuple(addresses), parameters, scale_mask)
        overridden = with_plans(backend, "", PLAN_OVERRIDES[override] or (lambda plan, problem: plan))
        options = {name: option.default for name, option in backend.options.items()}
        prepared = launch.prepare(call, overridden, backend.properties(0), options)
        rows = call.layout.rows
        slots = prepared.workspace_slots(rows)
        written += [
            torch.full((prepared.groups(rows), shape[dim]), torch.nan, device=device) for _ in kernel.column_writes
        ]
        arguments = (*written, *tensors.values(), *mask)
        workspace = [torch.zeros(slots, dtype=torch.int64, device=device)] if slots else []
        with backend.guard(0):
            prepared.launch(backend.stream(0), rows, *arguments, *workspace)
        for index in range(-len(kernel.column_writes), 0):
            written[index] = written[index].double().sum(0)
        for index, (found, wanted) in enumerate(zip(written, results, strict=True)):
            message = f"{override} ({prepared.plan.config}), tensor {index}"
            torch.testing.assert_close(
                found.double(), wanted, rtol=2e-6, atol=4e-6, msg=lambda m, s=message: f"{s}: {m}"
            )
        assert not any(slots.any() for slots in workspace)


MIXED = [
    KernelConfig("whole_row", 4, 1024), KernelConfig("whole_row", 1, 1024, reload=True),
    KernelConfig("cooperative", 1, 256, programs_per_row=4), KernelConfig("column_loop", 1, 256),
    KernelConfig("column_loop", 1, 256, 1, lanes=32),
]  # fmt: skip


@pytest.mark.parametrize(("number", "name"), [*enumerate(KERNELS)])
def test_kernels_compile_with_mixed_dtypes(number: int, name: str) -> None:
    """Each kernel with one schedule. In a loop over columns, a variable keeps its type and its shape."""
    config = MIXED[number % 5] if name != "THREE" else MIXED[-1]  # programs exchange at most two statistics
    kernel: RowKernel = getattr(three_statistics if name == "THREE" else row_tensors, name)
    layout = row_layout((64, 1000), (1000, 1), 1)
    assert layout is not None
    call = KernelCall(kernel, layout, dtypes(kernel, "bfloat16"), (), tuple(PARAMETERS[p] for p in kernel.parameters))
    compiled = compiler.compile_kernel(call.specialize(config), SM_90)
    assert compiled.asm["ptx"].count("st.global") > 0


def _moments(x: torch.Tensor, reduce: ops.RowReduce, eps: float) -> tuple[torch.Tensor, ...]:
    deviation = x - reduce.mean(x)
    return reduce.mean(x), (reduce.mean(deviation * deviation) + eps).rsqrt()


moments = tridal.row_function(
    ops.Op(
        name="moments", arguments=(ops.per_element("input"), ops.number("eps", EPS)),
        results=(ops.Result("mean", "row"), ops.Result("inverse_deviation", "row")),
        kernels=(row_tensors.MOMENTS,), reference=_moments,
    )
)  # fmt: skip


@pytest.mark.parametrize("lanes", [1, 4])
def test_heads_and_tails_of_rows_are_counted_once(lanes: int) -> None:
    x = torch.randn(5 * 1001 + 1)[1:].view(5, 1001) + 3
    config = {"schedule": "column_loop", "rows": 1, "cols": 64, "lanes": lanes, "peel": True}
    entry = {"kernel": "moments", "dtype": "float32", "cols": 1001, "config": config}
    with tridal.use(device="interpreter", kernel_configs=[entry]), tridal.record_calls() as records:
        mean, inverse = moments(x)
    assert [record.schedule for record in records] == ["column_loop"]
    torch.testing.assert_close(mean, x.mean(-1))
    torch.testing.assert_close(inverse, (x.var(-1, correction=0) + EPS).rsqrt())


@pytest.mark.parametrize("persistent", [True, False])
def test_a_picked_element_is_loaded_before_a_program_publishes(persistent: bool) -> None:
    """Another program may then write it in place. What a program publishes depends on the loaded element."""
    config = KernelConfig("cooperative", 1, 256, programs_per_row=4, persistent=persistent)
    kernel = replace(row_tensors.CROSS_ENTROPY, reads=("x",), writes=("x",), name="picked")
    layout = row_layout((64, 1000), (1000, 1), 1)
    assert layout is not None
    call = KernelCall(kernel, layout, dtypes(kernel, "float32"), (), ())
    ir = compiler.compile_kernel(call.specialize(config), SM_90).asm["ttir"]
    before, _, sent = ir.partition("tt.atomic_rmw exch")  # names are used again in later regions and functions
    made = dict(re.findall(r"^\s*(%[\w$.-]+)(?::\d+)? = (.*)$", before, re.MULTILINE))

    def sources(text: str) -> set[str]:
        """The values on which an operation depends."""
        needed, found = re.findall(r"%[\w$.-]+", text), set()
        while needed:
            if (name := needed.pop()) not in found:
                found.add(name)
                needed += re.findall(r"%[\w$.-]+", made.get(name, ""))
        return found

    loads = [made[name] for name in sources(sent.split("\n")[0]) if "tt.load" in made.get(name, "")]
    assert any({"%x_ptr", "%target_ptr"} <= sources(load) for load in loads), ir
