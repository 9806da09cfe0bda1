"""Checks of repeated calls of DTensors: a known call gives the results of a new one, and only to an equal call."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import tridal
from dtensor_checks import check, row_dim
from op_samples import OPS, SAMPLES, Sample, as_tuple
from several_results import ARGMAX
from tridal.pytorch.path.call import CALLS


def step(sample: Sample, whole: Any, mesh: DeviceMesh, placement: Any) -> list[Any]:
    """Returns the results and the gradients of new DTensors. One with a number per column is whole on each rank."""
    x = distribute_tensor(whole["input"].detach(), mesh, [placement])
    tensors = {
        name: tensor.detach().requires_grad_(whole[name].requires_grad) for name, tensor in sample.tensors(x).items()
    }
    results: Any = as_tuple(sample.function(**tensors))
    loss = sum(result.full_tensor().cos().sum() for result in results if result.is_floating_point())
    leaves = [tensor for tensor in tensors.values() if tensor.requires_grad]
    return [*results, *torch.autograd.grad(loss, leaves)]


@check
def known_calls_equal_new_ones(mesh: DeviceMesh) -> None:
    samples = [sample for sample in OPS.values() if sample.op.arguments[0].role == "element"]
    for sample, rows in itertools.product(samples, (5, 4)):
        dim = row_dim(sample)
        for placement in (Shard(dim), Shard(int(dim == 0)), Replicate()):
            torch.manual_seed(0)
            whole = sample.leaves(3, rows, 6 + rows % 2)
            CALLS.clear()
            new = step(sample, whole, mesh, placement)
            step(sample, whole, mesh, placement)
            before = set(CALLS)
            known = step(sample, whole, mesh, placement)
            assert before, sample.op.name
            assert set(CALLS) == before, sample.op.name
            for result, exact in zip(known, new, strict=True):
                assert torch.equal(result.to_local(), exact.to_local()), (sample.op.name, placement)
                assert (result.placements, result.shape, result.stride(), result.dtype) == (
                    exact.placements, exact.shape, exact.stride(), exact.dtype
                )  # fmt: skip


@check
def another_call_is_not_taken_for_a_known_one(mesh: DeviceMesh) -> None:
    """Each pair differs in one part of the key, and is computed twice in turn."""
    whole = torch.randn(4, 6, dtype=torch.float64)
    keep = torch.rand(4, 6) > 0.5

    def of(x: torch.Tensor, *placements: Any, **options: Any) -> DTensor:
        y: Any = tridal.softmax(distribute_tensor(x, mesh, placements), **options)
        return y

    pairs: dict[str, tuple[Callable[[], DTensor], ...]] = {
        "placements": (lambda: of(whole, Shard(0)), lambda: of(whole, Shard(1)), lambda: of(whole, Replicate())),
        "shape": (lambda: of(whole, Shard(1)), lambda: of(whole[:3], Shard(1)), lambda: of(whole[:, :5], Shard(1))),
        "dtype": (lambda: of(whole, Shard(1)), lambda: of(whole.float(), Shard(1))),
        "options": (
            lambda: of(whole, Shard(1)), lambda: of(whole, Shard(1), dim=0), lambda: of(whole, Shard(1), scale=2.0),
            lambda: of(whole, Shard(1), dtype=torch.float32), lambda: of(whole, Shard(1), causal=True),
            lambda: of(whole, Shard(1), mask=distribute_tensor(keep, mesh, [Shard(1)])),
        ),
    }  # fmt: skip
    for name, calls in pairs.items():
        CALLS.clear()
        expected = []
        for call in calls:
            expected.append(call())
            CALLS.clear()
        for _ in range(2):
            for call, exact in zip(calls, expected, strict=True):
                assert torch.equal(call().to_local(), exact.to_local()), name
    with pytest.raises(tridal.errors.DTypeError, match="distribute all tensors"):
        of(whole, Shard(1), mask=keep)


@check
def a_known_call_follows_its_mesh_and_autograd(mesh: DeviceMesh) -> None:
    """Equal meshes may have other process groups."""
    whole, other = torch.randn(4, 6), init_device_mesh(mesh.device_type, (mesh.size(),))
    for given, grad in itertools.product((mesh, other, mesh), (True, False, True)):
        x = distribute_tensor(whole, given, [Shard(1)]).requires_grad_()
        with torch.set_grad_enabled(grad):
            y: Any = tridal.softmax(x)
        assert y.device_mesh is given
        assert y.requires_grad is grad
        assert not y.to_local().requires_grad or grad
        assert_close(y.full_tensor(), torch.softmax(whole, -1))
    for _ in range(2):
        with torch.inference_mode():
            y = tridal.softmax(x)
        assert y.is_inference()
        assert_close(y.to_local(), tridal.softmax(x.detach()).to_local())  # type: ignore[attr-defined]


@check
def a_known_call_keeps_no_tensor(mesh: DeviceMesh) -> None:
    for placement in (Shard(1), Shard(0)):
        x = distribute_tensor(torch.randn(4, 6), mesh, [placement]).requires_grad_()
        y: Any = tridal.softmax(x)
        y.sum().backward()
        shards = [weakref.ref(tensor.to_local()) for tensor in (x.detach(), y.detach())]
        tensors = [weakref.ref(tensor) for tensor in (x, y)]
        del x, y
        gc.collect()
        assert [found() for found in (*tensors, *shards)] == [None] * 4


@check
def a_mode_sees_a_known_call(mesh: DeviceMesh) -> None:
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            distributed = any(issubclass(kind, DTensor) for kind in types)
            names.append((str(func), distributed))
            return NotImplemented if distributed else func(*args, **(kwargs or {}))

    exchanges = {f"_c10d_functional.{name}.default" for name in ("all_reduce", "all_gather_into_tensor")}
    for placement, wanted in ((Shard(0), {"tridal.softmax.default"}), (Shard(1), exchanges)):
        x, names = distribute_tensor(torch.randn(4, 6), mesh, [placement]), list[tuple[str, bool]]()
        expected: Any = tridal.softmax(x)
        with Seen():
            y: Any = tridal.softmax(x)
        assert ("tridal.softmax.default", True) in names
        assert any((name, False) in names for name in wanted)
        assert torch.equal(y.to_local(), expected.to_local())


@check
def a_known_backward_has_the_settings_of_its_forward(mesh: DeviceMesh) -> None:
    """Kernels compute it under these settings, although the backward runs outside of the block, in another thread."""
    for _ in range(3):
        x = distribute_tensor(torch.randn(4, 6), mesh, [Shard(0)]).requires_grad_()
        with tridal.use(device="interpreter"):
            y: Any = tridal.softmax(x)
        gradient = torch.ones_like(y)
        with tridal.record_calls() as calls:
            thread = threading.Thread(target=y.backward, args=(gradient,))
            thread.start()
            thread.join()
        assert [call.backend for call in calls if call.op == "softmax_backward"] == [
            "interpreter" if x.device.type == "cpu" else calls[0].backend
        ]


@check
def known_calls_of_every_gradient_placement_equal_torch(mesh: DeviceMesh) -> None:
    sample, whole = SAMPLES["softmax of dim -1"], torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    g = torch.randn(4, 6, dtype=torch.float64)
    wanted = torch.autograd.grad(sample.theirs(whole), whole, g)[0]
    for placement, _ in itertools.product((Shard(1), Replicate(), Shard(0)), range(2)):
        x = distribute_tensor(whole.detach(), mesh, [Shard(1)]).requires_grad_()
        found = torch.autograd.grad(sample.ours(x), x, distribute_tensor(g, mesh, [placement]))[0]
        assert_close(found.full_tensor(), wanted)  # type: ignore[attr-defined]
    partial = DTensor.from_local(g / mesh.size(), mesh, [Partial()])
    for _ in range(2):
        assert_close(torch.autograd.grad(sample.ours(x), x, partial)[0].full_tensor(), wanted)  # type: ignore[attr-defined]


@check
def an_op_that_is_declared_again_forgets_its_calls(mesh: DeviceMesh) -> None:
    x = distribute_tensor(torch.randn(4, 6), mesh, [Shard(1)])
    function = tridal.row_function(ARGMAX)
    assert_close(function(x).full_tensor(), function(x).full_tensor())
    known = len(CALLS)
    tridal.devices.registry.invalidate()
    assert known > 0
    assert not CALLS
    assert torch.equal(function(x).full_tensor(), x.full_tensor().argmax(-1))
