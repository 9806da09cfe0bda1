"""The ops of `op_samples` in torch's ops, and calls of tridal's functions with other arguments than their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import tridal
from tridal.pytorch.path.function import FUNCTIONS

Tensor = torch.Tensor
CLASSES = 5
"""The classes of a linear layer."""


def skip_norm(input: Tensor, weight: Tensor, skip: Tensor, residual: Tensor | None = None, dim: int = -1) -> Any:
    total = input if residual is None else input + residual
    x = total.to(torch.promote_types(total.dtype, torch.float32)).movedim(dim, -1)
    y = x * (torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight + skip)
    y = y.movedim(-1, dim).to(total.dtype)
    return y if residual is None else (y, total)


def logsumexp(input: Tensor, dim: int = -1) -> Tensor:
    return torch.logsumexp(input.to(torch.promote_types(input.dtype, torch.float32)), dim)


def mean_energy(input: Tensor, dim: int = -1) -> Tensor:
    return input.to(torch.promote_types(input.dtype, torch.float32)).square().sum(dim).mean()


def rms_norm(x: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """The same as torch's function, which has no forward mode of its gradient on a GPU."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def layer_norm(x: Tensor, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0) -> Tensor:
    """The same as torch's function, which has wrong derivatives of third order."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * weight + bias


def norm(name: str, by_tridal: bool) -> Callable[..., Any]:
    def norm(input: Tensor, *, residual: Tensor | None = None, **parameters: Tensor) -> Any:
        sizes = input.shape[-1:]
        if by_tridal:
            return getattr(tridal, name)(input, sizes, **parameters, eps=1e-5, residual=residual)
        total = input if residual is None else input + residual
        y = (rms_norm if name == "rms_norm" else layer_norm)(total, **parameters)
        return y if residual is None else (y, total)

    return norm


def modulated(name: str, by_tridal: bool) -> Callable[..., Any]:
    """Returns a modulated norm. The op has its scale under another name than the function."""

    def compute(
        input: Tensor, scaling: Tensor, shift: Tensor, residual: Tensor | None = None, gate: Tensor | None = None,
        stream: Any = None, **parameters: Tensor,
    ) -> Any:  # fmt: skip
        # Sums for inputs next to each other differ enough: a norm of nearly equal numbers is not exact.
        gate = None if gate is None else gate + 1.5
        if by_tridal:
            function, options = getattr(tridal, f"modulated_{name}"), {"eps": 1e-5, "shift": shift, "stream": stream}
            added = {"residual": residual, "gate": gate}  # torch.compile of torch 2.7 cannot trace `|=`
            return function(input, scaling, input.shape[-1:], **parameters, **options, **added)
        total = input if gate is None else input * gate
        total = total if residual is None else total + residual
        y = (rms_norm if name == "rms_norm" else layer_norm)(total, **parameters) * (1 + scaling) + shift
        return y if residual is None else (y, total)

    return compute


def route_top_k(input: Tensor, bias: Tensor, **given: Any) -> Any:
    options: Any = {"score": "sigmoid", "normalize": True, "eps": 1e-3, "scaling_factor": 2.5}
    return tridal.route_top_k(input, min(2, input.shape[-1]), bias=bias, **options, **given)


def sort_experts(input: Tensor, bias: Tensor) -> Any:
    scores = input.to(torch.promote_types(input.dtype, torch.float32)).sigmoid()
    order = torch.sort(scores.detach() + bias, dim=-1, descending=True, stable=True).indices
    indices = order[..., : min(2, input.shape[-1])]
    chosen = scores.gather(-1, indices)
    return (2.5 * chosen / (chosen.sum(-1, keepdim=True) + 1e-3)).to(input.dtype), indices


def gated_rms_norm(input: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(input, weight) * gate * torch.sigmoid(gate)


def masked(input: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(input * 0.5 + mask, -1)


def swiglu(input: Tensor, up: Tensor) -> Tensor:
    return input * torch.sigmoid(input) * up  # torch has no forward mode of the gradient of its silu


def geglu(input: Tensor, up: Tensor) -> Tensor:
    return functional.gelu(input) * up


def swiglu_of_columns(input: Tensor, up: Tensor) -> Tensor:
    return FUNCTIONS["swiglu"](torch.stack((input, up)), dim=0)  # type: ignore[no-any-return]


def rotary_of_elements(input: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """The halves are an element and twice the same. The key is half the query."""

    def pairs(x: Tensor) -> Tensor:
        found = torch.stack((x, 2 * x), -1)
        return found.flatten(0, -3) if x.dim() > 1 else found.view(1, -1, 2)

    query, *factors = map(pairs, (input, cos, sin))
    found = tridal.rotary_embedding(query.unsqueeze(1), query.unsqueeze(1) / 2, *factors, **options)
    return tuple(result[:, 0, :, 0].reshape(input.shape) for result in found)


def rotary_of_a_part(input: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The pairs are an element and twice the same. The third element is not rotated. There is no key."""
    query = torch.stack((input, 2 * input, input, 3 * input), -1)
    query, *factors = (
        x.flatten(0, -3) if x.dim() > 2 else x.view(1, -1, x.shape[-1])
        for x in (query, cos.unsqueeze(-1), sin.unsqueeze(-1))
    )
    options = {"rotary_dim": 2, "interleaved": True, "keep_dtype": True, "casting": "transformers", **options}
    found = tridal.rotary_embedding(query.unsqueeze(1), None, *factors, **options)
    return found[:, 0, :, 0].reshape(input.shape), found[:, 0, :, 2].reshape(input.shape)


def rotary_and_rest(input: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return input * cos - 2 * input * sin, input


def rotary(input: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    first = input * cos - 2 * input * sin
    return first, first / 2


def _of_rows(input: Tensor, query_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the query and its weight: the halves of a head are a row and the same, backwards and divided by two."""
    return torch.cat((input, input.flip(-1) / 2), -1), torch.cat((query_weight, query_weight.flip(-1)))


def qk_norm_of_rows(input: Tensor, query_weight: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> Any:
    """Each row is a token with one head. The weight of the key is half of that of the query."""
    query, weight = _of_rows(input, query_weight)
    query, *factors = (x.reshape(-1, x.shape[-1]) for x in (query, cos, sin))
    options = {"eps": 1e-5, "unsqueeze_dim": 1, **options}
    found = tridal.qk_norm_rotary(query[:, None], query[:, None] - 1, weight, weight / 2, *factors, **options)
    pairs = (result[:, 0].chunk(2, -1) for result in found)
    return tuple((first - second / 2).reshape(input.shape) for first, second in pairs)


def qk_norm_rotary(input: Tensor, query_weight: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    query, weight = _of_rows(input, query_weight)
    pairs = (rms_norm(query, weight).chunk(2, -1), rms_norm(query - 1, weight / 2).chunk(2, -1))
    return tuple(first * cos - second * sin - (second * cos + first * sin) / 2 for first, second in pairs)


def log_probs(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logs = (input.to(torch.promote_types(input.dtype, torch.float32)) / 0.8).log_softmax(-1)
    return logs.gather(-1, target.unsqueeze(-1)).squeeze(-1), -(logs.exp() * logs).sum(-1)


def token_log_probs(input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor, ids: Tensor) -> Any:
    logits = functional.linear(input, linear_weight, linear_bias)
    logs = (logits.to(torch.promote_types(input.dtype, torch.float32)) / 0.8).log_softmax(-1)
    return *log_probs(logits, target), logs.gather(-1, ids)


def linear_loss(input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor) -> Tensor:
    logits = functional.linear(input, linear_weight, linear_bias).view(-1, CLASSES)
    return functional.cross_entropy(logits, target.reshape(-1))
