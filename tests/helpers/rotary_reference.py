"""Rotary embedding in the operations of transformers, and tensors for it."""

from __future__ import annotations

import torch
from torch import Tensor

B, LENGTH = 2, 4


def of_transformers(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, ...]:
    """`apply_rotary_pos_emb` of transformers. cos and sin have the dim of the batch."""

    def rotate_half(x: Tensor) -> Tensor:
        return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)

    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple((x * cos) + (rotate_half(x) * sin) for x in (query, key))


def rotated(x: Tensor, cos: Tensor, sin: Tensor, size: int, pairs: str, heads: int = 1) -> Tensor:
    """Rotates the first elements by transformers' function for halves, in which pairs are put first."""
    part, rest = x[..., :size], x[..., size:]
    if cos.shape[-1] < size:
        cos, sin = (t.repeat(*[1] * (t.dim() - 1), 2) for t in (cos, sin))
    elif pairs != "halves":
        cos, sin = (torch.cat((t[..., ::2], t[..., 1::2]), -1) for t in (cos, sin))
    if pairs != "halves":
        part = torch.cat((part[..., ::2], part[..., 1::2]), -1)
    y = of_transformers(part, part, cos, sin, unsqueeze_dim=heads)[0]
    if pairs == "interleaved":
        y = torch.stack(y.chunk(2, -1), -1).flatten(-2)
    return torch.cat((y, rest), -1)


def heads_of(form: str, heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a query or key. "heads last" is [batch, length, heads, dim], others are [batch, heads, length, dim]."""
    x = torch.randn(B, LENGTH, 3 * heads, dim, device=device).to(dtype)
    if form == "sliced":  # one projection computes query, key and value
        return x[:, :, heads : 2 * heads].transpose(1, 2)
    x = x[:, :, :heads].contiguous()
    return {"heads last": x, "projected": x.transpose(1, 2), "contiguous": x.transpose(1, 2).contiguous()}[form]


def angles(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns cos and sin of random angles, whose halves differ."""
    angle = torch.randn(shape, device=device)
    return angle.cos().to(dtype), angle.sin().to(dtype)
