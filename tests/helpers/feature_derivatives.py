"""What the tests of `test_combinations.py` compute with a function: its result, derivatives, and transforms of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

Function = Callable[[torch.Tensor], torch.Tensor]
Derivative = Callable[[Function, torch.Tensor], torch.Tensor]


def squared(function: Function) -> Function:
    return lambda x: function(x).double().square().sum()


def gradient(function: Function, x: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of squares, by autograd."""
    x = x.detach().requires_grad_()
    (dx,) = torch.autograd.grad(squared(function)(x), x)
    return dx


def second_gradient(function: Function, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (dx,) = torch.autograd.grad(squared(function)(x), x, create_graph=True)
    (ddx,) = torch.autograd.grad(dx.double().square().sum(), x)
    return ddx


def backward_in_compiled(function: Function, x: torch.Tensor) -> torch.Tensor:
    """The loss is computed outside of the compiled function that calls backward."""
    x = x.detach().requires_grad_()
    torch.compile(torch.Tensor.backward, backend="eager")(squared(function)(x))
    assert x.grad is not None
    return x.grad


def batched_gradients(function: Function, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    y = function(x)
    dy = y.detach().cos().unsqueeze(0).expand(2, *y.shape)
    return torch.autograd.grad(y, x, dy, is_grads_batched=True)[0][1]


def tangent_of(x: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(x).cumsum(-1)


def dual_number(function: Function, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, tangent_of(x)))).tangent
    if tangent is None:
        raise RuntimeError("the result has no tangent")
    return tangent


class Kind(NamedTuple):
    """What is computed. `reference` computes it in float64. The error may be `roundings` times the dtype's eps."""

    compute: Derivative
    reference: Derivative
    roundings: int


def forward(function: Function, x: torch.Tensor) -> torch.Tensor:
    return function(x)


DERIVATIVES: dict[str, Kind] = {
    "forward": Kind(forward, forward, 8),
    "gradient": Kind(gradient, gradient, 32),
    "backward in compiled": Kind(backward_in_compiled, gradient, 32),
    "second gradient": Kind(second_gradient, second_gradient, 256),
    "functional gradient": Kind(lambda f, x: grad(squared(f))(x), gradient, 32),
    "batched gradients": Kind(batched_gradients, batched_gradients, 32),
    "jvp": Kind(lambda f, x: jvp(f, (x,), (tangent_of(x),))[1], dual_number, 64),
    "dual number": Kind(dual_number, dual_number, 64),
    "vmap": Kind(lambda f, x: vmap(f)(x.unsqueeze(0)).squeeze(0), forward, 8),
    "vmap of gradient": Kind(lambda f, x: vmap(grad(squared(f)))(x.unsqueeze(0)).squeeze(0), gradient, 32),
}
