"""Checks of DTensor, which test_dtensor.py runs on every rank: results, and the number of bytes that ranks exchange."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import tridal
from op_samples import OPS, SAMPLES, Sample, as_tuple
from several_results import ARGMAX
from torch_versions import TORCH

NAMES = ("softmax", "log_softmax")
CHECKS: dict[str, Callable[[DeviceMesh], None]] = {}


def check(function: Callable[[DeviceMesh], None]) -> Callable[[DeviceMesh], None]:
    CHECKS[function.__name__] = function
    return function


@contextmanager
def known_ops() -> Iterator[None]:
    """Ends at an op of a sample that DTensors of torch 2.7 do not have, such as `select`."""
    try:
        yield
    except NotImplementedError:
        if TORCH >= (2, 9):
            raise


class ExchangedBytes(TorchDispatchMode):
    """Counts the bytes that a rank passes to collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if any(collective in str(func) for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")):
            self.bytes += args[0].numel() * args[0].element_size()
        return func(*args, **(kwargs or {}))


class Compared(NamedTuple):
    """The bytes that a rank exchanged, and the placements of the gradients by the names of the tensors."""

    forward: int
    backward: int
    gradients: dict[str, Any]


def compare(
    sample: Sample, mesh: DeviceMesh, shape: tuple[int, ...], *placements: Placement, columns: Placement | None = None
) -> Compared:
    """Compares results and gradients with torch's of whole tensors."""
    torch.manual_seed(0)
    whole = sample.leaves(*shape)
    leaves = [name for name, tensor in whole.items() if tensor.requires_grad]
    expected = as_tuple(sample.expected(**whole))
    of_grads = [result for result in expected if result.is_floating_point()]
    upstream = [torch.randn_like(result) for result in of_grads]
    x = distribute_tensor(whole["input"].detach(), mesh, placements)
    tensors = {name: tensor.detach().requires_grad_(name in leaves) for name, tensor in sample.tensors(x).items()}
    for name in [name for name in leaves if columns is not None and sample.roles.get(name) == "column"]:
        tensors[name] = distribute_tensor(whole[name].detach(), mesh, [columns]).requires_grad_()
    with ExchangedBytes() as forward:
        results: Any = as_tuple(sample.function(**tensors))
    numbers = results[: len(upstream)]
    placed = [[Replicate() if isinstance(p, Partial) else p for p in result.placements] for result in numbers]
    dy = [distribute_tensor(g, mesh, p) for g, p in zip(upstream, placed, strict=True)]
    with ExchangedBytes() as backward:
        found: Any = torch.autograd.grad(numbers, [tensors[name] for name in leaves], dy)
    wanted = torch.autograd.grad(of_grads, [whole[name] for name in leaves], upstream)
    for result, exact in zip((*results, *found), (*expected, *wanted), strict=True):
        assert_close(result.full_tensor(), exact.detach())
    is_top = sample.op.results[0].role == "top"  # it has the shape of the input if all experts are chosen
    if results[0].shape == x.shape and "mask" not in sample.roles and not is_top:
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
        # It gathers sharded rows, and its sample joins weights. `ranks_normalize_and_rotate_their_shards` has neither.
        joins = name == "qk_norm_rotary"
        for placement in (Shard(row_dim(sample)), Shard(other), Replicate())[joins:]:
            shape = (3, 5, 6) if sample.op.arguments[0].role == "element" else (4, 2, 6)  # torch flattens even shards
            found: dict[str, Any] = {}
            with known_ops():
                found = compare(sample, mesh, shape, placement).gradients
            if found and sample.op.steps is None:
                assert found["input"] == (placement,), name
            per_row = Partial() if isinstance(placement, Shard) else Replicate()
            wanted = Shard(0) if placement == Shard(row_dim(sample)) else per_row
            for column in [column for column in found if sample.roles.get(column) == "column" and not joins]:
                assert found[column] == (wanted,), (name, placement, found)


@check
def sharded_rows_exchange_statistics_only(mesh: DeviceMesh) -> None:
    numbers = {
        "softmax": (2, 1), "log_softmax": (2, 1), "rms_norm": (1, 1), "layer_norm": (2, 2), "skip_norm": (1, 1),
        "logsumexp": (2, 2), "l2_norm": (1, 2), "gated_rms_norm": (1, 1), "route_top_k": (32, 32),
        "modulated_rms_norm": (1, 1), "modulated_layer_norm": (2, 2),
        "gated_modulated_rms_norm": (1, 1), "gated_modulated_layer_norm": (2, 2),
    }  # fmt: skip
    if tridal.devices.registry.serving(mesh.device_type, tridal.devices.settings.current()) is not None:
        numbers |= {"logsumexp": (2, 0)}  # the kernel of the gradient reads the result
    for name, sample in (OPS | {"dim 0": SAMPLES["softmax of dim 0"]}).items():
        if sample.op.steps is None:
            dim = sample.dim % 2
            found = compare(sample, mesh, (64, 16) if dim == 0 else (16, 64), Shard(dim), columns=Shard(0))
            assert found[:2] == tuple(8 * 16 * number for number in numbers[sample.op.name]), name
            assert compare(sample, mesh, (5, 3), Shard(1 - dim))[:2] == (0, 0), name


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
    for placement, scale, zero in zip(
        (*map(Shard, range(3)), Replicate()), (1.0, 0.5) * 2, ("nan", "zero") * 2, strict=True
    ):
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
def uneven_shards(mesh: DeviceMesh) -> None:
    samples = [sample for sample in OPS.values() if sample.op.arguments[0].role == "element"]
    for sample, size in itertools.product(samples, {11, mesh.size() - 1}):
        compare(sample, mesh, (5, size), Shard(sample.dim % 2))


@check
def partial_input_is_reduced_first(mesh: DeviceMesh) -> None:
    for sample in OPS.values():
        torch.manual_seed(dist.get_rank())
        x = DTensor.from_local(torch.randn(4, 6), mesh, [Partial()])
        with known_ops():
            y = sample.function(**{**sample.tensors(x.redistribute(mesh, [Replicate()])), "input": x})
            expected = sample.expected(**sample.tensors(x.full_tensor()))
            for result, exact in zip(as_tuple(y), as_tuple(expected), strict=True):
                assert tuple(result.placements) == (Replicate(),)
                assert_close(result.full_tensor(), exact)


@check
def special_values_and_dtypes_equal_torch(mesh: DeviceMesh) -> None:
    """Values are cast before the computation."""
    whole = torch.randn(4, 10, dtype=torch.float64)
    whole[0] = whole[3, :5] = -torch.inf
    whole[1, 0], whole[2, 9] = torch.nan, torch.inf
    large, integers = torch.tensor([[7e4, 0.0]]), torch.tensor([[2049, 2048, 0, 1]])
    for name, (values, cast) in itertools.product(
        NAMES, ((whole, None), (whole.bfloat16(), torch.float32), (large, torch.float16), (integers, torch.float16))
    ):
        y = getattr(tridal, name)(distribute_tensor(values, mesh, [Shard(1)]), -1, cast)
        assert_close(y.full_tensor(), getattr(torch, name)(values, -1, cast), equal_nan=True)


@check
def double_backward_equals_torch(mesh: DeviceMesh) -> None:
    for sample in [sample for sample in OPS.values() if sample.op.steps is None]:  # losses have one derivative
        whole = torch.randn(4, 11, dtype=torch.float64, requires_grad=True)
        x = distribute_tensor(whole.detach(), mesh, [Shard(1)]).requires_grad_()
        with known_ops():
            found, wanted = (
                torch.autograd.grad(f(leaf).sin().sum(), leaf, create_graph=True)[0]
                for f, leaf in ((sample.ours, x), (sample.theirs, whole))
            )
            second, expected = (
                torch.autograd.grad(g.sin().sum(), leaf)[0] for g, leaf in ((found, x), (wanted, whole))
            )
            assert_close([found.full_tensor(), second.full_tensor()], [wanted.detach(), expected])


@check
def compiled_functions_equal_torch(mesh: DeviceMesh) -> None:
    sample, whole = OPS["rms_norm"], torch.randn(4, 11, dtype=torch.float64, requires_grad=True)
    x = distribute_tensor(whole.detach(), mesh, [Shard(1)]).requires_grad_()
    y = torch.compile(lambda x: sample.ours(x), backend="aot_eager")(x)
    expected = sample.theirs(whole)
    assert_close(y.full_tensor(), expected.detach())
    (found,), wanted = torch.autograd.grad(y.sin().sum(), x), torch.autograd.grad(expected.sin().sum(), whole)[0]
    assert_close(found.full_tensor(), wanted)


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


def on_two_dims(mesh: DeviceMesh, *sizes: int) -> None:
    square = init_device_mesh(mesh.device_type, sizes)
    for name in NAMES:
        rows, columns = SAMPLES[f"{name} of dim -1"], SAMPLES[f"{name} of dim 0"]
        compare(rows, square, (7, 13), Shard(1), Shard(0))
        compare(columns, square, (7, 13), Shard(1), Shard(0))
        compare(rows, square, (7, 13), Shard(1), Replicate())
        compare(rows, square, (3, 5), Shard(1), Shard(1))


@check
def meshes_of_two_dims(mesh: DeviceMesh) -> None:
    on_two_dims(mesh, 2, 1)
    on_two_dims(mesh, 1, 2)


def four_ranks_exchange_statistics_along_each_dim(mesh: DeviceMesh) -> None:
    on_two_dims(mesh, 2, 2)
    square = init_device_mesh(mesh.device_type, (2, 2))
    for sample in (SAMPLES[f"{name} of dim -1"] for name in NAMES):
        assert compare(sample, square, (8, 12), Shard(0), Shard(1))[:2] == (2 * 8 * 4, 8 * 4)
        assert compare(sample, square, (8, 12), Shard(1), Shard(1))[:2] == (2 * 2 * 8 * 8, 2 * 8 * 8)
