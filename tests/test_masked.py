"""softmax of scaled and masked scores: against torch's ops in float64, by the kernel and composed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.testing import assert_close

import tridal
from tridal import testing
from tridal.devices import registry
from tridal.devices.types import Backend, Tile
from tridal.errors import DimensionError, DTypeError, LayoutError
from tridal.ops import planning
from tridal.ops.scale_mask import Extras
from tridal.pytorch import prepared as execute
from tridal.runtime import launch
from tridal.runtime import specialization as variants
from tridal.runtime.row_layout import geometry
from tridal.testing.forcing import subject

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
def prepared(nothing_prepared: None, monkeypatch: pytest.MonkeyPatch) -> list[variants.Call]:
    """The calls that are prepared from now on, with nothing prepared before."""
    seen: list[variants.Call] = []
    prepare = launch.prepare

    def record(call: variants.Call, *arguments: Any) -> Any:
        seen.append(call)
        return prepare(call, *arguments)

    monkeypatch.setattr(launch, "prepare", record)
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
def test_masks(
    device: torch.device, prepared: list[variants.Call], shape: tuple[int, ...], kind: str, causal: bool
) -> None:
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
    assert [(call.problem.op, call.weighing.factor) for call in prepared] == [
        ("softmax", 0.7),
        ("softmax_backward", 0.7),
    ]
    assert prepared[0].weighing.mask == {"boolean": "uint8", "added": "float32", "added halves": "float16"}[kind]


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


def scores(shape: tuple[int, ...], mask: torch.Tensor | None, dtype: torch.dtype, **extras: Any) -> variants.Call:
    """The call that contiguous scores make."""
    x = torch.empty(shape, dtype=dtype, device="meta")
    given = Extras(**{"scale": 0.5, "mask": mask, "causal": False, "masked_rows": "nan", **extras})
    where, weighing = geometry(shape, x.stride(), len(shape) - 1, 0), execute._weighing(x, len(shape) - 1, given)
    assert where is not None
    assert weighing is not None
    return variants.Call.of("softmax", where, (execute.dtype_name(dtype),) * 2, None, weighing)


TILES = {
    "tile": Tile("tile", rows=4, cols=1024),
    "edges": Tile("tile", rows=1, cols=1024, edges=True),
    "several edges": Tile("tile", rows=4, cols=1024, edges=True),
    "split": Tile("split", rows=1, cols=256, split=4),
    "split with edges": Tile("split", rows=1, cols=256, split=4, edges=True),
    "pipelined": Tile("tile", rows=1, cols=1024, num_stages=3),
    "looped": Tile("looped", rows=1, cols=256, num_stages=2),
}


@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
@pytest.mark.parametrize("kind", [None, torch.bool, torch.bfloat16])
def test_the_kernel_compiles_for_devices_that_are_not_here(tile: Tile, kind: torch.dtype | None) -> None:
    backend, device = planning.target(arch="sm_90")
    assert device.target is not None
    mask = None if kind is None else torch.ones(2, 1, 16, 1001, dtype=kind)
    call = scores((2, 3, 16, 1001), mask, torch.bfloat16, causal=True, masked_rows="zero")
    compiled = launch.compile_variant(call.variant(tile), device.target)
    assert backend.resources(compiled.asm, compiled.metadata.shared).registers > 16


@pytest.mark.parametrize("cols", [1024, 1001])
@pytest.mark.parametrize(("dtype", "bytes_of_a_mask"), [(torch.float32, "b32"), (torch.bfloat16, "v2.b32")])
def test_a_mask_is_read_in_vectors_where_it_lies_as_the_scores_do(
    cols: int, dtype: torch.dtype, bytes_of_a_mask: str
) -> None:
    _, device = planning.target(arch="sm_90")
    assert device.target is not None
    tile = Tile("tile", rows=1, cols=1024, edges=cols % 16 != 0)
    whole, off = torch.ones(64 * cols + 1, dtype=torch.bool)[:-1], torch.ones(64 * cols + 1, dtype=torch.bool)[1:]
    reads = {}
    for name, mask in (("whole", whole.view(64, cols)), ("off", off.view(64, cols)), ("keys", torch.ones(cols) > 0)):
        call = scores((64, cols), mask, dtype)
        ptx = launch.compile_variant(call.variant(tile), device.target).asm["ptx"]
        reads[name] = ptx.count("ld.global.b8") + ptx.count("ld.global.v2.b8")
        assert ptx.count("ld.global.v4.b32") >= 1, "scores are read in vectors in any case"
    edges = 2 * tile.edges
    assert reads["whole"] <= edges, "byte for byte where a row's ends are alone"
    assert reads["off"] > edges
    assert (reads["keys"] > edges) is tile.edges, "rows of an odd length start anywhere, their keys' mask does not"


def test_a_call_like_another_is_not_prepared_again(device: torch.device, prepared: list[variants.Call]) -> None:
    for _ in range(3):
        tridal.softmax(torch.randn(Q, K, device=device), mask=torch.ones(K, dtype=torch.bool, device=device))
    assert len(prepared) == 1
    tridal.softmax(torch.randn(Q, K, device=device), mask=torch.ones(Q, K, dtype=torch.bool, device=device))
    tridal.softmax(torch.randn(Q, K, device=device))
    assert [call.weighing.mask for call in prepared] == ["uint8", "uint8", None]


def test_another_batch_compiles_nothing() -> None:
    of = [scores((batch, 3, 16, 1024), torch.ones(batch, 1, 16, 1024), torch.float32, causal=True) for batch in (2, 5)]
    assert of[0].variant(TILES["tile"]) == of[1].variant(TILES["tile"])


def test_a_scale_of_one_is_the_plain_call(device: torch.device, prepared: list[variants.Call]) -> None:
    x = torch.randn(Q, K, device=device)
    assert torch.equal(tridal.softmax(x, scale=1.0), tridal.softmax(x))
    assert prepared[0] == prepared[1]


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_every_dimension_is_one_pass(device: torch.device, prepared: list[variants.Call], dim: int) -> None:
    x = torch.randn(B, Q, K, dtype=torch.float64, device=device, requires_grad=True)
    for mask in (torch.rand(B, 1, K, device=device) > 0.4, torch.randn(Q, 1, device=device), None):
        ours, theirs = tridal.softmax(x, dim, mask=mask, scale=0.5), reference(x, dim, mask=mask, scale=0.5)
        assert_close(ours, theirs, equal_nan=True)
    assert [call.problem.op for call in prepared] == ["softmax"] * 3


def test_what_no_kernel_does_is_composed(device: torch.device, prepared: list[variants.Call]) -> None:
    x = torch.randn(B, Q, K, dtype=torch.float64, device=device, requires_grad=True)
    mask = torch.randn(Q, K, dtype=torch.float64, device=device, requires_grad=True)
    ours, theirs = tridal.softmax(x, mask=mask, causal=True), reference(x, mask=mask, causal=True)
    assert_close(ours, theirs)
    assert_close(torch.autograd.grad(ours.sin().sum(), (x, mask)), torch.autograd.grad(theirs.sin().sum(), (x, mask)))
    assert {call.weighing.mask for call in prepared} == {None}, "a mask that wants a gradient"
    with torch.no_grad():
        assert_close(tridal.softmax(x, mask=mask, causal=True), theirs.detach())
    assert prepared.pop().weighing.mask == "float64", "which here it doesn't"
    scattered = torch.rand(2, 1, 3, 1, 5, dtype=torch.float64, device=device)
    x = torch.randn(2, 2, 3, 2, 5, dtype=torch.float64, device=device, requires_grad=True)
    ours, theirs = tridal.softmax(x, scale=0.5, mask=scattered), reference(x, scale=0.5, mask=scattered)
    assert_close(ours, theirs)
    assert_close(torch.autograd.grad(ours.sin().sum(), x), torch.autograd.grad(theirs.sin().sum(), x))
    assert {call.weighing.mask for call in prepared} == {None}, "a mask that takes more than three strides"


def test_a_backend_that_weighs_nothing_gets_plain_calls(backend: Backend, prepared: list[variants.Call]) -> None:
    class Plain:
        name, algorithms = "plain", backend.algorithms - {"masked"}

        def __getattr__(self, member: str) -> Any:
            return getattr(backend, member)

    plain: Any = Plain()
    registry.register(plain)
    try:
        with tridal.use(device="plain"):
            x = torch.randn(Q, K, dtype=torch.float64, device=tridal.device(), requires_grad=True)
            ours, theirs = tridal.softmax(x, scale=0.5, causal=True), reference(x, scale=0.5, causal=True)
            assert_close(ours, theirs)
            assert_close(torch.autograd.grad(ours.sin().sum(), x), torch.autograd.grad(theirs.sin().sum(), x))
    finally:
        registry.unregister("plain")
    assert {call.weighing for call in prepared} == {variants.PLAIN}


@st.composite
def weighed(draw: st.DrawFn) -> tuple[torch.Tensor, dict[str, Any]]:
    """Scores that lie anyhow, and extras."""
    rank = draw(st.integers(1, 4))
    shape = draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank))
    shape[-1] = draw(st.integers(1, 90))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    x = torch.randn(math.prod(shape) + 8, generator=generator, dtype=torch.float64)[draw(st.integers(0, 7)) :]
    order = draw(st.sampled_from([list(range(rank)), draw(st.permutations(range(rank)))]))
    x = x[: math.prod(shape)].view([shape[axis] for axis in order]).permute(*map(order.index, range(rank)))
    x = x[..., :: draw(st.sampled_from([1, 1, 2]))]
    mask = None
    if draw(st.booleans()):
        of = [size if draw(st.booleans()) else 1 for size in x.shape][draw(st.integers(0, rank - 1)) :]
        start = draw(st.integers(0, 5))
        keep = (torch.rand(math.prod(of) + 5, generator=generator) > 0.3)[start : start + math.prod(of)].view(of)
        dtype = draw(st.sampled_from([torch.bool, torch.float16, torch.float32, torch.float64]))
        mask = keep if dtype is torch.bool else torch.randn(of, generator=generator).masked_fill(~keep, -torch.inf)
        mask = mask.to(dtype)
    dim = draw(st.sampled_from([-1, -1, *range(rank)]))
    causal = rank > 1 and dim % rank == rank - 1 and draw(st.booleans())
    scale = draw(st.sampled_from([1.0, 0.25, -1.5, 0]))
    return x, {"dim": dim, "scale": scale, "mask": mask, "causal": causal,
               "masked_rows": draw(st.sampled_from(["nan", "zero"]))}  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=weighed(), data=st.data())
def test_whatever_is_asked(backend: Backend, case: tuple[torch.Tensor, dict[str, Any]], data: st.DataObject) -> None:
    x, extras = case
    plan = data.draw(st.sampled_from(["planned", *testing.plans(backend)]))
    mask = extras["mask"]
    with subject(backend, plan) as tested:
        x = x.to(tested.device).requires_grad_()
        extras["mask"] = None if mask is None else mask.to(tested.device)
        ours = tested.softmax(x, **extras)
        theirs = reference(x, **extras)
        assert_close(ours, theirs, equal_nan=True)
        g = torch.randn_like(ours)
        y, scale = theirs.detach(), extras["scale"]
        expected = scale * y * (g - (g * y).sum(extras["dim"], keepdim=True))
        assert_close(torch.autograd.grad(ours, x, g)[0], expected, equal_nan=True)


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
    many = torch.randn(3, Q, K, dtype=torch.float64, device=device)
    for dims in ((0, 0), (0, None), (None, 0)):
        got, wanted = (
            torch.vmap(lambda z, m, f=f: f(z, scale=0.5, mask=m, causal=True), dims)(
                *(batched if axis == 0 else x for axis in dims[:1]), *(many if axis == 0 else mask for axis in dims[1:])
            )
            for f in (tridal.softmax, reference)
        )
        assert_close(got, wanted)
    for wanted_of in (0, 1):
        for transform in (torch.func.grad, torch.func.jacfwd, torch.func.jacrev):
            got, wanted = (
                transform(lambda z, m, f=f: f(z, scale=0.5, mask=m).square().sum(), wanted_of)(x, mask)
                for f in (tridal.softmax, reference)
            )
            assert_close(got, wanted)
    z = x.clone().requires_grad_()
    second = [
        torch.autograd.grad(torch.autograd.grad(f(z).square().sum(), z, create_graph=True)[0].sin().sum(), z)
        for f in (ours, theirs)
    ]
    assert_close(*second)


def test_gradients_of_every_order(device: torch.device) -> None:
    x = torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    keep = torch.rand(3, 4, device=device) > 0.3
    keep[:, 0] = True
    extras: dict[str, Any] = {"scale": -0.7, "mask": keep, "causal": True, "masked_rows": "zero"}
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda z: tridal.softmax(z, **extras), (x,))
    assert torch.autograd.gradcheck(
        lambda z: tridal.softmax(z, **extras), (x,), check_forward_ad=True, check_batched_grad=True
    )
    added = torch.randn(4, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda z, m: tridal.softmax(z, scale=0.5, mask=m), (x, added))


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
        ({"scale": 2.0, "dim": 1.0}, TypeError, "dim must be an int, got 1.0"),
        ({"scale": 2.0, "dtype": torch.int64}, DTypeError, "dtype must be a floating-point dtype"),
        ({"scale": 2.0, "input": torch.eye(3).to_sparse()}, LayoutError, "layout torch.sparse_coo"),
        ({"scale": 2.0, "input": torch.ones(3, dtype=torch.int64)}, DTypeError, "pass a floating-point dtype="),
    ],
    ids=str,
)  # fmt: skip
def test_bad_extras(device: torch.device, extras: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tridal.softmax(**{"input": torch.randn(Q, K, device=device), **extras})
    with pytest.raises(DimensionError, match="causal=True needs"):
        tridal.softmax(torch.randn(K, device=device), causal=True)
