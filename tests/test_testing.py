"""The conformance suite passes what is right, and catches what is wrong: each fault below has to fail somewhere."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tridal import testing
from tridal.devices import registry
from tridal.devices.types import Backend, LaunchPlan
from tridal.testing.cases import Case, cases
from tridal.testing.inputs import place, values
from tridal.testing.tolerance import UNIT

CPU = torch.device("cpu")
INTERPRETER = next(e.backend for e in registry.registered() if e.backend is not None and e.backend.interpreted)
CASES = [
    dataclasses.replace(case, plan="planned")
    for case in cases(INTERPRETER)
    if case.plan == "planned" and math.prod(case.shape) < 100_000 and not case.weighed
]
"""The cases that don't depend on a backend's plan, without the big ones: they catch the same."""

WEIGHED = [case for case in cases(INTERPRETER) if case.weighed and case.plan == "planned"]

Function = Callable[..., torch.Tensor]


def weighed(fault: str = "") -> Function:
    """softmax with extras by torch's ops, with a fault or none."""

    def softmax(
        x: torch.Tensor, dim: int, dtype: torch.dtype | None = None, *, scale: float | None = None,
        mask: torch.Tensor | None = None, causal: bool = False, masked_rows: str = "nan",
    ) -> torch.Tensor:  # fmt: skip
        stored = dtype or x.dtype
        wide = torch.promote_types(stored, torch.float32)
        x = x.to(stored).to(torch.float16 if fault == "weighed in halves" else wide)
        factor = 1.0 if scale is None else scale
        if fault == "gradient not scaled":
            x = x + (x * factor - x).detach()
        elif fault != "scaled last":
            x = x * factor
        if mask is not None and mask.dtype is torch.bool:
            x = x.masked_fill(mask if fault == "mask inverted" else ~mask, -torch.inf)
        elif mask is not None and fault != "mask not added":
            x = x + mask.to(x.dtype)
        if fault == "scaled last":
            x = x * factor
        if causal:
            x = x.masked_fill(
                torch.ones(x.shape[-2:]).tril(1 if fault == "one column too many" else 0) == 0, -torch.inf
            )
        nothing = (x == -torch.inf).all(dim, keepdim=True)
        y = torch.softmax(x.masked_fill(nothing, 0.0).to(wide), dim)
        if masked_rows == "zero" and fault != "never zero":
            return y.masked_fill(nothing, 0.0).to(stored)
        return (y + torch.where(nothing, torch.nan, 0.0).to(wide)).to(stored)

    return softmax


def comparable(case: Case) -> bool:
    """Not so are gradients that torch takes from a Y before it is stored, and of rows that are NaN.

    What masked_fill has filled has a gradient of zero even there.
    """
    exact, nan = case.out_dtype in ("float32", "float64"), case.mask is not None and case.masked_rows == "nan"
    return case.direction == "forward" or (exact and not nan)


@pytest.mark.parametrize(
    ("fault", "least"),
    [("", 0), ("mask inverted", 40), ("mask not added", 10), ("scaled last", 5), ("one column too many", 10),
     ("never zero", 10), ("gradient not scaled", 10), ("weighed in halves", 30)],
)  # fmt: skip
def test_what_is_weighed_wrongly_is_caught(fault: str, least: int) -> None:
    subject = testing.Subject(CPU, weighed(fault), torch.log_softmax)
    results = [testing.check(case, subject) for case in WEIGHED if comparable(case)]
    found = [result.name for result in results if not result.passed]
    assert len(found) >= least
    assert fault or not found


def failures(softmax: Function, log_softmax: Function = torch.log_softmax, only: str = "") -> list[str]:
    subject = testing.Subject(CPU, softmax, log_softmax)
    results = [testing.check(case, subject) for case in CASES if only in case.name and case.op == "softmax"]
    assert results
    return [result.name for result in results if not result.passed]


def test_passes_what_is_right() -> None:
    """torch's own softmax, with sums in float32 as everywhere but in its CPU kernels for 16 bits."""

    def function(name: str) -> Function:
        def right(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
            return Softmax.apply(x.to(dtype or x.dtype), dim, name, None)

        return right

    subject = testing.Subject(CPU, function("softmax"), function("log_softmax"))
    results = [testing.check(case, subject) for case in CASES if case.direction != "double"]
    assert [(result.name, result.message) for result in results if not result.passed] == []
    subject = testing.Subject(CPU, torch.softmax, torch.log_softmax)
    results = [testing.check(case, subject) for case in CASES if case.direction == "double"]
    assert [(result.name, result.message) for result in results if not result.passed] == []


def zeros(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.softmax(x, dim, dtype) * 0


def uniform(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.softmax(x * 0, dim, dtype)


def drops_the_mask(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Pads rows to a power of two with zeros rather than -inf."""
    x = x.to(dtype or x.dtype).movedim(dim, -1) if x.dim() else x.to(dtype or x.dtype)
    if x.numel() == 0 or x.dim() == 0:
        return torch.softmax(x, -1).movedim(-1, dim) if x.dim() else torch.softmax(x, -1)
    cols = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, (1 << (cols - 1).bit_length()) - cols))
    return torch.softmax(padded, -1)[..., :cols].movedim(-1, dim)


def sums_in(low: torch.dtype) -> Function:
    def function(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        out = dtype or x.dtype
        x = x.to(out)
        if x.numel() == 0:
            return torch.softmax(x, dim)
        e = (x.float() - x.float().amax(dim, keepdim=True)).exp()
        return (e / e.to(low).cumsum(dim).select(dim, -1).unsqueeze(dim if x.dim() else 0).reshape_as(
            e.sum(dim, keepdim=True)
        ).float()).to(out)  # fmt: skip

    return function


def keeps_the_maximum(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    e = x.to(dtype or x.dtype).exp()
    return e / e.sum(dim, keepdim=True)


def last_dim(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.softmax(x, -1, dtype)


def no_nan(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.softmax(x, dim, dtype).nan_to_num()


def ignores_strides(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.softmax(x.as_strided(x.shape, torch.empty(x.shape).stride()), dim, dtype)


def wrong_dtype(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.softmax(x, dim, dtype).float()


def casts_afterwards(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return (torch.softmax(x, dim) if x.is_floating_point() else torch.softmax(x, dim, dtype)).to(dtype or x.dtype)


def changes_its_input(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    out = torch.softmax(x, dim, dtype)
    x.detach().zero_()
    return out


def raises(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    raise RuntimeError("no kernel today")


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        (zeros, "forward"),
        (uniform, "forward"),
        (drops_the_mask, "forward 33x257"),
        (sums_in(torch.bfloat16), "forward 6x1001 dim=-1 float32"),
        (sums_in(torch.bfloat16), "forward 5x257 dim=-1 bfloat16"),
        (sums_in(torch.float16), "forward 5x257 dim=-1 float16"),
        (keeps_the_maximum, "shifted"),
        (last_dim, "forward 3x5x7x11"),
        (no_nan, "row of -inf"),
        (no_nan, "some nan"),
        (no_nan, "some +inf"),
        (ignores_strides, "transposed"),
        (ignores_strides, "permuted"),
        (wrong_dtype, "bfloat16"),
        (casts_afterwards, "bfloat16 to float32"),
        (changes_its_input, "forward"),
        (raises, "forward"),
    ],
)
def test_catches(fault: Function, caught_by: str) -> None:
    assert failures(fault, only=caught_by)


class Softmax(torch.autograd.Function):
    """Computed in float32 or better, with a gradient that may have a fault."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, name: str, fault: str | None) -> torch.Tensor:
        y = getattr(torch, name)(x.to(torch.promote_types(x.dtype, torch.float32)), dim).to(x.dtype)
        ctx.save_for_backward(y)
        ctx.how = dim, name, fault
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (y,), (dim, name, fault) = ctx.saved_tensors, ctx.how
        dtype, wide = y.dtype, torch.promote_types(y.dtype, torch.float32)
        if fault == "zeros":
            return torch.zeros_like(y), None, None, None
        if fault == "reads an expanded gradient as if it were contiguous" and 0 in dy.stride():
            dy = torch.zeros_like(dy).contiguous()
        y, dy = y.to(wide), dy.to(wide)
        if name == "log_softmax":
            return (dy - y.exp() * dy.sum(dim, keepdim=True)).to(dtype), None, None, None
        product = y * dy
        total = product.sum(dim, keepdim=True)
        if fault == "no sum":
            total = total * 0
        elif fault == "sums in float16":
            total = product.half().sum(dim, keepdim=True).to(wide)
        elif fault == "sums in its own dtype":
            total = product.to(dtype).cumsum(dim).narrow(dim, -1, 1).to(wide)
        elif fault == "sums all but the last":
            total = total - product.narrow(dim, -1, 1)
        elif fault == "sums beyond the row":
            total = total + product.narrow(dim, 0, 1).roll(-1)
        return (y * (dy - total)).to(dtype), None, None, None


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        ("zeros", "backward 33x257"),
        ("no sum", "backward 33x257"),
        ("sums beyond the row", "backward 33x257"),
        ("sums in float16", "backward 33x257 dim=-1 float32"),
        ("sums in its own dtype", "backward 5x257 dim=-1 bfloat16"),
        ("sums in its own dtype", "backward 5x257 dim=-1 float16"),
        ("sums all but the last", "backward 6x1001"),
        ("reads an expanded gradient as if it were contiguous", "expanded gradient"),
    ],
)
def test_catches_gradient(fault: str, caught_by: str) -> None:
    def function(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return Softmax.apply(x.to(dtype or x.dtype), dim, "softmax", fault)

    assert failures(function, only=caught_by)


def test_catches_second_derivative() -> None:
    def function(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Right in value and in first derivative."""
        return torch.softmax(x, dim, dtype) + (x - x.detach()) ** 2 * 1e-3

    subject = testing.Subject(CPU, function, torch.log_softmax)
    passed = [testing.check(Case("softmax", d, (5, 7)), subject).passed for d in ("forward", "backward", "double")]
    assert passed == [True, True, False]


def test_result_tells_what_is_wrong() -> None:
    case = Case("softmax", "forward", (3, 5))
    right = testing.check(case, testing.Subject(CPU, torch.softmax, torch.log_softmax))
    assert right.passed
    assert right.message is None
    assert 0 <= right.error <= right.tolerance
    assert right.tolerance < 100 * UNIT["float32"]
    wrong = testing.check(case, testing.Subject(CPU, zeros, torch.log_softmax))
    assert not wrong.passed
    assert wrong.error > wrong.tolerance
    assert wrong.message is not None
    assert "15 of 15 elements are off" in wrong.message
    assert "allowed" in wrong.message
    broken = testing.check(case, testing.Subject(CPU, raises, torch.log_softmax))
    assert broken.message == "raised RuntimeError: no kernel today"


def test_names_are_unique() -> None:
    names = [case.name for case in cases(INTERPRETER)]
    assert len(set(names)) == len(names)


def test_leaves_out_what_a_backend_does_not_compute() -> None:
    class Narrow:
        dtypes = frozenset({"float32"})
        algorithms = frozenset({"tile"})
        device_type = "cpu"

        def device_count(self) -> int:
            return 1

    floats = {d for case in cases(Narrow()) for d in (case.dtype, case.out_dtype) if "float" in d}  # type: ignore[arg-type]
    assert floats == {"float32"}
    assert not any(case.stream or case.last_device for case in cases(Narrow()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        ("some -inf", lambda x: x.isneginf().any() and not x.isneginf().all(-1).any()),
        ("row of -inf", lambda x: x.isneginf().all(-1).any() and not x.isneginf().all()),
        ("some +inf", lambda x: x.isposinf().any()),
        ("some nan", lambda x: x.isnan().any()),
        ("constant", lambda x: (x == x[0, 0]).all()),
        ("dominant", lambda x: x.max() > 50),
        ("shifted", lambda x: x.min() > 9_000),
    ],
)
def test_values_are_what_they_are_called(kind: Any, holds: Callable[[torch.Tensor], Any]) -> None:
    x = values(kind, (37, 53), -1)
    assert holds(x)
    assert torch.equal(x.nan_to_num(), values(kind, (37, 53), -1).nan_to_num()), "the same in every run"


def test_layouts_are_what_they_are_called() -> None:
    source = values("normal", (3, 10, 7, 9), -1)
    placed = {
        layout: place(source, layout, "float64", CPU)
        for layout in ("contiguous", "transposed", "sliced", "stepped", "channels_last", "permuted")
    }
    assert all(torch.equal(x, source) for x in placed.values())
    assert [name for name, x in placed.items() if x.is_contiguous()] == ["contiguous"]
    assert len({x.stride() for x in placed.values()}) == len(placed)
    assert place(source, "sliced", "float32", CPU).data_ptr() % 16
    assert place(source, "expanded", "float32", CPU).stride()[0] == 0


@pytest.mark.usefixtures("nothing_prepared")
def test_forced_plans_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETER is None or registry.unavailable(INTERPRETER):
        pytest.skip("needs the interpreter")
    seen: list[LaunchPlan] = []

    def record(*args: Any) -> Any:
        prepared = prepare(*args)
        seen.append(prepared[0])
        return prepared

    from tridal.runtime import launch

    prepare = launch.prepare
    monkeypatch.setattr(launch, "prepare", record)
    asked = ("planned", *testing.plans(INTERPRETER))
    for plan in asked:
        assert testing.run_case(Case("softmax", "forward", (300, 781), plan=plan), INTERPRETER).passed
    planned, *forced = seen
    assert len(forced) == len(asked) - 1
    assert {plan.algorithm for plan in forced} >= {"tile", "looped"}
    assert any(plan.programs == 1 < planned.programs or plan.tile != planned.tile for plan in forced)
    looped = next(plan for plan in forced if plan.algorithm == "looped")
    assert 781 / looped.tile.cols > 3, "several steps, the last of them ragged"


def test_suite_leaves_nothing_behind(backend: Backend) -> None:
    before = [entry.name for entry in registry.registered()]
    testing.run_case(Case("softmax", "forward", (3, 5), plan="looped"), backend)
    assert [entry.name for entry in registry.registered()] == before


def test_worked_example() -> None:
    right = testing.worked_example(testing.Subject(CPU, torch.softmax, torch.log_softmax))
    assert right.result.passed
    assert [[round(v, 4) for v in row] for row in right.dx] == [[-0.0381, -0.0792, 0.1173], [-0.0043, -0.0202, 0.0245]]
    wrong = testing.worked_example(testing.Subject(CPU, torch.log_softmax, torch.log_softmax)).result
    assert not wrong.passed
    assert wrong.message is not None
    assert "from the worked numbers" in wrong.message


def test_worked_example_on_a_backend(backend: Backend) -> None:
    with testing.subject(backend) as subject:
        assert testing.worked_example(subject).result.passed
