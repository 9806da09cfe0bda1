"""First and second derivatives by autograd, for results and for their references."""

from __future__ import annotations

import torch


def gradient(x: torch.Tensor, y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """Returns dX, the gradient of sum(Y dY)."""
    (dx,) = torch.autograd.grad(y, x, dy)
    return dx


def second_gradient(x: torch.Tensor, y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of sum(dX^2). It is zero for an op that is linear."""
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    if not dx.requires_grad:
        return torch.zeros_like(x)
    (ddx,) = torch.autograd.grad(dx.square().sum(), x, materialize_grads=True)
    return ddx
