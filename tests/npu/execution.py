"""One launch, held to float64: what it writes, what it must leave alone, and how far rounding may take it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from offboard import board, device
from tridal.runtime import launch
from tridal_npu import backend

from .matrix import OPTIONS, Case, properties

_BITS = {2: torch.int16, 4: torch.int32}
_UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_TINY = {torch.float32: 2.0**-126, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-126}


class Buffer:
    """Memory for a tensor, with `guard` elements on both sides; these and gaps between its rows hold `filler`."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, guard: int, filler: float):
        length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        self.memory = torch.full((length + 2 * guard,), filler, dtype=dtype)
        self.tensor = self.memory.as_strided(shape, strides, guard)
        self.remember()

    def remember(self) -> None:
        """Takes note of what is in memory now."""
        self._before = self._bits().clone()

    def untouched(self, besides: torch.Tensor | None = None) -> bool:
        """Whether memory is as it was, but for a tensor in it."""
        now, before = self._bits().clone(), self._before.clone()
        if besides is not None:
            for bits in (now, before):
                bits.as_strided(besides.shape, besides.stride(), besides.storage_offset()).zero_()
        return torch.equal(now, before)

    def _bits(self) -> torch.Tensor:
        return self.memory.view(_BITS[self.memory.element_size()])


def complaints(case: Case, *, trusted: bool = True) -> list[str]:
    """Runs a case and says what is wrong with it, in words; the kernel is the one that the product launches.

    A kernel that isn't trusted gets room to go wrong by more than a tile without touching anybody else's memory.
    """
    shape, strides, dim = case.shape_strides_dim
    contiguous = torch.empty(shape, device="meta").stride()
    call, tile = case.call(), case.plan().tile
    guard = 64 + call.geometry.extent(tile.rows, tile.cols)  # a whole tile beside its place is seen, too
    if not trusted:
        guard += sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    guard = -(-guard // 16) * 16
    source = Buffer(shape, strides, case.read_dtype, guard + (not case.aligned), math.nan)
    out = Buffer(shape, contiguous, case.written_dtype, guard, 77.0)
    tensors = [out.tensor, source.tensor]
    torch.default_generator.manual_seed(case.cols)
    fill(source.tensor, dim, backward=case.backward)
    source.remember()
    saved = None
    if case.backward:
        saved = Buffer(shape, contiguous, case.read_dtype, guard + (not case.aligned), math.nan)
        name = case.op.removesuffix("_backward")
        saved.tensor.copy_(getattr(torch, name)(torch.randn(shape, dtype=torch.float64) * 3, dim))
        saved.remember()
        tensors.append(saved.tensor)

    prepared = launch.prepare(call, backend, properties(), OPTIONS)
    prepared.launch(device.current_stream().npu_stream, *tensors)

    found = [] if source.untouched() and (saved is None or saved.untouched()) else ["wrote to its input"]
    if not out.untouched(besides=out.tensor):
        found.append("wrote outside its output")
    if board.launches[-1].programs != prepared.plan.programs:
        found.append(f"ran {board.launches[-1].programs} programs, planned {prepared.plan.programs}")
    wrong = mismatch(case, out.tensor, source.tensor, None if saved is None else saved.tensor, dim)
    return found + ([wrong] if wrong else [])


def fill(tensor: torch.Tensor, dim: int, *, backward: bool) -> None:
    """Numbers of several magnitudes, and NaN, +inf and -inf: alone, in half of a row or in all of it, in a row each."""
    if 0 in tensor.stride():  # a gradient that torch expanded: every element of a row is the same
        tensor = tensor.select(dim, 0).unsqueeze(dim)
    tensor.copy_(torch.randn(tensor.shape, dtype=torch.float64) * 4)
    rows = tensor.movedim(dim, -1)
    width = rows.shape[-1]
    flat = [rows[index] for index in map(tuple, _first_rows(rows.shape[:-1], 7).tolist())]
    specials = [(1, width // 2, math.nan)]
    if not backward:
        specials += [(2, slice(None), -math.inf), (3, width - 1, math.inf), (4, 0, -math.inf)]
        specials += [(5, slice(width // 2), -math.inf)]  # longer than a column tile, where rows are wide
    for row, column, value in specials:
        if row < len(flat) - 1:  # the last stays a row of numbers, whatever their number
            flat[row][column] = value


def _first_rows(shape: torch.Size, count: int) -> torch.Tensor:
    return torch.stack(torch.unravel_index(torch.arange(min(count, shape.numel())), shape), -1)


def mismatch(case: Case, out: torch.Tensor, source: torch.Tensor, saved: torch.Tensor | None, dim: int) -> str | None:
    """Where a result is further from the exact one than rounding explains, in words; None if nowhere."""
    x = source.double()
    if saved is None:
        exact = (torch.log_softmax if case.op == "log_softmax" else torch.softmax)(x, dim)
        size = _finite(x.amax(dim, keepdim=True) - x) + exact.abs() + 4
        if case.op == "softmax":
            size *= exact
    else:
        y = saved.double()
        if case.op == "log_softmax_backward":
            share, total, terms = y.exp() * (1 + y.abs()), x.sum(dim, keepdim=True), x.abs().sum(dim, keepdim=True)
            exact = x - y.exp() * total
        else:
            share, total, terms = y, (x * y).sum(dim, keepdim=True), (x * y).abs().sum(dim, keepdim=True)
            exact = y * (x - total)
        size = x.abs() * (1 if case.op == "log_softmax_backward" else y) + share * terms
    # Sums are taken one element after the other here, which errs like a random walk of so many steps.
    allowed = 4 * 2.0**-24 * math.sqrt(case.cols) * size + 1.01 * _UNIT[out.dtype] * exact.abs() + 2 * _TINY[out.dtype]
    got = out.double()
    if not torch.equal(got.isnan(), exact.isnan()):
        return f"NaN in {int(got.isnan().sum())} elements, expected in {int(exact.isnan().sum())}"
    infinite = exact.isinf()
    if not torch.equal(got[infinite], exact[infinite]):
        return "infinite elsewhere than expected"
    excess = (got - exact).abs().masked_fill(infinite | exact.isnan(), 0) / allowed.nan_to_num(1, 1, 1)
    worst = int(excess.argmax())
    if excess.flatten()[worst] > 1:
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), out.shape))
        values = f"{got[place].item():.9g} at {place}, exactly {exact[place].item():.9g}"
        return f"{values}: {excess[place].item():.3g} times further than rounding takes it"
    return None


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.nan_to_num(0, 0, 0)
