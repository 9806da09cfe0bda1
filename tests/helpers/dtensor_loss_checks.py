"""Checks of losses of DTensors, which test_dtensor.py runs on every rank."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.testing import assert_close

import tridal
from dtensor_checks import CHECKS, ExchangedBytes, check

__all__ = ["CHECKS"]


def _full(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[no-any-return]


@check
def cross_entropy_of_sharded_logits(mesh: DeviceMesh) -> None:
    """Classes or rows are sharded, evenly and unevenly. Results and both derivatives equal torch's of whole tensors."""
    options = ({}, {"label_smoothing": 0.1, "weight": True}, {"reduction": "sum"}, {"reduction": "none"})
    shapes = (((6, 8), Shard(1)), ((5, 7), Shard(1)), ((6, 8), Shard(0)), ((2, 7, 4), Shard(1)))
    for first, probabilities in ((0, False), (2, True)):  # each shape with two of the options
        for (shape, placement), given in zip(shapes, (*options[first:], *options[:first]), strict=True):
            _compare(mesh, shape, placement, probabilities, dict(given))


def _compare(
    mesh: DeviceMesh, shape: tuple[int, ...], placement: Placement, probabilities: bool, options: dict[str, Any]
) -> None:
    x, weight = torch.randn(shape), torch.rand(shape[1]) if options.pop("weight", False) else None
    rows = (shape[0], *shape[2:])
    target = torch.rand(shape) if probabilities else torch.randint(shape[1], rows)
    if not probabilities:
        target.view(-1)[1] = -100
    whole = x.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(whole, target, weight, **options)
    sharded = distribute_tensor(x, mesh, [placement]).requires_grad_()
    arguments = [None if t is None else distribute_tensor(t, mesh, [Replicate()]) for t in (target, weight)]
    loss, lse = tridal.cross_entropy(sharded, *arguments, return_lse=True, **options)  # type: ignore[arg-type]
    assert_close(_full(loss), expected)
    assert_close(_full(lse), x.logsumexp(1))
    _full(loss).sum().backward(retain_graph=True)
    expected.sum().backward(retain_graph=True)
    assert sharded.grad is not None
    assert sharded.grad.placements == (placement,)  # type: ignore[attr-defined]
    assert_close(_full(sharded.grad), whole.grad)
    seconds = []
    for result, leaf in ((_full(loss), sharded), (expected, whole)):
        (first,) = torch.autograd.grad(result.square().sum(), leaf, create_graph=True)
        seconds += torch.autograd.grad(_full(first).square().sum(), leaf)
    assert_close(_full(seconds[0]), seconds[1], rtol=1e-4, atol=1e-5 * seconds[1].abs().max().item())


@check
def linear_cross_entropy_with_a_sharded_vocabulary(mesh: DeviceMesh) -> None:
    x, matrix, target = torch.randn(6, 4), torch.randn(9, 4), torch.tensor([1, 8, -100, 0, 5, 3])
    for reduction in ("none", "mean"):
        whole = [tensor.clone().requires_grad_() for tensor in (x, matrix)]
        expected = torch.nn.functional.cross_entropy(torch.nn.functional.linear(*whole), target, reduction=reduction)
        placed = [
            distribute_tensor(tensor, mesh, [placement]).requires_grad_()
            for tensor, placement in ((x, Replicate()), (matrix, Shard(0)))
        ]
        targets = distribute_tensor(target, mesh, [Replicate()])
        loss = tridal.linear_cross_entropy(*placed, targets, reduction=reduction, chunk_size=4)  # type: ignore[arg-type]
        assert_close(_full(loss), expected)
        _full(loss).sum().backward()
        expected.sum().backward()
        for ours, theirs in zip(placed, whole, strict=True):
            assert_close(_full(ours.grad), theirs.grad)


@check
def log_probs_of_ids_with_sharded_classes_or_rows(mesh: DeviceMesh) -> None:
    """Ranks exchange numbers per row and per id, and no logits."""
    x, matrix = torch.randn(6, 4, dtype=torch.float64), torch.randn(201, 4, dtype=torch.float64)
    target, ids = torch.tensor([1, 200, 3, 0, 5, 3]), torch.randint(201, (6, 2))
    ids[0], ids[2] = torch.tensor([0, 200]), 2
    teacher, mask = torch.rand(6, 201).log_softmax(1).gather(1, ids), torch.tensor([1, 0, 1, 1, 1, 0]).bool()
    options: Any = {"temperature": 0.7, "return_entropy": True, "return_correct": True}
    per_row = {"ids": ids, "teacher_log_probs": teacher, "mask": mask}
    of_layer = ((x, Replicate()), (matrix, Shard(0))), ((x, Shard(0)), (matrix, Replicate()))
    for placed in (((x @ matrix.t(), Shard(1)),), ((x @ matrix.t(), Shard(0)),), *of_layer):
        whole = [tensor.clone().requires_grad_() for tensor, _ in placed]
        shards = [distribute_tensor(tensor, mesh, [placement]).requires_grad_() for tensor, placement in placed]
        functions: list[Any] = [tridal.log_probs] if len(placed) == 1 else [tridal.token_log_probs]
        if len(placed) > 1:
            functions.append(functools.partial(tridal.token_log_probs, save_logits=True, chunk_size=4))
        for function in functions:
            expected = function(*whole, target, **options, **per_row)
            with ExchangedBytes() as exchanged:
                found = function(*shards, target, **options, **per_row)
            assert exchanged.bytes < 1000, "half of the logits has 4,800 bytes"
            for ours, exact in zip(found, expected, strict=True):
                assert_close(_full(ours), exact)
            losses = [
                sum((_full(result) * (n + 1)).sin().sum() for n, result in enumerate(results[:-1]))
                for results in (found, expected)
            ]
            ours, theirs = map(torch.autograd.grad, losses, (shards, whole))
            for gradient, exact in zip(ours, theirs, strict=True):
                assert_close(_full(gradient), exact)


@check
def the_registered_op_reduces_the_losses_of_all_ranks(mesh: DeviceMesh) -> None:
    op, x, target = torch.ops.tridal.cross_entropy, torch.randn(5, 7), torch.tensor([1, 6, -100, 0, 5])
    for probabilities, (reduction, name) in ((False, (1, "mean")), (False, (0, "none")), (True, (2, "sum"))):
        whole, targets = x.clone().requires_grad_(), x.softmax(1) if probabilities else target
        expected = torch.nn.functional.cross_entropy(whole, targets, reduction=name)
        expected.sum().backward()
        for placement in (Shard(0), Shard(1), Replicate()):
            sharded = distribute_tensor(x, mesh, [placement]).requires_grad_()
            placed = distribute_tensor(targets, mesh, [Replicate()])
            loss = op(sharded, placed, None, reduction, -100, 0.0, 0.0, None, torch.float32)[0]
            assert_close(_full(loss), expected)
            _full(loss).sum().backward()
            assert_close(_full(sharded.grad), whole.grad)
