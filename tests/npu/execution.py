"""Executes one launch, checks its result against float64, and checks the memory around its tensors."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from offboard import device, driver
from tridal.ops import row_maths
from tridal.ops.op import Op
from tridal.ops.scale_mask import ScoreModification, modify_scores
from tridal.ops.signature import Arguments, Rows
from tridal.runtime import launch
from tridal.testing.checking import difference
from tridal.testing.exact import Call
from tridal.testing.tolerance import TINY, UNIT, Arithmetic, derived_bounds
from tridal_npu import backend

from .matrix import OPTIONS, SCALE, Case, properties

_BITS = {2: torch.int16, 4: torch.int32}


class Buffer:
    """A tensor with `guard` elements of memory before and after it. These and gaps in the tensor hold `filler`."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, guard: int, filler: float):
        length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        self.memory = torch.full((length + 2 * guard,), filler, dtype=dtype)
        self.tensor = self.memory.as_strided(shape, strides, guard)
        self.save()

    def save(self) -> None:
        """Saves the contents of memory, for `unchanged`."""
        self._saved = self._bits().clone()

    def unchanged(self, except_for: torch.Tensor | None = None) -> bool:
        """Whether memory has its saved contents, except for one tensor in it."""
        now, saved = self._bits().clone(), self._saved.clone()
        if except_for is not None:
            for bits in (now, saved):
                bits.as_strided(except_for.shape, except_for.stride(), except_for.storage_offset()).zero_()
        return torch.equal(now, saved)

    def _bits(self) -> torch.Tensor:
        return self.memory.view(_BITS[self.memory.element_size()])


def find_faults(case: Case, *, trusted: bool = True) -> list[str]:
    """Executes a case with the kernel that tridal launches, and describes each fault.

    `trusted` says whether the kernel accesses at most one tile too much. If not, the guards are so large that wrong
    strides do not reach other memory either.
    """
    shape, strides, dim = case.shape_strides_dim
    contiguous = torch.empty(shape, device="meta").stride()
    call, config = case.call(), case.plan().config
    guard = 64 + call.layout.max_offset(config.rows, config.cols)
    if not trusted:
        guard += sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    guard = -(-guard // 16) * 16
    source = Buffer(shape, strides, case.read_dtype, guard + (not case.aligned), math.nan)
    out = Buffer(shape, contiguous, case.written_dtype, guard, 77.0)
    buffers = [source]
    torch.default_generator.manual_seed(case.cols)
    fill(source.tensor, dim, backward=case.backward)
    if case.backward:
        saved = Buffer(shape, contiguous, case.read_dtype, guard + (not case.aligned), math.nan)
        x = torch.randn(shape, dtype=torch.float64) * 3
        saved.tensor.copy_(_forward(case.op, x, dim) if case.op.saves == ("output",) else x)
        buffers.append(saved)
    for buffer in buffers:
        buffer.save()

    prepared = launch.prepare(call, backend, properties(), OPTIONS)
    tensors = [buffer.tensor for buffer in buffers]
    prepared.launch(device.current_stream().npu_stream, call.layout.rows, out.tensor, *tensors)

    found = [] if all(buffer.unchanged() for buffer in buffers) else ["wrote to its input"]
    if not out.unchanged(except_for=out.tensor):
        found.append("wrote outside its output")
    programs = call.programs(prepared.plan)
    if driver.launches[-1].programs != programs:
        found.append(f"ran {driver.launches[-1].programs} programs instead of {programs}")
    wrong = find_wrong_element(case, out.tensor, tensors, dim)
    return found + ([wrong] if wrong else [])


def fill(tensor: torch.Tensor, dim: int, *, backward: bool) -> None:
    """Fills a tensor with random numbers, and some rows with NaN, inf, -inf or zeros."""
    if 0 in tensor.stride():  # an expanded gradient: all elements of a row are one element in memory
        tensor = tensor.select(dim, 0).unsqueeze(dim)
    tensor.copy_(torch.randn(tensor.shape, dtype=torch.float64) * 4)
    rows = tensor.movedim(dim, -1)
    width = rows.shape[-1]
    first_rows = [rows[index] for index in map(tuple, _first_indices(rows.shape[:-1], 8).tolist())]
    specials = [(1, width // 2, math.nan)]
    if not backward:
        specials += [(2, slice(None), -math.inf), (3, width - 1, math.inf), (4, 0, -math.inf)]
        specials += [(5, slice(width // 2), -math.inf)]  # in wide rows, this is longer than a block of columns
        specials += [(6, slice(None), 0.0)]
    for row, column, value in specials:
        if row < len(first_rows) - 1:  # at least one row has finite numbers only
            first_rows[row][column] = value


def _first_indices(shape: torch.Size, count: int) -> torch.Tensor:
    return torch.stack(torch.unravel_index(torch.arange(min(count, shape.numel())), shape), -1)


def find_wrong_element(case: Case, out: torch.Tensor, read: Sequence[torch.Tensor], dim: int) -> str | None:
    """Describes the elements whose errors are above the op's bounds, or None."""
    op, values = case.op, tuple(case.op.parameters.values())
    written = str(out.dtype).removeprefix("torch.")
    # The code on the CPU adds elements one after the other, so rounding errors grow like a random walk.
    arithmetic = Arithmetic(UNIT[written], TINY[written], UNIT["float32"], case.cols, 16 * math.sqrt(case.cols))
    x, *others = (tensor.double() for tensor in read)
    if case.backward:
        (saved,) = others
        call = Call(op, (saved, dim, torch.float64, *values), {"output": _forward(op, saved, dim)})
        _, numbers = op.save(Arguments(op.signature, call.arguments), (saved,))
        exact = row_maths.compute_gradient(op, x, saved, *numbers)[0]
        assert exact is not None
        bound = None if op.bounds is None else op.bounds.backward(saved, x, exact, dim, arithmetic)
        compute = functools.partial(call.declared_gradients, [x])
    else:
        scaled = x * SCALE if case.modified else None
        if case.modified:
            x, _ = modify_scores(x, dim, ScoreModification(SCALE, None, True, False))
        exact, compute = _forward(op, x, dim), Call(op, (x, dim, torch.float64, *values)).results
        bound = None if op.bounds is None else op.bounds.forward(x, exact, dim, arithmetic, scaled)
    if bound is None:
        (name,), rows = compute(None), Rows(dim % exact.dim(), 1)
        roles, precision = {name: "element"}, {name: arithmetic}
        bound = derived_bounds(rows, {name: exact}, roles, compute, precision, "float32", {})[name]
    return difference(out.double(), exact, bound, torch.finfo(out.dtype).max)[2]


def _forward(op: Op, x: torch.Tensor, dim: int) -> torch.Tensor:
    """The op by torch's own function, which is independent of tridal, if there is one."""
    if op.torch_function is not None:
        return op.torch_function(x, dim, None)
    return row_maths.reference_of(op, x, dim, tuple(op.parameters.values()))
