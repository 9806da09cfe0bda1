"""Call guards: they accept tensors like the first ones, in the same state, and reject all others."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import tridal
from feature_axes import DispatchMode, FunctionMode
from tridal.pytorch.path.guards import ServedRows, guard_call
from tridal.pytorch.torch import private

Tensor = torch.Tensor


def example() -> list[Tensor | None]:
    """New tensors, and an absent one."""
    return [torch.randn(6, 16), None, torch.randn(16, requires_grad=True), torch.randint(0, 9, (6,))]


@pytest.fixture
def accepts() -> Callable[..., bool]:
    guard = guard_call(example())
    assert guard is not None, "torch's check has changed, so no call is guarded"
    return lambda tensors: bool(guard(tensors))


def test_tensors_like_the_first_ones_are_accepted(accepts: Callable[..., bool]) -> None:
    assert accepts(example())
    assert accepts((torch.zeros(12, 16)[6:], *example()[1:]))


OTHERS: list[tuple[int, Callable[[], Any]]] = [
    (0, lambda: torch.randn(6, 17)), (0, lambda: torch.randn(16, 6).T), (0, lambda: torch.randn(7, 16)),
    (0, lambda: torch.randn(6, 32)[:, ::2]), (0, lambda: torch.randn(1, 6, 16)), (0, lambda: torch.randn(12, 16)[:7]),
    (0, lambda: torch.randn(6, 16).double()), (0, lambda: torch.randn(6, 16).requires_grad_()),
    (0, lambda: torch.nn.Parameter(torch.randn(6, 16), requires_grad=False)), (0, lambda: torch.randn(6, 16).numpy()),
    (0, lambda: torch._neg_view(torch.randn(6, 16))), (0, lambda: torch.randn(97)[1:].view(6, 16)),
    (0, lambda: torch.randn(6, 16).to_sparse()), (0, lambda: torch.randn(6, 16).to_sparse_csr()),
    (0, lambda: torch.randn(6, 16).to_mkldnn()),
    (0, lambda: torch.nested.nested_tensor([torch.randn(16)] * 6)), (0, lambda: None), (0, lambda: [[1.0]]),
    (0, lambda: torch.randn(6, 16, device="meta")), (0, lambda: torch.zeros(6, 16, dtype=torch.complex64).real),
    (1, lambda: torch.randn(6, 16)), (1, lambda: 0),
    (2, lambda: torch.nn.Parameter(torch.randn(16))), (2, lambda: torch.randn(16)), (2, lambda: None),
    (2, lambda: torch.randn(16, dtype=torch.bfloat16, requires_grad=True)),
    (3, lambda: torch.randint(0, 9, (6,), dtype=torch.int32)), (3, lambda: torch.randint(0, 9, (12,))[::2]),
    (3, lambda: torch.randint(0, 9, (7,))[1:]),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(OTHERS)))
def test_another_tensor_at_any_position_is_rejected(accepts: Callable[..., bool], case: int) -> None:
    position, make = OTHERS[case]
    tensors: list[Any] = example()
    tensors[position] = make()
    assert not accepts(tensors)


def test_a_tensor_without_memory_and_a_tensor_given_twice_are_rejected() -> None:
    x, y = torch.randn(6, 16), torch.randn(6, 16)
    guard = guard_call((x, y))
    assert guard is not None
    assert guard((y, x))
    assert not guard((x, x))
    assert guard_call((x, x)) is None
    y.untyped_storage().resize_(0)
    assert not guard((x, y))
    assert guard_call((x, y)) is None


@pytest.mark.parametrize(
    "make_context",
    [
        lambda: torch.autocast("cpu"), torch.inference_mode, torch.no_grad, FunctionMode, DispatchMode,
        forward_ad.dual_level, lambda: torch._subclasses.FakeTensorMode(),
    ],
)  # fmt: skip
def test_calls_in_another_context_are_rejected(
    accepts: Callable[..., bool], make_context: Callable[[], AbstractContextManager[Any]]
) -> None:
    tensors = example()
    with make_context():
        assert not accepts(tensors)
    assert accepts(tensors)


def test_inference_tensors_are_rejected(accepts: Callable[..., bool]) -> None:
    tensors = example()
    with torch.inference_mode():
        tensors[0] = torch.randn(6, 16)
        assert not accepts(tensors)
    assert not accepts(tensors)


def test_calls_in_transforms_and_tracers_and_batched_gradients_are_rejected(accepts: Callable[..., bool]) -> None:
    plain, accepted = example(), []

    def record(x: Tensor) -> Tensor:
        accepted.extend([accepts(plain), accepts([x, *plain[1:]])])
        return x.sum()

    torch.func.grad(record)(torch.randn(6, 16))
    torch.func.vmap(record)(torch.randn(3, 6, 16))
    torch.func.jvp(record, (torch.randn(6, 16),), (torch.randn(6, 16),))
    torch.jit.trace(record, (torch.randn(6, 16),), check_trace=False)
    assert len(accepted) == 8
    assert not any(accepted)

    x = torch.randn(6, 16, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: accepted.append(accepts([grad, *plain[1:]])))
    torch.autograd.grad(y, x, torch.randn(3, 6, 16), is_grads_batched=True)
    assert accepted[8:] == [False]


def test_nested_tensors_in_a_transform_are_rejected(accepts: Callable[..., bool]) -> None:
    others = example()[1:]

    def check(x: Tensor) -> Tensor:
        assert not accepts([x, *others])
        return x

    torch.func.vmap(check)(torch.nested.nested_tensor([torch.randn(6, 16)] * 3))


def test_a_guard_keeps_no_tensor_alive() -> None:
    tensors = example()
    guard, references = guard_call(tensors), [weakref.ref(t) for t in tensors if t is not None]
    del tensors
    gc.collect()
    assert guard is not None
    assert [reference() for reference in references] == [None] * 3


def test_without_torchs_private_check_there_is_no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_TensorGuards", None)
    assert guard_call(example()) is None


def test_options_are_the_same_objects_and_settings_are_the_same() -> None:
    option = (1, 2)
    with_options, backward = guard_call(example(), [option, 0.5]), guard_call(example())
    assert with_options is not None
    assert backward is not None
    assert with_options(example(), [option, 0.5])
    for other in ([option[:1] + option[1:], 0.5], [option, 0.25], [0.5, option]):
        assert not with_options(example(), other)
    without_options = guard_call(example(), ())
    assert without_options is not None
    assert without_options(example(), ())
    with tridal.use(batch_invariant=True):
        assert not with_options(example(), [option, 0.5])
        assert not without_options(example(), ())
        assert backward(example()), "the thread of a backward may have other settings"


Shapes = list[tuple[int, ...]]
ROLES = ("element", "element", "column", "row", "index", "whole")


def given(shape: tuple[int, ...], dims: int = 1, **changes: Tensor) -> list[Tensor | None]:
    """New tensors with the roles in ROLES, for an input of this shape whose rows have `dims` dims."""
    rows, row = shape[: len(shape) - dims], shape[len(shape) - dims :]
    sizes = {"input": shape, "residual": shape, "weight": row, "scale": rows, "target": rows, "matrix": (5, 7)}
    made = {name: torch.ones(size) for name, size in sizes.items()}
    made["target"] = made["target"].long()
    return [*(made | changes).values()]


def served(first: int, last: int, divisible: bool | None = None, dims: int = 1) -> ServedRows:
    return ServedRows(first, last, divisible, dims, 0, ROLES)


@pytest.mark.parametrize(
    ("rows", "shape", "accepted", "rejected"),
    [
        (served(4, 9), (6, 8), [(4, 8), (9, 8), (6, 8)], [(3, 8), (10, 8), (6, 9), (6, 4), (12, 4), (2, 3, 8)]),
        (served(2, 64, True), (16, 8), [(32, 8), (48, 8)], [(17, 8), (8, 8), (24, 8)]),
        (served(2, 64, False), (6, 8), [(17, 8), (8, 8), (24, 8)], [(16, 8), (32, 8)]),
        (served(4, 9), (2, 3, 8), [(1, 4, 8), (9, 1, 8)], [(2, 5, 8), (1, 3, 8), (6, 8)]),
        (served(2, 3, dims=2), (2, 3, 8), [(3, 3, 8)], [(4, 3, 8), (1, 3, 8), (2, 4, 6), (2, 8, 3), (6, 8)]),
        (served(2, 9), (3, 2, 1, 8), [(2, 2, 2, 8)], [(1, 1, 1, 8), (5, 1, 2, 8)]),
    ],
    ids=str,
)  # fmt: skip
def test_rows_in_the_range_are_accepted(
    rows: ServedRows, shape: tuple[int, ...], accepted: Shapes, rejected: Shapes
) -> None:
    guard = guard_call(given(shape, rows.dims), (), rows)
    assert guard is not None
    assert [other for other in [shape, *accepted] if not guard(given(other, rows.dims))] == []
    assert [other for other in rejected if guard(given(other, rows.dims))] == []


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8)], ids=str)
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("residual", lambda shape: torch.ones(shape[0] + 1, *shape[1:])),
        ("residual", lambda shape: torch.ones(*shape[:-1], 2 * shape[-1])[..., ::2]),
        ("residual", lambda shape: torch.ones(()).expand(shape)),
        ("weight", lambda shape: torch.ones(7)),
        ("scale", lambda shape: torch.ones(shape[0] + 1, *shape[1:-1])),
        ("scale", lambda shape: torch.ones(shape)),
        ("target", lambda shape: torch.ones(shape[0] + 1, *shape[1:-1]).long()),
        ("matrix", lambda shape: torch.ones(6, 7)),
        ("input", lambda shape: torch.ones(shape[::-1]).permute(*range(len(shape)))[..., :0]),
        ("input", lambda shape: torch.ones(*shape[:-1], 2 * shape[-1])[..., ::2]),
    ],
)
def test_tensors_of_another_shape_or_with_other_strides_are_rejected(
    shape: tuple[int, ...], name: str, make: Callable[..., Tensor]
) -> None:
    guard = guard_call(given(shape), (), served(4, 9))
    assert guard is not None
    assert guard(given(shape))
    assert not guard(given(shape, **{name: make(shape)}))


def test_an_expanded_number_stays_one_number() -> None:
    """It may be the gradient of a sum: then it has other sizes, and no other strides."""

    def gradient(*shape: int) -> Tensor:
        return torch.ones(()).expand(shape)

    guard = guard_call(given((2, 3, 8), residual=gradient(2, 3, 8)), (), served(4, 9))
    assert guard is not None
    assert guard(given((3, 3, 8), residual=gradient(3, 3, 8)))
    assert not guard(given((3, 3, 8)))
    assert not guard(given((3, 3, 8), residual=torch.ones(3, 1, 1).expand(3, 3, 8)))
