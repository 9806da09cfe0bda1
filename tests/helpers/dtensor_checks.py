"""Checks of DTensor, which test_dtensor.py runs on every rank: results, and the number of bytes that ranks exchange."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.testing import assert_close

import tridal
from exchanged_bytes import ExchangedBytes
from op_samples import OPS, SAMPLES, Sample, as_tuple
from several_results import ARGMAX

NAMES = ("softmax", "log_softmax")
COMPILED = ("rms_norm",)  # dynamo traces the same code for all ops
CHECKS: dict[str, Callable[[DeviceMesh], None]] = {}


def check(function: Callable[[DeviceMesh], None]) -> Callable[[DeviceMesh], None]:
    CHECKS[function.__name__] = function
    return function


class Compared(NamedTuple):
    """The bytes that a rank exchanged, and the placements of the gradients by the names of the tensors."""

    forward: int
    backward: int
    gradients: dict[str, Any]


def compare(
    sample: Sample, mesh: DeviceMesh, shape: tuple[int, ...], *placements: Placement, grads: Placement | None = None,
    columns: Placement | None = None,
) -> Compared:  # fmt: skip
    """Compares results and gradients with torch's of whole tensors. Gradients have the placement `grads` if given."""
    torch.manual_seed(0)
    whole = sample.leaves(*shape)
    leaves = [name for name, tensor in whole.items() if tensor.requires_grad]
    expected = as_tuple(sample.expected(**whole))
    upstream = [torch.randn_like(result) for result in expected]
    x = distribute_tensor(whole["input"].detach(), mesh, placements)
    tensors = {name: tensor.detach().requires_grad_(name in leaves) for name, tensor in sample.tensors(x).items()}
    for name in [name for name in leaves if columns is not None and sample.roles.get(name) == "column"]:
        tensors[name] = distribute_tensor(whole[name].detach(), mesh, [columns]).requires_grad_()
    with ExchangedBytes() as forward:
        results: Any = as_tuple(sample.function(**tensors))
    of_grads = [
        [grads or (Replicate() if isinstance(p, Partial) else p) for p in result.placements] for result in results
    ]
    dy = [distribute_tensor(g, mesh, p) for g, p in zip(upstream, of_grads, strict=True)]
    with ExchangedBytes() as backward:
        found: Any = torch.autograd.grad(results, [tensors[name] for name in leaves], dy)
    wanted = torch.autograd.grad(expected, [whole[name] for name in leaves], upstream)
    for result, exact in zip((*results, *found), (*expected, *wanted), strict=True):
        assert_close(result.full_tensor(), exact.detach())
    if results[0].shape == x.shape and "mask" not in sample.roles:
        found_placements = [tuple(result.placements) for result in results]
        assert set(found_placements) == {placements}, (sample.op.name, sample.dim, shape, found_placements)
    of_gradients = {name: gradient.placements for name, gradient in zip(leaves, found, strict=True)}
    return Compared(forward.bytes, backward.bytes, of_gradients)


def row_dim(sample: Sample) -> int:
    """The dim of a row in a tensor of three dims."""
    return sample.dim % 3


@check
def every_placement_equals_torch(mesh: DeviceMesh) -> None:
    """A gradient of a number per column is a sum over rows. It is `Partial` if these are sharded."""
    for name, sample in OPS.items():
        other = int(row_dim(sample) == 0)  # the third dim is like this one
        for placement in (Shard(row_dim(sample)), Shard(other), Replicate()):
            shape = (3, 5, 6) if sample.op.arguments[0].role == "element" else (4, 2, 6)  # torch flattens even shards
            found = compare(sample, mesh, shape, placement).gradients
            if sample.op.steps is None:
                assert found["input"] == (placement,), name
            per_row = Partial() if isinstance(placement, Shard) else Replicate()
            wanted = Shard(0) if placement == Shard(row_dim(sample)) else per_row
            for column in [column for column in found if sample.roles.get(column) == "column"]:
                assert found[column] == (wanted,), (name, placement, found)


@check
def sharded_rows_exchange_statistics_only(mesh: DeviceMesh) -> None:
    numbers = {
        "softmax": (2, 1), "log_softmax": (2, 1), "rms_norm": (1, 1), "layer_norm": (2, 2), "skip_norm": (1, 1),
        "logsumexp": (2, 2), "l2_norm": (1, 2),
    }  # fmt: skip
    for name, sample in SAMPLES.items():
        if sample.op.steps is None:
            dim = sample.dim % 2
            found = compare(sample, mesh, (64, 16) if dim == 0 else (16, 64), Shard(dim), columns=Shard(0))
            assert found[:2] == tuple(8 * 16 * number for number in numbers[sample.op.name]), name
            for placement in (Shard(1 - dim), Replicate()):
                assert compare(sample, mesh, (5, 3), placement)[:2] == (0, 0), name


@check
def norms_of_two_dims_equal_torch(mesh: DeviceMesh) -> None:
    whole = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 5, 6), (5, 6))]
    for name, placement in itertools.product(("rms_norm", "layer_norm"), (*map(Shard, range(3)), Replicate())):
        expected = getattr(torch.nn.functional, name)(whole[0], (5, 6), whole[1])
        pairs = zip(whole, (placement, Replicate()), strict=True)
        x, weight = (distribute_tensor(tensor.detach(), mesh, [p]).requires_grad_() for tensor, p in pairs)
        y = getattr(tridal, name)(x, (5, 6), weight)
        assert_close(y.full_tensor(), expected.detach())
        found = torch.autograd.grad(y, (x, weight), y.detach().cos())
        wanted = torch.autograd.grad(expected, whole, expected.detach().cos())
        assert_close([gradient.full_tensor() for gradient in found], list(wanted))
        assert found[1].placements == (
            {Shard(0): Partial(), Shard(1): Shard(0), Shard(2): Shard(1)}.get(placement, Replicate()),
        )


@check
def scaled_and_masked_scores_exchange_two_numbers_per_row(mesh: DeviceMesh) -> None:
    rows, cols = 8, 64
    whole, keep = torch.randn(rows, cols, dtype=torch.float64), torch.rand(rows, cols) > 0.3
    torch.distributed.broadcast(keep, 0)
    x, mask = (distribute_tensor(tensor, mesh, [Shard(-1)]) for tensor in (whole, keep))
    with ExchangedBytes() as exchanged:
        y = tridal.softmax(x, scale=0.5, mask=mask)
    assert exchanged.bytes == 2 * 8 * rows
    expected = torch.softmax((0.5 * whole).masked_fill(~keep, -torch.inf), -1)
    assert_close(y.full_tensor(), expected)
    assert_close(torch.ops.tridal.softmax(x, -1, x.dtype, mask, 0.5).full_tensor(), expected)
    with pytest.raises(IndexError, match="dim must be from -2 to 1"):
        torch.ops.tridal.softmax(x, 2, x.dtype)
    with pytest.raises(ValueError, match=r"must have the shape .*: a number per element of"):
        torch.ops.tridal.softmax_backward(distribute_tensor(whole[:4], mesh, [Shard(-1)]), y, -1, x.dtype)


@check
def causal_scores_with_every_placement_equal_torch(mesh: DeviceMesh) -> None:
    whole, g = (torch.randn(3, 4, 6, dtype=torch.float64) for _ in range(2))
    upper = ~torch.ones(4, 6, dtype=torch.bool).tril()
    for placement, scale, zero in itertools.product((*map(Shard, range(3)), Replicate()), (1.0, 0.5), ("nan", "zero")):
        reference = whole.clone().requires_grad_()
        expected = torch.softmax((reference * scale).masked_fill(upper, -torch.inf), -1)
        expected.backward(g)
        x = distribute_tensor(whole, mesh, [placement]).requires_grad_()
        y = tridal.softmax(x, causal=True, scale=scale, masked_rows=zero)  # type: ignore[arg-type]
        y.backward(distribute_tensor(g, mesh, [placement]))
        assert_close(y.full_tensor(), expected.detach())
        assert x.grad is not None
        assert_close(x.grad.full_tensor(), reference.grad)


@check
def values_are_cast_before_the_computation(mesh: DeviceMesh) -> None:
    for values in (torch.tensor([[7e4, 0.0]]), torch.tensor([[2049, 2048, 0, 1]])):
        for placement in (Shard(1), Shard(0), Replicate()):
            x = distribute_tensor(values, mesh, [placement])
            y = tridal.softmax(x, -1, dtype=torch.float16).full_tensor()
            assert_close(y, torch.softmax(values, -1, dtype=torch.float16), equal_nan=True)


@check
def uneven_shards(mesh: DeviceMesh) -> None:
    samples = [sample for sample in OPS.values() if sample.op.arguments[0].role == "element"]
    for sample, size in itertools.product(samples, {11, mesh.size() - 1, 1}):
        compare(sample, mesh, (5, size), Shard(1))
        compare(sample, mesh, (size, 5), Shard(0))


@check
def gradients_with_other_placements(mesh: DeviceMesh) -> None:
    for name, placement in itertools.product(NAMES, (Shard(0), Replicate())):
        compare(SAMPLES[f"{name} of dim -1"], mesh, (6, 10), Shard(1), grads=placement)


@check
def ranks_rotate_their_shards(mesh: DeviceMesh) -> None:
    """Shards of the batch, the heads or the length stay where they are. cos and sin may be plain tensors."""
    torch.manual_seed(0)
    query, key = (torch.randn(2, heads, 6, 4, dtype=torch.float64) for heads in (4, 2))
    batches = torch.randn(2, 2, 6, 4, dtype=torch.float64), torch.randn(2, 6, 4, dtype=torch.float64)
    whole = [Replicate()]
    kinds = [*itertools.product(map(Shard, range(3)), whole), (Shard(3), whole[0]), (whole[0], Shard(1))]
    kinds += [(Shard(d), Shard(d)) for d in range(3)]
    for number, placements in enumerate(kinds):
        (cos, sin), plain = batches[number % 2], number % 3 == 0
        leaves = [x.clone().requires_grad_() for x in (query, key)]
        expected = tridal.rotary_embedding(*leaves, cos, sin)
        wanted = torch.autograd.grad([y.sin().sum() for y in expected], leaves)
        shards = [
            distribute_tensor(x, mesh, [p]).requires_grad_() for x, p in zip((query, key), placements, strict=True)
        ]
        factors = (cos, sin) if plain else tuple(distribute_tensor(x, mesh, whole) for x in (cos, sin))
        with ExchangedBytes() as exchanged:
            found = tridal.rotary_embedding(*shards, *factors)
        gathers = Shard(3) in placements
        assert (exchanged.bytes > 0) == gathers, placements
        assert [y.placements for y in found] == [(whole[0] if p == Shard(3) else p,) for p in placements]
        grads = torch.autograd.grad([y.sin().sum() for y in found], shards)
        for tensor, exact in zip((*found, *grads), (*expected, *wanted), strict=True):
            assert_close(tensor.full_tensor(), exact.detach())


@check
def partial_input_is_reduced_first(mesh: DeviceMesh) -> None:
    for sample in OPS.values():
        torch.manual_seed(dist.get_rank())
        x = DTensor.from_local(torch.randn(4, 6), mesh, [Partial()])
        y, whole = (
            sample.function(**{**sample.tensors(x.redistribute(mesh, [Replicate()])), "input": x}),
            x.full_tensor(),
        )
        expected = sample.expected(**sample.tensors(whole))
        for result, exact in zip(as_tuple(y), as_tuple(expected), strict=True):
            assert tuple(result.placements) == (Replicate(),)
            assert_close(result.full_tensor(), exact)


@check
def dtypes_equal_torch(mesh: DeviceMesh) -> None:
    for name, dtype, cast in itertools.product(NAMES, (torch.bfloat16, torch.float32), (None, torch.float32)):
        whole = torch.randn(4, 10).to(dtype)
        x = distribute_tensor(whole, mesh, [Shard(1)]).requires_grad_()
        y = getattr(tridal, name)(x, -1, cast)
        expected = getattr(torch, name)(whole, -1, cast)
        assert y.dtype == expected.dtype
        assert_close(y.full_tensor(), expected, rtol=2e-2, atol=1e-2)
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.dtype == dtype


@check
def rows_with_inf_and_nan(mesh: DeviceMesh) -> None:
    whole = torch.randn(4, 10, dtype=torch.float64)
    whole[0] = -torch.inf
    whole[1, 0] = torch.nan
    whole[2, 9] = torch.inf
    whole[3, :5] = -torch.inf
    for name in NAMES:
        y = getattr(tridal, name)(distribute_tensor(whole, mesh, [Shard(1)])).full_tensor()
        assert_close(y, getattr(torch, name)(whole, -1), equal_nan=True)


@check
def compiled_functions_and_double_backward_equal_torch(mesh: DeviceMesh) -> None:
    for sample in OPS.values():
        torch.compiler.reset()
        whole = torch.randn(4, 11, dtype=torch.float64, requires_grad=True)
        wanted = torch.autograd.grad(sample.theirs(whole).sin().sum(), whole, create_graph=True)[0]
        second = torch.autograd.grad(wanted.sin().sum(), whole)[0]
        x = distribute_tensor(whole.detach(), mesh, [Shard(1)]).requires_grad_()
        compiled = torch.compile(lambda x, sample=sample: sample.ours(x), backend="aot_eager")
        compiles = sample.op.name in COMPILED
        twice = sample.op.steps is None  # losses have one derivative of sharded classes
        for function, differentiable in (*[(compiled, False)] * compiles, (sample.ours, twice)):
            y = function(x)
            assert_close(y.full_tensor(), sample.theirs(whole).detach())
            (found,) = torch.autograd.grad(y.sin().sum(), x, create_graph=differentiable)
            assert_close(found.full_tensor(), wanted.detach())
        if twice:
            assert_close(torch.autograd.grad(found.sin().sum(), x)[0].full_tensor(), second)


@check
def gradient_on_another_mesh_raises(mesh: DeviceMesh) -> None:
    y = tridal.softmax(distribute_tensor(torch.randn(4, 6), mesh, [Shard(1)]).requires_grad_())
    other = init_device_mesh(mesh.device_type, (1, mesh.size()))
    grad = distribute_tensor(torch.randn(4, 6), other, [Replicate(), Shard(1)])
    with pytest.raises((RuntimeError, ValueError, NotImplementedError), match=r"(?i)mesh|placements"):
        y.backward(grad)


@check
def shards_know_the_columns_of_their_elements(mesh: DeviceMesh) -> None:
    row_argmax = tridal.row_function(ARGMAX)
    for shape, dim in (((5, 7), 1), ((7, 5), 0), ((2, 7, 3), 1)):
        x = torch.randn(shape)
        for placement in (Shard(dim), Shard(1 - dim), Replicate()):
            found: Any = row_argmax(distribute_tensor(x, mesh, [placement]), dim)
            assert torch.equal(found.full_tensor(), x.argmax(dim))


def two_dimensional(mesh: DeviceMesh) -> None:
    square = init_device_mesh(mesh.device_type, (2, 2))
    for name in NAMES:
        rows, columns = SAMPLES[f"{name} of dim -1"], SAMPLES[f"{name} of dim 0"]
        assert compare(rows, square, (8, 12), Shard(0), Shard(1))[:2] == (2 * 8 * 4, 8 * 4)
        assert compare(rows, square, (8, 12), Shard(1), Shard(1))[:2] == (2 * 2 * 8 * 8, 2 * 8 * 8)
        compare(rows, square, (7, 13), Shard(1), Shard(0))
        compare(columns, square, (7, 13), Shard(1), Shard(0))
        compare(rows, square, (7, 13), Shard(1), Replicate())
        compare(rows, square, (3, 5), Shard(1), Shard(1))
