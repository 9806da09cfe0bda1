"""Tensors with a number per row and per column, several written tensors and statistics, with every schedule."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import tridal
from call_helpers import SM_90, written
from tridal import ops
from tridal.devices.types import Backend, KernelConfig
from tridal.kernels.row_kernel import RowKernel, Statistic
from tridal.library.losses.cross_entropy import FORWARD
from tridal.library.norms.norms import LAYER_NORM
from tridal.runtime import compiler, launch
from tridal.runtime.row_layout import row_layout
from tridal.runtime.specialization import KernelCall
from tridal.testing.implementation import with_plans
from tridal.testing.plan_overrides import PLAN_OVERRIDES, overrides

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from tridal.library.norms.kernels import layer_norm  # noqa: E402

inverse_deviation, mean, rebase_squares = layer_norm.inverse_deviation, layer_norm.mean, layer_norm.rebase_squares
EPS = 1e-5
PARAMETERS = EPS, 0.5, 2.0


@triton.jit
def mixed(x, y, z, a):
    return x * a + y - z


@triton.jit
def square_deviation(x, y, z, a, total, count, AXIS: tl.constexpr):
    deviation = mixed(x, y, z, a) - tl.expand_dims(total / count, AXIS)
    return deviation * deviation


@triton.jit
def size(z, c):
    return tl.abs(z * c)


@triton.jit
def normalized(x, y, z, a, b, total, count, inverse_deviation, factor, AXIS: tl.constexpr):
    deviation = mixed(x, y, z, a) - tl.expand_dims(total / count, AXIS)
    return deviation * tl.expand_dims(inverse_deviation, AXIS) * factor + b


@triton.jit
def scaled(y, largest, offset, AXIS: tl.constexpr):
    return y * tl.expand_dims(largest, AXIS) + offset


@triton.jit
def product(x, y):
    return x * y


THREE = RowKernel(
    name="three", module=__name__, reads=("x", "y", "z"), column_reads=("a", "b", "c"),
    parameters=("eps", "factor", "offset"),
    statistics=(
        Statistic("total", "sum", term="mixed"),
        Statistic("squares", "sum", term="square_deviation", rebase="rebase_squares"),
        Statistic("largest", "max", term="size"),
    ),
    row_value="inverse_deviation", writes=("normalized", "scaled", "product"),
    row_writes=("largest", "inverse_deviation", "mean"), column_writes=("x", "product", "z"),
    live_tiles=6,
)  # fmt: skip
SHAPES = [((9, 200), 1, 0), ((5, 781), 1, 0), ((5, 780), 1, 1), ((3, 300, 33), 1, 0), ((5, 3, 100), 2, 0)]
"""Shape, dim, and the number of elements between an aligned address and the input."""


def expected(tensors: dict[str, torch.Tensor], dim: int) -> list[torch.Tensor]:
    """The tensors that THREE writes, in float64."""
    x, y, z, a, b, c = (tensors[name].double() for name in "xyzabc")
    values = x * a + y - z
    deviation, largest = values - values.mean(dim, keepdim=True), (z * c).abs().amax(dim, keepdim=True)
    inverse = 1 / (values.var(dim, correction=0, keepdim=True) + EPS).sqrt()
    written = [deviation * inverse * 0.5 + b, y * largest + 2.0, x * y, largest, inverse]
    rows = [axis for axis in range(x.dim()) if axis != dim]
    return [*written, values.mean(dim, keepdim=True), *(term.sum(rows) for term in (x, x * y, z))]


@pytest.mark.parametrize(("shape", "dim", "offset"), SHAPES, ids=str)
def test_written_tensors_agree_with_float64(
    backend: Backend, device: torch.device, shape: tuple[int, ...], dim: int, offset: int
) -> None:
    column = [size if axis == dim else 1 for axis, size in enumerate(shape)]
    memory = torch.randn(offset + torch.Size(shape).numel(), device=device)
    tensors = {"x": memory[offset:].view(shape)} | {name: torch.randn(shape, device=device) for name in "yz"}
    tensors |= {name: torch.randn(column, device=device) for name in "abc"}
    row = [1 if axis == dim else size for axis, size in enumerate(shape)]
    layout = row_layout(shape, tensors["x"].stride(), dim)
    assert layout is not None
    for override in ("planned", *overrides(backend)):
        written = [torch.full(size, torch.nan, device=device) for size in (*[shape] * 3, *[row] * 3)]
        addresses = [t.data_ptr() & 63 for t in written] + [0] * 3 + [t.data_ptr() & 63 for t in tensors.values()]
        call = KernelCall(THREE, layout, ("float32",) * 15, tuple(addresses), PARAMETERS)
        overridden = with_plans(backend, "", PLAN_OVERRIDES[override] or (lambda plan, problem: plan))
        options = {name: option.default for name, option in backend.options.items()}
        prepared = launch.prepare(call, overridden, backend.properties(0), options)
        rows = call.layout.rows
        slots = prepared.workspace_slots(rows)
        written += [torch.full((prepared.groups(rows), shape[dim]), torch.nan, device=device) for _ in range(3)]
        workspace = [torch.zeros(slots, dtype=torch.int64, device=device)] if slots else []
        with backend.guard(0):
            prepared.launch(backend.stream(0), rows, *written, *tensors.values(), *workspace)
        found = [*written[:6], *(sums.double().sum(0) for sums in written[6:])]
        for index, (one, wanted) in enumerate(zip(found, expected(tensors, dim), strict=True)):
            message = f"{override} ({prepared.plan.config}), tensor {index}"
            torch.testing.assert_close(one.double(), wanted, rtol=2e-6, atol=4e-6, msg=lambda m, s=message: f"{s}: {m}")
        assert not any(slots.any() for slots in workspace)


def test_a_loop_over_columns_compiles_with_mixed_dtypes() -> None:
    """In a loop, a variable keeps its type and its shape."""
    layout = row_layout((64, 1000), (1000, 1), 1)
    assert layout is not None
    dtypes = tuple("bfloat16" if pointer in THREE.element_pointers else "float32" for pointer in THREE.pointers)
    call = KernelCall(THREE, layout, dtypes, (), PARAMETERS)
    compiled = compiler.compile_kernel(call.specialize(KernelConfig("column_loop", 1, 256, 1, lanes=32)), SM_90)
    assert compiled.asm["ptx"].count("st.global") > 0


def _moments(x: torch.Tensor, reduce: ops.RowReduce, eps: float) -> tuple[torch.Tensor, ...]:
    deviation = x - reduce.mean(x)
    return reduce.mean(x), (reduce.mean(deviation * deviation) + eps).rsqrt()


ABSENT = dict.fromkeys(("residual", "weight", "bias", "weight_offset"))
MOMENTS = LAYER_NORM.forward.bind(**ABSENT).writing("mean", "inverse_deviation")
moments = tridal.row_function(
    ops.Op(
        name="moments", arguments=(ops.per_element("input"), ops.number("eps", EPS)),
        results=(ops.Result("mean", "row"), ops.Result("inverse_deviation", "row")),
        kernels=(replace(MOMENTS, name="moments"),), reference=_moments,
    )
)  # fmt: skip


@pytest.mark.parametrize("lanes", [1, 4])
def test_heads_and_tails_of_rows_are_counted_once(lanes: int) -> None:
    x = torch.randn(5 * 1001 + 1)[1:].view(5, 1001) + 3
    config = {"schedule": "column_loop", "rows": 1, "cols": 64, "lanes": lanes, "peel": True}
    entry = {"kernel": "moments", "dtype": "float32", "cols": 1001, "config": config}
    with tridal.use(device="interpreter", kernel_configs=[entry]), tridal.record_calls() as records:
        found: Any = moments(x)
    assert [record.schedule for record in records] == ["column_loop"]
    torch.testing.assert_close(found[0], x.mean(-1))
    torch.testing.assert_close(found[1], (x.var(-1, correction=0) + EPS).rsqrt())


@pytest.mark.parametrize("persistent", [True, False])
def test_a_picked_element_is_loaded_before_a_program_publishes(persistent: bool) -> None:
    """Another program may then write it in place. What a program publishes depends on the loaded element."""
    config = KernelConfig("cooperative", 1, 256, programs_per_row=4, persistent=persistent)
    kernel = replace(FORWARD.bind(weight=None), writes=("x",), name="picked")
    layout = row_layout((64, 1000), (1000, 1), 1)
    assert layout is not None
    dtypes = tuple("int64" if pointer == "index_ptr" else "float32" for pointer in kernel.pointers)
    call = KernelCall(kernel, layout, dtypes, (), (0.0, 0.0))
    ir = compiler.compile_kernel(call.specialize(config), SM_90).asm["ttir"]
    before, _, sent = ir.partition("tt.atomic_rmw exch")  # names are used again in later regions and functions
    parameters = re.findall(r"\w+", re.findall(r"def whole_row\(([^)]*)\)", written(call, config).text)[0])
    arguments = re.findall(r"(%[\w$.-]+): ", before.partition("@whole_row(")[2])  # Triton 3.3 numbers them
    pointers = {arguments[parameters.index(name)] for name in ("x_ptr", "index_ptr")}
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
    assert any(pointers <= sources(load) for load in loads), ir
