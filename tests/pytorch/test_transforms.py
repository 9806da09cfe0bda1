"""Transforms of torch.func and torch.autograd of every op: results equal those of torch's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

import tridal
from op_samples import EACH_OP, Sample, as_tuple, each_kind

Fn = Callable[[torch.Tensor], torch.Tensor]
EACH_KIND = each_kind("this test with an op that is declared in the same way, and test_autograd.py::test_gradcheck")


def squares(f: Fn) -> Fn:
    return lambda z: f(z).square().sum()


def gradients_of_outputs(f: Fn) -> Fn:
    def pulled(z: torch.Tensor) -> torch.Tensor:
        y, pull = vjp(f, z)
        return torch.cat([pull(y.cos())[0], *vmap(pull)(torch.stack([y, y.sin()]))[0]])

    return pulled


def reverse_over_dual(f: Fn) -> Fn:
    def second(z: torch.Tensor) -> torch.Tensor:
        with forward_ad.dual_level():
            x = z.detach().requires_grad_()
            (g,) = torch.autograd.grad(squares(f)(forward_ad.make_dual(x, z.flip(0))), x)
            return forward_ad.unpack_dual(g).tangent

    return second


# `gradcheck` and `gradgradcheck` in test_autograd.py, and test_combinations.py, have those of one and two orders.
TRANSFORMS: dict[str, Callable[[Fn], Fn]] = {
    "vmap of the last dimension": lambda f: vmap(f, in_dims=-1),
    "vmap of vmap": lambda f: vmap(vmap(f, in_dims=1), in_dims=1),
    "vjp, and vmap of it": gradients_of_outputs,
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(squares(f))),
    "jacrev of jacrev": lambda f: jacrev(jacrev(squares(f))),
    "grad of grad of grad": lambda f: grad(squares(grad(squares(grad(squares(f)))))),
    "reverse mode over a dual number": reverse_over_dual,
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@each_kind("this transform of an op that is declared in the same way, and test_autograd.py::test_gradcheck of this op")
def test_transform_equals_torch(device: torch.device, transform: Callable[[Fn], Fn], sample: Sample) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, device=device)
    assert_close(transform(sample.ours)(x), transform(sample.theirs)(x))


@EACH_KIND
def test_gradients_of_a_result_and_its_tangent_in_a_dual_level_equal_torch(
    device: torch.device, sample: Sample
) -> None:
    """torch's own softmax fails here, and its layer_norm is wrong, but not their transforms of torch.func."""
    tensors = sample.tensors(torch.randn(3, 5, dtype=torch.float64, device=device))

    def loss(results: Any, tangents: Any) -> torch.Tensor:
        terms = [result.sin().sum() for result in as_tuple(results)]
        return sum(terms + [tangent.cos().sum() for tangent in as_tuple(tangents) if tangent is not None])  # type: ignore[return-value]

    for name in [name for name in tensors if name == "mask" or name in sample.differentiable]:

        def theirs(x: torch.Tensor, tangent: torch.Tensor, name: str = name) -> torch.Tensor:
            return loss(*jvp(lambda value: sample.expected(**{**tensors, name: value}), (x,), (tangent,)))

        leaves = [t.detach().clone().requires_grad_() for t in (tensors[name], tensors[name].cos() + 0.2)]
        with forward_ad.dual_level():
            results = as_tuple(sample.function(**{**tensors, name: forward_ad.make_dual(*leaves)}))
            pairs = [forward_ad.unpack_dual(result) for result in results]
            found = torch.autograd.grad(loss(*zip(*pairs, strict=True)), leaves)
        assert_close(found, grad(theirs, (0, 1))(*map(torch.Tensor.detach, leaves)))


@EACH_OP
def test_vmap_over_some_tensors_equals_torch_and_is_recorded(device: torch.device, sample: Sample) -> None:
    tensors = sample.tensors(torch.randn(4, 6, dtype=torch.float64, device=device))
    for batched in (*([name] for name in tensors), list(tensors)):
        given = {n: torch.stack([t, t.roll(1), t.roll(2)], 1) if n in batched else t for n, t in tensors.items()}
        dims = tuple(1 if name in batched else None for name in given)
        with tridal.record_calls() as calls:
            found = vmap(lambda *values: sample.function(**dict(zip(tensors, values, strict=True))), dims)(
                *given.values()
            )
        samples = [{n: t.select(1, i) if n in batched else t for n, t in given.items()} for i in range(3)]
        wanted = zip(*(as_tuple(sample.expected(**values)) for values in samples), strict=True)
        assert_close(as_tuple(found), tuple(map(torch.stack, wanted)))
        assert {(call.op, call.reason) for call in calls} == {(sample.op.name, "torch's ops compute calls under vmap")}


def test_no_grad_inside_a_transform_has_an_effect(device: torch.device) -> None:
    def f(softmax: Any) -> Fn:
        def inner(z: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                constant = softmax(z, -1)
            return (constant * softmax(z, -1)).sum()

        return inner

    x = torch.randn(3, 5, dtype=torch.float64, device=device)
    for transform in (grad, hessian, lambda h: grad(lambda z: squares(grad(h))(z))):
        assert_close(transform(f(tridal.softmax))(x), transform(f(torch.softmax))(x))
    with torch.no_grad():
        assert_close(grad(f(tridal.softmax))(x), grad(f(torch.softmax))(x))
