"""softmax of scaled and masked scores: against torch's ops in float64, by the kernel and composed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from tridal import fusing, launch, planning
from tridal.errors import DimensionError, DTypeError
from tridal.types import Tile

B, H, Q, K = 2, 3, 5, 7


def reference(x: torch.Tensor, dim: int = -1, *, scale: float = 1.0, mask: Any = None, causal: bool = False,
              masked_rows: str = "nan") -> torch.Tensor:  # fmt: skip
    x = x.double() * scale
    if mask is not None:
        x = x.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else x + mask
    if causal:
        x = x.masked_fill(torch.ones(x.shape[-2:], device=x.device).tril() == 0, -torch.inf)
    y = torch.softmax(x, dim)
    return torch.where((x == -torch.inf).all(dim, keepdim=True), 0.0, y) if masked_rows == "zero" else y


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The kernels that were bound since."""
    seen: list[Any] = []
    prepare = launch.prepare

    def record(call: Any, *arguments: Any) -> Any:
        prepared = prepare(call, *arguments)
        seen.append(call.variant(prepared.plan.tile).kernel)
        return prepared

    monkeypatch.setattr(launch, "prepare", record)
    monkeypatch.setattr(fusing, "_runs", {})
    return seen


MASKS: dict[str, tuple[int, ...]] = {
    "whole": (B, H, Q, K),
    "of keys": (K,),
    "of queries and keys": (Q, K),
    "of each batch's keys": (B, 1, 1, K),
    "of each batch": (B, 1, Q, K),
    "of each head": (H, Q, K),
    "of each head's queries": (H, Q, 1),
    "one for all": (1,),
}


@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("kind", ["boolean", "added", "added halves"])
@pytest.mark.parametrize("causal", [False, True])
def test_masks(device: torch.device, kernels: list[Any], shape: tuple[int, ...], kind: str, causal: bool) -> None:
    x = torch.randn(B, H, Q, K, dtype=torch.float64, device=device, requires_grad=True)
    keep = torch.rand(shape, device=device) > 0.3
    added = torch.randn(shape, device=device).masked_fill(~keep, -torch.inf)
    mask = {"boolean": keep, "added": added, "added halves": added.half()}[kind]
    extras: dict[str, Any] = {"scale": 0.7, "mask": mask, "causal": causal, "masked_rows": "zero"}
    ours, theirs = tridal.softmax(x, **extras), reference(x, **extras)
    assert_close(ours, theirs)
    g = torch.randn_like(ours)
    y = theirs.detach()  # of a row that is left nothing, torch's where() would make a gradient of NaN
    expected = 0.7 * y * (g - (g * y).sum(-1, keepdim=True))
    assert_close(torch.autograd.grad(ours, x, g)[0], expected)
    assert kernels[:1] == ["forward_masked"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("cast", [None, torch.float32, torch.float16])
def test_dtypes(device: torch.device, dtype: torch.dtype, cast: torch.dtype | None) -> None:
    x = torch.randn(Q, K, device=device).to(dtype).requires_grad_()
    y = tridal.softmax(x, -1, cast, scale=3.0, causal=True)
    assert y.dtype == (cast or dtype)
    assert_close(y.double(), reference(x, scale=3.0, causal=True), rtol=2e-2, atol=1e-2)
    assert torch.autograd.grad(y.sum(), x)[0].dtype == dtype


def test_rows_of_which_nothing_is_left(device: torch.device) -> None:
    x = torch.randn(3, 4, device=device, requires_grad=True)
    mask = torch.tensor([[True] * 4, [False] * 4, [True, False, False, True]], device=device)
    assert tridal.softmax(x, mask=mask)[1].isnan().all(), "as torch"
    y = tridal.softmax(x, mask=mask, masked_rows="zero")
    assert_close(y.double(), reference(x, mask=mask, masked_rows="zero"), check_dtype=False)
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    assert dx[1].count_nonzero() == 0
    assert dx.isfinite().all()
    torch.testing.assert_close(tridal.softmax(torch.full((2, 3), -torch.inf, device=device), masked_rows="zero"),
                               torch.zeros(2, 3, device=device))  # fmt: skip
    assert tridal.softmax(torch.full((2, 3), torch.nan, device=device), masked_rows="zero").isnan().all()


@pytest.mark.parametrize("scale", [0.0, -2.0, 1, 1e-3])
def test_scales(device: torch.device, scale: float) -> None:
    x = torch.randn(Q, K, dtype=torch.float64, device=device, requires_grad=True)
    ours, theirs = tridal.softmax(x, scale=scale), reference(x, scale=scale)
    assert_close(ours, theirs)
    assert_close(torch.autograd.grad(ours.sin().sum(), x), torch.autograd.grad(theirs.sin().sum(), x))


@pytest.mark.parametrize(
    "place",
    [lambda x: x.transpose(0, 1).contiguous().transpose(0, 1), lambda x: x.t().contiguous().t(),
     lambda x: torch.cat([x, x], 1)[:, 3 : 3 + K], lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(Q, K)],
    ids=["rows apart", "transposed", "sliced", "unaligned"],
)  # fmt: skip
def test_inputs_that_lie_anyhow(device: torch.device, place: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = place(torch.randn(Q, K, dtype=torch.float64, device=device))
    mask = torch.rand(K, Q, device=device).t() > 0.2
    assert_close(tridal.softmax(x, mask=mask, scale=2.0), reference(x, mask=mask, scale=2.0))


@pytest.mark.parametrize("algorithm", ["tile", "looped"])
@pytest.mark.parametrize("kind", [None, torch.bool, torch.bfloat16])
def test_the_kernel_compiles_for_devices_that_are_not_here(algorithm: Any, kind: torch.dtype | None) -> None:
    targets = {p.target for _, p in planning.architectures().values() if p.target is not None}
    mask = None if kind is None else torch.ones(B, 1, 16, 64, dtype=kind)
    extras = fusing.Extras(0.5, mask, True, "zero")
    x = torch.randn(B, H, 16, 64, dtype=torch.bfloat16)
    lies = fusing._mask_strides(x, mask)
    assert lies is not None
    variant = fusing._call(x, torch.float32, extras, *lies).variant(Tile(algorithm, rows=4, cols=64))
    for target in sorted(targets, key=str)[:2]:
        assert launch.compile_variant(variant, target).asm


def test_a_call_like_another_is_not_prepared_again(device: torch.device, kernels: list[Any]) -> None:
    for _ in range(3):
        tridal.softmax(torch.randn(Q, K, device=device), mask=torch.ones(K, dtype=torch.bool, device=device))
    assert kernels == ["forward_masked"]
    tridal.softmax(torch.randn(Q, K, device=device), mask=torch.ones(Q, K, dtype=torch.bool, device=device))
    assert len(kernels) == 2


def test_other_dimensions_are_composed(device: torch.device, kernels: list[Any]) -> None:
    x = torch.randn(B, Q, K, dtype=torch.float64, device=device, requires_grad=True)
    mask = torch.randn(Q, K, dtype=torch.float64, device=device, requires_grad=True)
    for dim, extras in ((1, {"scale": 0.5}), (0, {"mask": mask}), (-1, {"mask": mask, "causal": True})):
        ours, theirs = tridal.softmax(x, dim, **extras), reference(x, dim, **extras)
        assert_close(ours, theirs)
        inputs = [x, *(value for value in extras.values() if isinstance(value, torch.Tensor))]
        assert_close(torch.autograd.grad(ours.sin().sum(), inputs), torch.autograd.grad(theirs.sin().sum(), inputs))
    assert "forward_masked" not in kernels


class Looped:
    """A backend that walks every row in column tiles."""

    def __init__(self, backend: Any) -> None:
        self._backend, self.name = backend, "columns"

    def __getattr__(self, member: str) -> Any:
        return getattr(self._backend, member)

    def plan(self, problem: Any, *arguments: Any) -> Any:
        from dataclasses import replace

        planned = self._backend.plan(problem, *arguments)
        return replace(planned, tile=Tile("looped", rows=2, cols=16), programs=2) if not problem.backward else planned


@pytest.fixture
def looped(backend: Any) -> Iterator[torch.device]:
    tridal.registry.register(Looped(backend))
    with tridal.use(device="columns"):
        yield tridal.device()
    tridal.registry.unregister("columns")


def test_rows_wider_than_a_tile(looped: torch.device, kernels: list[Any]) -> None:
    x = torch.randn(B, Q, 61, dtype=torch.float64, device=looped)
    x[0, 1] = -torch.inf
    mask = torch.rand(B, 1, 61, device=looped) > 0.6
    mask[:, :, :20] = False
    for causal, rows in itertools.product((False, True), ("nan", "zero")):
        extras: dict[str, Any] = {"scale": 1.5, "mask": mask, "causal": causal, "masked_rows": rows}
        assert_close(tridal.softmax(x, **extras), reference(x, **extras), equal_nan=True)
    assert set(kernels) == {"forward_masked_looped"}


def test_transforms_and_second_order(device: torch.device) -> None:
    x = torch.randn(Q, K, dtype=torch.float64, device=device)
    mask = torch.randn(Q, K, dtype=torch.float64, device=device)

    def ours(z: torch.Tensor) -> torch.Tensor:
        return tridal.softmax(z, scale=0.5, mask=mask, causal=True)

    def theirs(z: torch.Tensor) -> torch.Tensor:
        return reference(z, scale=0.5, mask=mask, causal=True)

    for transform in (
        torch.func.jacfwd,
        torch.func.jacrev,
        lambda f: torch.func.hessian(lambda z: f(z).square().sum()),
    ):
        assert_close(transform(ours)(x), transform(theirs)(x))
    batched = torch.randn(3, Q, K, dtype=torch.float64, device=device)
    assert_close(torch.vmap(ours)(batched), torch.vmap(theirs)(batched))
    z = x.clone().requires_grad_()
    second = [
        torch.autograd.grad(torch.autograd.grad(f(z).square().sum(), z, create_graph=True)[0].sin().sum(), z)
        for f in (ours, theirs)
    ]
    assert_close(*second)


def test_compiled(device: torch.device) -> None:
    torch.compiler.reset()
    x = torch.randn(B, Q, K, device=device, requires_grad=True)
    mask = torch.rand(Q, K, device=device) > 0.2

    def block(z: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return tridal.softmax(z, scale=0.5, mask=m, causal=True, masked_rows="zero")

    y = torch.compile(block, fullgraph=True, backend="aot_eager")(x, mask)
    assert_close(y, block(x, mask))
    assert_close(torch.autograd.grad(y.sin().sum(), x), torch.autograd.grad(block(x, mask).sin().sum(), x))


def test_where_torch_computes() -> None:
    x = torch.randn(B, Q, K, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(Q, K) > 0.3
    with tridal.use(device="auto"):
        extras: dict[str, Any] = {"scale": 0.5, "mask": mask, "causal": True, "masked_rows": "zero"}
        assert_close(tridal.softmax(x, **extras), reference(x, **extras))
        halves = tridal.softmax(x.half(), **extras)
    assert halves.dtype is torch.float16
    assert_close(halves.double(), reference(x, **extras), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("extras", "error", "message"),
    [
        ({"mask": [True]}, TypeError, "mask must be a torch.Tensor, got list"),
        ({"mask": torch.ones(K, dtype=torch.int64)}, DTypeError, "must be boolean .* or floating .*, got torch.int64"),
        ({"mask": torch.ones(3)}, DimensionError, r"mask of shape \(3,\) can't be broadcast to the input's \(5, 7\)"),
        ({"mask": torch.ones(2, Q, K)}, DimensionError, "can't be broadcast"),
        ({"scale": "big"}, TypeError, "scale must be a number, got 'big'"),
        ({"causal": True, "dim": 0}, DimensionError, "causal=True needs queries by keys"),
        ({"masked_rows": "one"}, ValueError, "masked_rows must be 'nan' or 'zero', got 'one'"),
        ({"scale": 2.0, "dim": 5}, DimensionError, "dim 5 is out of range"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_extras(device: torch.device, extras: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tridal.softmax(torch.randn(Q, K, device=device), **extras)
    with pytest.raises(DimensionError, match="causal=True needs"):
        tridal.softmax(torch.randn(K, device=device), causal=True)
