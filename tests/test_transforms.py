"""Transforms of torch.func and torch.autograd on every backend: results equal those of torch's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.testing import assert_close

import tridal

Fn = Callable[[torch.Tensor], torch.Tensor]


def squares(f: Fn) -> Fn:
    return lambda z: f(z).square().sum()


def is_grads_batched(f: Fn) -> Fn:
    def rows(z: torch.Tensor) -> torch.Tensor:
        z = z.detach().requires_grad_()
        basis = torch.eye(z.numel(), dtype=z.dtype, device=z.device).view(-1, *z.shape)
        return torch.autograd.grad(f(z), z, basis, is_grads_batched=True)[0]

    return rows


def dual_number(f: Fn) -> Fn:
    def tangent(z: torch.Tensor) -> torch.Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(z, z.flip(0)))).tangent

    return tangent


def reverse_over_dual(f: Fn) -> Fn:
    def second(z: torch.Tensor) -> torch.Tensor:
        with forward_ad.dual_level():
            x = z.detach().requires_grad_()
            (g,) = torch.autograd.grad(squares(f)(forward_ad.make_dual(x, z.flip(0))), x)
            return forward_ad.unpack_dual(g).tangent

    return second


TRANSFORMS: dict[str, Callable[[Fn], Fn]] = {
    "vmap": vmap,
    "vmap of an inner dimension": lambda f: vmap(f, in_dims=1, out_dims=1),
    "vmap of the last dimension": lambda f: vmap(f, in_dims=-1),
    "vmap of vmap": lambda f: vmap(vmap(f, in_dims=1), in_dims=1),
    "vmap down to single numbers": lambda f: lambda z: vmap(vmap(vmap(lambda x: f(x.reshape(1)))))(z),
    "vmap in chunks": lambda f: vmap(f, chunk_size=2),
    "grad": lambda f: grad(squares(f)),
    "vmap of grad": lambda f: vmap(grad(squares(f))),
    "grad of vmap": lambda f: grad(squares(vmap(f))),
    "vjp": lambda f: lambda z: vjp(f, z)[1](z.flip(0))[0],
    "vmap of vjp": lambda f: lambda z: vmap(vjp(f, z)[1])(torch.stack([z, z.flip(0)]))[0],
    "jvp": lambda f: lambda z: jvp(f, (z,), (z.flip(0),))[1],
    "linearize": lambda f: lambda z: linearize(f, z)[1](z.flip(0)),
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "hessian": lambda f: hessian(squares(f)),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(squares(f))),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(squares(f))),
    "jacrev of jacrev": lambda f: jacrev(jacrev(squares(f))),
    "jvp of jvp": lambda f: lambda z: jvp(lambda y: jvp(f, (y,), (z,))[1], (z,), (z.flip(0),))[1],
    "jacfwd of hessian": lambda f: lambda z: jacfwd(hessian(squares(f)))(z[0, 0]),
    "vmap of hessian": lambda f: lambda z: vmap(hessian(squares(f)))(z[0]),
    "grad of grad of grad": lambda f: grad(squares(grad(squares(grad(squares(f)))))),
    "jacobian, vectorised": lambda f: lambda z: torch.autograd.functional.jacobian(f, z, vectorize=True),
    "jacobian, forward mode": lambda f: (
        lambda z: torch.autograd.functional.jacobian(f, z, vectorize=True, strategy="forward-mode")
    ),
    "functional.hessian": lambda f: lambda z: torch.autograd.functional.hessian(squares(f), z),
    "functional.jvp": lambda f: lambda z: torch.autograd.functional.jvp(f, z, z.flip(0))[1],
    "is_grads_batched": is_grads_batched,
    "dual number": dual_number,
    "reverse mode over a dual number": reverse_over_dual,
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [0, -1])
def test_transform_equals_torch(device: torch.device, transform: Callable[[Fn], Fn], name: str, dim: int) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, device=device)
    got = transform(lambda z: getattr(tridal, name)(z, dim))(x)
    assert_close(got, transform(lambda z: getattr(torch, name)(z, dim))(x))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_transforms_of_the_registered_op_equal_torch(device: torch.device, name: str) -> None:
    """A graph can contain the registered op without the public function."""
    x = torch.randn(3, 5, dtype=torch.float64, device=device)
    op = getattr(torch.ops.tridal, name)
    for transform in (jacfwd, jacrev, vmap, lambda f: hessian(squares(f))):
        got = transform(lambda z: op(z, -1, torch.float64))(x)
        assert_close(got, transform(lambda z: getattr(torch, name)(z, -1))(x))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_transforms_with_a_dtype_argument_equal_torch(device: torch.device, name: str) -> None:
    x = torch.randn(3, 5, dtype=torch.float32, device=device)
    for transform in (jacfwd, jacrev, vmap, lambda f: hessian(squares(f)), lambda f: jacfwd(jacfwd(squares(f)))):
        got = transform(lambda z: getattr(tridal, name)(z, -1, torch.float64))(x)
        expected = transform(lambda z: getattr(torch, name)(z, -1, torch.float64))(x)
        assert_close(got, expected)


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


def test_vmap_raises_for_a_dim_out_of_range(device: torch.device) -> None:
    with pytest.raises(IndexError, match="dim 2 is out of range"):
        vmap(lambda z: tridal.softmax(z, 2))(torch.randn(2, 3, 4, device=device))
    with pytest.raises(IndexError, match="dim 1 is out of range"):
        vmap(lambda z: tridal.softmax(z, 1))(torch.randn(2, device=device))


@pytest.mark.parametrize("name", ["softmax", "rms_norm"])
def test_vmap_launches_one_kernel_for_all_samples(device: torch.device, name: str) -> None:
    x = torch.randn(3, 4, 5, device=device)
    function = tridal.softmax if name == "softmax" else lambda z: tridal.rms_norm(z, (5,))
    with tridal.record_calls() as calls:
        found = vmap(function)(x)
    assert [(call.op, call.reason) for call in calls] == [(name, None)]
    assert_close(found, function(x))
