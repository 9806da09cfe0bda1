"""token_log_probs with save_logits=True: how often logits are computed, and what the backward overwrites."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from tridal.library.losses import linear_chunks

Tensor = torch.Tensor


@pytest.mark.parametrize("save_logits", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_saved_logits_are_computed_once(
    device: torch.device, save_logits: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    for name in ("mm", "addmm"):
        function = getattr(torch, name)

        def counted(*tensors: Tensor, out: Tensor, function: Any = function, **options: Any) -> Tensor:
            computed.append(out.shape[1])
            return function(*tensors, out=out, **options)  # type: ignore[no-any-return]

        monkeypatch.setattr(torch, name, counted)
    x, matrix = (torch.randn(n, 6, device=device, requires_grad=True) for n in (9, 5))
    options: Any = {"linear_bias": torch.randn(5, device=device)} if bias else {}
    target = torch.randint(5, (9,), device=device)
    found: Any = tridal.token_log_probs(x, matrix, target, chunk_size=4, save_logits=save_logits, **options)
    assert computed.count(5) == 3
    first = torch.autograd.grad(found, (x, matrix), torch.ones_like(found), retain_graph=True)
    assert computed.count(5) == (3 if save_logits else 6)
    second = torch.autograd.grad(found, (x, matrix), torch.ones_like(found))
    assert computed.count(5) == (3 if save_logits else 9)
    assert_close(first, second, rtol=0, atol=0)


def test_saved_logits_take_one_product_for_each_gradient(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[tuple[tuple[int, ...], torch.dtype]] = []
    mm = torch.mm

    def counted(*tensors: Tensor, out: Tensor, **options: Any) -> Tensor:
        products.append((tuple(out.shape), out.dtype))
        return mm(*tensors, out=out, **options)

    monkeypatch.setattr(torch, "mm", counted)
    monkeypatch.setattr(linear_chunks, "chunk_rows", lambda *_: 4)
    x, matrix = (torch.randn(n, 6, device=device, dtype=torch.bfloat16, requires_grad=True) for n in (9, 5))
    target = torch.randint(5, (9,), device=device)
    found: Any = tridal.token_log_probs(x, matrix, target, save_logits=True)
    torch.autograd.grad(found, (x, matrix), torch.ones_like(found))
    assert products == [(shape, torch.bfloat16) for shape in ((9, 5), (9, 6), (5, 6))]


def test_saved_logits_may_be_kept_by_hooks(device: torch.device) -> None:
    """The backward overwrites saved logits, but not those that a hook has kept."""
    x, matrix = (torch.randn(n, 6, device=device, requires_grad=True) for n in (9, 5))
    target, packed = torch.randint(5, (9,), device=device), []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found: Any = tridal.token_log_probs(x, matrix, target, save_logits=True)
    kept = [tensor.detach().clone() for tensor in packed]
    torch.autograd.grad(found.sum(), (x, matrix))
    assert_close([tensor.detach() for tensor in packed], kept, equal_nan=True, rtol=0, atol=0)
