"""tridal.log_probs and token_log_probs: the definitions of trainers. The suite compares kernels and dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal
from pairwise import covering_rows
from tridal.library.log_probs import log_probs as of_logits
from tridal.testing.implementation import implementation

Tensor = torch.Tensor
IGNORED = -7
AXES: dict[str, list[Any]] = {
    "batch": [(), (9,), (2, 3), (2, 2, 3), (0,)],
    "classes": [5, 137],
    "temperature": [1.0, 0.6, 2],
    "softcap": [None, 3.0],
    "ignore_index": [None, IGNORED],
    "differentiated": [(0, 2), (0, 1), (1, 2)],
    "served": [True, False],
    "linear": [False, True],
    "bias": [False, True],
    "chunk_size": [None, 1, 4, 100],
}
CASES: Any = covering_rows(AXES, lambda row: True)


def defined(logits: Tensor, target: Tensor, temperature: float, softcap: float | None, ignore_index: int | None) -> Any:
    """Log-probabilities and entropies as TRL and verl define them, in float64; ignored rows are zero."""
    logits = logits.double()
    logits = (logits if softcap is None else softcap * torch.tanh(logits / softcap)) / temperature
    ignored = torch.zeros_like(target, dtype=torch.bool) if ignore_index is None else target == ignore_index
    logs = logits.log_softmax(-1)
    found = logs.gather(-1, target.masked_fill(ignored, 0).unsqueeze(-1)).squeeze(-1)
    entropies = -(logs.exp() * logs.masked_fill(logs == -torch.inf, 0.0)).sum(-1)
    return found.masked_fill(ignored, 0.0), entropies.masked_fill(ignored, 0.0)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_results_and_gradients_equal_their_definition(device: torch.device, case: dict[str, Any]) -> None:
    batch, classes, chosen = case["batch"], case["classes"], slice(*case["differentiated"])
    target = torch.randint(classes, batch, device=device)
    if case["ignore_index"] is not None:
        target.view(-1)[1:4:2] = IGNORED
    options: Any = {name: case[name] for name in ("temperature", "softcap", "ignore_index")}
    shapes = [(*batch, 6), (classes, 6), (classes,)][: 2 + case["bias"]] if case["linear"] else [(*batch, classes)]
    leaves = [torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True) for shape in shapes]
    with tridal.use(device=None if case["served"] else "auto"):
        if case["linear"]:
            bias = leaves[2] if case["bias"] else None
            found = tridal.token_log_probs(
                *leaves[:2], target, linear_bias=bias, return_entropy=True, chunk_size=case["chunk_size"], **options
            )
        else:
            found = tridal.log_probs(leaves[0], target, return_entropy=True, **options)
        expected = defined(functional.linear(*leaves) if case["linear"] else leaves[0], target, **options)
        assert_close(found, expected)
        grads = [torch.randn_like(result) for result in found[chosen]]
        gradients = torch.autograd.grad(found[chosen], leaves, grads)
    assert_close(gradients, torch.autograd.grad(expected[chosen], leaves, grads))


@pytest.mark.parametrize("plan", ["planned", "column_loop", "column_loop+peel", "column_loop+lanes"])
def test_entropies_of_large_logits_are_exact(backend: Any, device: torch.device, plan: str) -> None:
    """A block of columns has a larger maximum than the one before. lse - sum(p * x) would cancel."""
    x = torch.randn(3, 5000, device=device) + torch.linspace(10_000, 10_030, 5000, device=device)
    x[1, 2500:] -= 3e38
    x[2, :2500] = -torch.inf
    target = torch.tensor([4999, 17, 4000], device=device)
    with implementation(backend, plan), tridal.record_calls() as records:
        found = tridal.log_probs(x, target, return_entropy=True)
        tridal.log_probs(x, target)
    assert [record.op for record in records] == ["log_probs_and_entropy", "log_probs"]
    for ours, exact in zip(found, defined(x, target, 1.0, None, None), strict=True):
        assert_close(ours.double(), exact, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("linear", [False, True])
def test_targets_out_of_range(device: torch.device, linear: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 6, device=device, requires_grad=True)
    target = torch.tensor([5, 6, -1, IGNORED], device=device)

    def compute(**options: Any) -> Any:
        matrix = torch.eye(6, device=device)
        return (
            tridal.token_log_probs(x, matrix, target, **options) if linear else tridal.log_probs(x, target, **options)
        )

    if device.type == "cpu":
        for name in ("auto", "interpreter"):
            with tridal.use(device=name), pytest.raises(IndexError, match="target must hold classes from 0 to"):
                compute(ignore_index=IGNORED)
    monkeypatch.setattr(of_logits, "check_range", lambda *_: None)  # the interpreter checks them
    for ignored in (IGNORED, None):
        found, entropies = compute(ignore_index=ignored, return_entropy=True)
        (gradient,) = torch.autograd.grad((found, entropies), x, (torch.ones(4, device=device),) * 2)
        expected = [False, True, True, ignored is None]
        assert found.isnan().tolist() == gradient.isnan().all(1).tolist() == expected
        assert not entropies.isnan().any()
        if ignored is not None:
            assert found[3] == entropies[3] == gradient[3].count_nonzero() == 0


def test_autocast_computes_logits_in_its_dtype_and_results_in_float32(device: torch.device) -> None:
    x, matrix = (torch.randn(n, 8, device=device, requires_grad=True) for n in (3, 5))
    target = torch.tensor([1, 2, 0], device=device)
    with torch.autocast(device.type, torch.bfloat16):
        found: Any = tridal.token_log_probs(x, matrix, target, return_entropy=True)
        logits = functional.linear(x, matrix)
        of_them: Any = tridal.log_probs(logits, target, return_entropy=True)
    assert [tensor.dtype for tensor in (*found, *of_them)] == [torch.float32] * 4
    assert_close(found, of_them, rtol=1e-6, atol=1e-6)
    ours, theirs = (torch.autograd.grad(results, (x, matrix), results) for results in (found, of_them))
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype is torch.float32
        assert_close(one, other, rtol=2e-2, atol=2e-2)
