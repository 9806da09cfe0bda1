"""Softmax of scaled and masked scores, computed by kernels and by torch's ops, compared with torch in float64."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.testing import assert_close

import tridal
from tridal import testing
from tridal.devices import registry
from tridal.devices.types import Backend
from tridal.pytorch.device_context import device_context
from tridal.pytorch.path.function import on_stream
from tridal.runtime.specialization import NO_SCALE_MASK, KernelCall

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


@st.composite
def modified_scores(draw: st.DrawFn) -> tuple[torch.Tensor, dict[str, Any]]:
    """Scores with any strides, and the arguments of a score modification."""
    rank, generator = draw(st.integers(1, 4)), torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    shape = [*draw(st.lists(st.integers(1, 9), min_size=rank - 1, max_size=rank - 1)), draw(st.integers(1, 90))]
    order = draw(st.permutations(range(rank)))
    x = torch.randn([shape[axis] for axis in order], generator=generator, dtype=torch.float64)
    x = x.permute(*map(order.index, range(rank)))[..., :: draw(st.sampled_from([1, 1, 2]))]
    mask = None
    if draw(st.booleans()):
        mask_shape = [size if draw(st.booleans()) else 1 for size in x.shape][draw(st.integers(0, rank - 1)) :]
        keep = torch.rand(mask_shape, generator=generator) > 0.3
        mask = (
            keep if draw(st.booleans()) else torch.where(keep, torch.randn(mask_shape, generator=generator), -torch.inf)
        )
        mask = mask if mask.dtype is torch.bool else mask.to(draw(st.sampled_from([torch.float16, torch.float64])))
    dim = draw(st.sampled_from([-1, -1, *range(rank)]))
    arguments = {
        "dim": dim, "scale": draw(st.sampled_from([1.0, 0.25, -1.5, 0])), "mask": mask,
        "causal": rank > 1 and dim % rank == rank - 1 and draw(st.booleans()),
        "masked_rows": draw(st.sampled_from(["nan", "zero"])),
    }  # fmt: skip
    return x, arguments


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=modified_scores(), data=st.data())
def test_random_modifications_equal_torch(
    backend: Backend, case: tuple[torch.Tensor, dict[str, Any]], data: st.DataObject
) -> None:
    x, arguments = case
    plan = data.draw(st.sampled_from(["planned", "torch", *testing.overrides(backend)]))
    mask = arguments["mask"]
    with testing.implementation(backend, "planned" if plan == "torch" else plan) as tested:
        x = x.to(tested.device).requires_grad_()
        arguments["mask"] = None if mask is None else mask.to(tested.device)
        with tridal.use(device="auto", fallback="torch") if plan == "torch" else contextlib.nullcontext():
            ours = (tridal.softmax if plan == "torch" else tested.function("softmax"))(x, **arguments)
        theirs = reference(x, **arguments)
        assert_close(ours, theirs, equal_nan=True)
        g = torch.randn_like(ours)
        y, scale = theirs.detach(), arguments["scale"]  # torch.where would give a NaN gradient for fully masked rows
        expected = scale * y * (g - (g * y).sum(arguments["dim"], keepdim=True))
        (found,) = torch.autograd.grad(ours, x, g)
        # In rows without a score, kernels give NaN, and torch's masked_fill gives 0 to what a boolean mask excludes.
        known = expected.isfinite() if plan == "torch" else torch.ones_like(expected, dtype=torch.bool)
        assert_close(found[known], expected[known], equal_nan=True)


@pytest.mark.parametrize(
    ("shape", "dtype", "causal"),
    [
        ((B, H, Q, K), torch.bool, False), ((K,), torch.float32, True), ((B, 1, 1, K), torch.float16, False),
        ((H, Q, 1), torch.bool, True), ((1,), torch.float32, False),
    ],
)  # fmt: skip
def test_masked_forward_and_backward_are_one_kernel_each(
    device: torch.device, planned: list[KernelCall], shape: tuple[int, ...], dtype: torch.dtype, causal: bool
) -> None:
    x = torch.randn(B, H, Q, K, dtype=torch.float64, device=device, requires_grad=True)
    mask = torch.ones(shape, device=device).to(dtype)
    tridal.softmax(x, scale=0.7, mask=mask, causal=causal).sum().backward()
    assert [call.kernel.name for call in planned] == ["softmax", "softmax_backward"]
    assert (planned[0].scale_mask.scale, planned[1].parameters) == (0.7, (0.7,))
    assert planned[0].scale_mask.mask == ("uint8" if dtype is torch.bool else str(dtype).removeprefix("torch."))
    planned.clear()
    tridal.softmax(x.detach(), scale=1)
    assert {call.scale_mask for call in planned} <= {NO_SCALE_MASK}


def test_fully_masked_rows_are_nan_or_zero(device: torch.device) -> None:
    x = torch.randn(3, 4, device=device, requires_grad=True)
    mask = torch.tensor([[True] * 4, [False] * 4, [True, False, False, True]], device=device)
    assert tridal.softmax(x, mask=mask)[1].isnan().all(), "as torch"
    one_query = tridal.softmax(x[:, None], mask=mask[:, None], causal=True)
    assert one_query.isnan().any(2).flatten().tolist() == [False, True, False]
    y = tridal.softmax(x, mask=mask, masked_rows="zero")
    assert_close(y.double(), reference(x, mask=mask, masked_rows="zero"), check_dtype=False)
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    assert dx[1].count_nonzero() == 0
    assert dx.isfinite().all()
    assert not tridal.softmax(torch.full((2, 3), -torch.inf, device=device), masked_rows="zero").any()
    assert tridal.softmax(torch.full((2, 3), torch.nan, device=device), masked_rows="zero").isnan().all()


def test_mask_with_a_gradient_is_computed_by_torch(device: torch.device, planned: list[KernelCall]) -> None:
    x = torch.randn(B, Q, K, dtype=torch.float64, device=device, requires_grad=True)
    mask = torch.randn(Q, K, dtype=torch.float64, device=device, requires_grad=True)
    with tridal.record_calls() as records:
        ours, theirs = tridal.softmax(x, mask=mask, causal=True), reference(x, mask=mask, causal=True)
    assert_close(ours, theirs)
    assert_close(torch.autograd.grad(ours.sin().sum(), (x, mask)), torch.autograd.grad(theirs.sin().sum(), (x, mask)))
    assert {call.scale_mask.mask for call in planned} == {None}
    assert records[0].reason == "one of the gradients has no kernel"
    with torch.no_grad():
        assert_close(tridal.softmax(x, mask=mask, causal=True), theirs.detach())
    assert planned.pop().scale_mask.mask == "float64", "without gradients, a kernel applies the mask"
    strides = torch.rand(2, 1, 3, 1, 5, dtype=torch.float64, device=device)
    x = torch.randn(2, 2, 3, 2, 5, dtype=torch.float64, device=device)
    assert_close(tridal.softmax(x, scale=0.5, mask=strides), reference(x, scale=0.5, mask=strides))
    assert planned.pop().scale_mask.mask is None, "a kernel knows the strides of fewer dims"


def test_backend_without_scale_mask_gets_unmodified_calls(backend: Backend, planned: list[KernelCall]) -> None:
    class Plain:
        name, features = "plain", backend.features - {"scale_mask"}

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
    assert {call.scale_mask for call in planned} == {NO_SCALE_MASK}


def test_a_stream_keeps_the_memory_of_its_input_and_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append(tensor))
    monkeypatch.setattr(torch.cpu, "stream", lambda stream: contextlib.nullcontext())
    x, mask = torch.randn(4, 6), torch.ones(4, 6, dtype=torch.bool)
    stream = SimpleNamespace(device=x.device)
    with tridal.use(device="interpreter"):
        tridal.softmax(x, mask=mask, stream=stream)
        assert [tensor.data_ptr() for tensor in recorded] == [x.data_ptr(), mask.data_ptr()]
        with on_stream("op", stream, device_context(x.device), x, mask.to("meta")):
            assert len(recorded) == 3, "a mask on another device has no memory to keep"
