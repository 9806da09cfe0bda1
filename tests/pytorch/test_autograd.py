"""Gradients of the ops on every backend: values to any order, and the behavior of torch's own autograd nodes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.testing import assert_close

import tridal
from op_samples import EACH, EACH_OP, SAMPLES, Sample, as_one, as_tuple, each_kind, gradients, loss_of, registered_calls

EACH_KIND = each_kind("test_gradcheck with this op, and this test with an op that is declared in the same way")


def leaf(device: torch.device, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, device=device, requires_grad=True)


def expected_gradient(sample: Sample, x: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of sines."""
    return torch.autograd.grad(sample.theirs(x).sin().sum(), x)[0]


@EACH_OP
def test_gradcheck(device: torch.device, sample: Sample) -> None:
    tensors = sample.leaves(2, 3, device=device)
    leaves = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}

    def function(*values: torch.Tensor) -> Any:
        return sample.function(**{**tensors, **dict(zip(leaves, values, strict=True))})

    options = {"fast_mode": True, "check_batched_grad": True, "atol": 1e-5}
    assert gradcheck(function, (*leaves.values(),), check_forward_ad=True, check_batched_forward_grad=True, **options)
    assert gradgradcheck(function, (*leaves.values(),), check_fwd_over_rev=True, check_rev_over_rev=True, **options)


@EACH
def test_gradient_launches_one_kernel_and_has_the_same_bits_in_every_run(device: torch.device, sample: Sample) -> None:
    tensors = sample.leaves(50, 6, device=device)
    results, leaves = as_one(sample.function(**tensors)), [t for t in tensors.values() if t.requires_grad]
    dy = torch.randn_like(results)
    with tridal.record_calls() as calls:
        found = torch.autograd.grad(results, leaves, dy, retain_graph=True)
    of_kernels = [(call.op, call.reason) for call in calls if call.op.endswith("backward")]
    assert sample.op.steps or of_kernels == [(f"{sample.op.name}_backward", None)]
    assert_close(found, torch.autograd.grad(as_one(sample.expected(**tensors)), leaves, dy))
    assert all(map(torch.equal, found, torch.autograd.grad(results, leaves, dy)))


@EACH_KIND
@pytest.mark.parametrize("stride", ["expanded", "transposed", "sliced", "negative view"])
def test_output_gradients_with_any_strides(device: torch.device, sample: Sample, stride: str) -> None:
    x = leaf(device, 4, 6)
    ours, theirs = sample.ours(x), sample.theirs(x)
    plain = theirs.detach().cos()
    grad = {
        "expanded": lambda: plain[:1].expand(plain.shape) if plain.dim() else plain,
        "transposed": lambda: plain.mT.contiguous().mT if plain.dim() > 1 else plain,
        "sliced": lambda: torch.stack([plain, plain], -1)[..., 1],
        "negative view": lambda: torch._neg_view(plain),
    }[stride]()
    assert_close(torch.autograd.grad(ours, x, grad), torch.autograd.grad(theirs, x, grad))


@EACH_KIND
def test_backward_uses_the_settings_of_the_forward(backend: Any, sample: Sample) -> None:
    with tridal.use(device=backend.name):
        x = leaf(tridal.device(), 3, 5)
        results = [sample.ours(x) for _ in range(3)]  # the first call is new, and the others are known
    for y in results:
        with tridal.use(device="auto"), tridal.record_calls() as calls:
            (found,) = torch.autograd.grad(y.sin().sum(), x)
        assert_close(found, expected_gradient(sample, x))
        assert {call.backend for call in calls} <= {backend.name}
        assert calls or sample.op.steps


@EACH_KIND
def test_the_backward_reads_what_saved_tensor_hooks_return(device: torch.device, sample: Sample) -> None:
    packed, unpacked = [], []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return torch.stack([tensor, tensor], -1)

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        unpacked.append(tensor)
        return tensor[..., 1]

    x = leaf(device, 3, 5)
    tensors = {**sample.tensors(x.detach()), "input": x}
    expected = gradients(sample.expected, tensors)
    for _ in range(3):
        packed, unpacked = [], []
        with saved_tensors_hooks(pack, unpack):
            loss = sample.function(**tensors)
        assert len(packed) == 1 or not sample.op.one_tensor
        assert_close(gradients(lambda loss=loss, **_: loss, tensors), expected)
        assert len(packed) == len(unpacked) > 0
    with save_on_cpu():
        loss = sample.function(**tensors)
    assert_close(gradients(lambda **_: loss, tensors), expected)


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("name", ["cross_entropy", "linear_cross_entropy", "swiglu", "rotary_embedding", "layer_norm"])
def test_results_can_be_changed_in_place_if_they_are_not_saved(device: torch.device, name: str, served: bool) -> None:
    """As in `loss /= steps`."""
    sample = SAMPLES[name]
    leaves = sample.leaves(3, 5, device=device)
    with tridal.use(device=None if served else "auto"):
        found = gradients(lambda **given: tuple(y.mul_(2) for y in as_tuple(sample.function(**given))), leaves)
        assert_close(found, gradients(lambda **given: tuple(y * 2 for y in as_tuple(sample.function(**given))), leaves))


@EACH_KIND
def test_nodes_save_copies_of_tensors_of_inference_mode(device: torch.device, sample: Sample) -> None:
    leaves = sample.leaves(3, 5, device=device)
    for name in [name for name in sample.differentiable if name in leaves]:
        alone = {other: t.detach().requires_grad_(other == name) for other, t in leaves.items()}
        with torch.inference_mode():
            made = {other: t if other == name else t.clone() for other, t in alone.items()}
        for _ in range(2):
            assert_close(gradients(sample.function, made), gradients(sample.function, alone))


@EACH_KIND
def test_backward_twice_needs_retain_graph(device: torch.device, sample: Sample) -> None:
    y = as_one(sample.function(**sample.leaves(3, 5, device=device))).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@EACH_KIND
def test_neither_calls_nor_nodes_keep_tensors_alive(device: torch.device, sample: Sample) -> None:
    gc.freeze()  # gc.collect() then searches the objects of this test
    for through_op in (False, False, False, True):
        tensors = sample.leaves(3, 5, device=device)
        op, arguments = registered_calls(lambda t=tensors: sample.function(**t))[sample.op.name]
        results = as_tuple(op(*arguments) if through_op else sample.function(**tensors))
        found = torch.autograd.grad(loss_of(results), [t for t in tensors.values() if t.requires_grad])
        alive = [weakref.ref(tensor) for tensor in (*tensors.values(), *results, *found)]
        del tensors, arguments, results, found
        gc.collect()
        assert not any(reference() is not None for reference in alive)
