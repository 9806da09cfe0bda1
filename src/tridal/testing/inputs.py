"""The tensors that cases take: their values, and how they lie in memory."""

from __future__ import annotations

import functools

import torch

from tridal.testing.cases import Layout, Mask, Values


def values(kind: Values, shape: tuple[int, ...], dim: int, seed: int = 0) -> torch.Tensor:
    """Float64 values on the CPU, the same in every run."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * (1 if seed else 3)
    if x.numel() == 0 or x.dim() == 0:
        return x
    some = torch.rand(shape, generator=generator) < 0.1
    row = x.select((dim + 1) % x.dim(), 0)  # across `dim` in a 1-d tensor, along it otherwise
    if kind == "shifted":
        x += 10_000
    elif kind == "constant":
        x.fill_(-1.5)
    elif kind == "dominant":
        x[some] += 60
    elif kind == "largest":
        x = torch.where(some, 3e38, -3e38).double()
    elif kind == "some -inf":
        x[some] = -torch.inf
    elif kind == "row of -inf":
        row.fill_(-torch.inf)
    elif kind == "some +inf":
        row[some.select((dim + 1) % x.dim(), 0)] = torch.inf
    elif kind == "some nan":
        row[some.select((dim + 1) % x.dim(), 0)] = torch.nan
    return x


def mask(kind: Mask, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """A mask for an input of that shape: of its first row nothing is left, where it is not broadcast over rows."""
    how, _, over = kind.partition(" ")
    batches = (shape[0], *(1,) * (len(shape) - 2), shape[-1])
    of = {"keys": shape[-1:], "batches": batches}.get(over, shape)
    keep = torch.rand(of, generator=torch.Generator().manual_seed(2)) < 0.7
    if over not in ("keys", "batches"):
        keep[(0,) * (len(shape) - 1)] = False
    if how == "boolean":
        return place(keep, "sliced" if over == "sliced" else "contiguous", "bool", device)
    added = values("normal", of, -1, seed=3).masked_fill(~keep, -torch.inf)
    return place(added, "contiguous", "float16" if over == "halves" else "float32", device)


def place(source: torch.Tensor, layout: Layout, dtype: str, device: torch.device) -> torch.Tensor:
    """A tensor of these values that lies in memory as the layout says. Expanding repeats the first of them."""
    source = source.to(getattr(torch, dtype))
    shape, rank = source.shape, source.dim()
    if layout == "contiguous":
        return source.to(device)
    if layout == "expanded":
        return source[:1].to(device).expand(shape)
    if layout == "channels_last":
        return source.to(device).to(memory_format=torch.channels_last)
    empty = functools.partial(torch.empty, dtype=source.dtype, device=device)
    if layout == "transposed":
        lies: torch.Tensor = empty((*shape[:-2], shape[-1], shape[-2])).transpose(-1, -2)
    elif layout == "sliced":  # starts at no multiple of 16 bytes
        lies = empty((*shape[:-1], shape[-1] + 4))[..., 1 : 1 + shape[-1]]
    elif layout == "stepped":
        lies = empty((*shape[:-1], 2 * shape[-1]))[..., ::2]
    else:  # permuted: dimensions in reverse, each part of a longer one, so that no two can be walked as one
        base = empty([size + 1 for size in reversed(shape)])
        lies = base[(slice(1, None),) * rank].permute(*reversed(range(rank)))
    lies.copy_(source)
    return lies
