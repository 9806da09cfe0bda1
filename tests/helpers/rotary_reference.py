"""Rotary embedding in the operations of transformers."""

from __future__ import annotations

import torch
from torch import Tensor


def of_transformers(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, ...]:
    """`apply_rotary_pos_emb` of transformers. cos and sin have the dim of the batch."""

    def rotate_half(x: Tensor) -> Tensor:
        return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)

    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple((x * cos) + (rotate_half(x) * sin) for x in (query, key))
