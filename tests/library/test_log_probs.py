"""tridal.log_probs and token_log_probs: the definitions of trainers. The suite compares kernels and dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal
from pairwise import covering_rows
from tridal.library.log_probs import functions
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
    "differentiated": [(0, 2), (0, 1), (1, 2), (-1, None), (0, None)],
    "served": [True, False],
    "linear": [False, True],
    "bias": [False, True],
    "chunk_size": [None, 1, 4, 100],
    "save_logits": [False, True],
    "mask": [False, True],
    "return_correct": [False, True],
    "ids": [None, 1, 4],
    "teacher": [False, True],
}
CASES: Any = covering_rows(AXES, lambda row: True)


def defined(
    logits: Tensor, target: Tensor, temperature: float = 1.0, softcap: float | None = None,
    ignore_index: int | None = None, mask: Tensor | None = None, ids: Tensor | None = None,
    teacher_log_probs: Tensor | None = None, return_correct: bool = False,
) -> Any:  # fmt: skip
    """The results as TRL and verl define them, in float64; ignored rows are zero."""
    logits = logits.double()
    scores = (logits if softcap is None else softcap * torch.tanh(logits / softcap)) / temperature
    ignored = torch.zeros_like(target, dtype=torch.bool) if ignore_index is None else target == ignore_index
    ignored = ignored if mask is None else ignored | ~mask
    logs, target = scores.log_softmax(-1), target.masked_fill(ignored, 0)
    found = [logs.gather(-1, target.unsqueeze(-1)).squeeze(-1)]
    found += [-(logs.exp() * logs.masked_fill(logs == -torch.inf, 0.0)).sum(-1)]
    if ids is not None:
        found += [logs.gather(-1, ids)]
    if teacher_log_probs is not None:
        found += [functional.kl_div(found[-1], teacher_log_probs.double(), log_target=True, reduction="none").sum(-1)]
    found += [logits.argmax(-1) == target] if return_correct else []
    return tuple(r.masked_fill(ignored.unsqueeze(-1) if r.dim() > ignored.dim() else ignored, 0) for r in found)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_results_and_gradients_equal_their_definition(device: torch.device, case: dict[str, Any]) -> None:
    """Several of the ids of a row may be the same class."""
    batch, classes, chosen = case["batch"], case["classes"], slice(*case["differentiated"])
    target = torch.randint(classes, batch, device=device)
    if case["ignore_index"] is not None:
        target.view(-1)[1:4:2] = IGNORED
    options: Any = {name: case[name] for name in ("temperature", "softcap", "ignore_index", "return_correct")}
    if case["mask"]:
        options["mask"] = torch.rand(batch, device=device) > 0.4
    if case["ids"]:
        options["ids"] = torch.randint(classes, (*batch, case["ids"]), device=device)
        if case["teacher"]:
            logs = torch.randn((*batch, classes), dtype=torch.float64, device=device).log_softmax(-1)
            options["teacher_log_probs"] = logs.gather(-1, options["ids"])
    shapes = [(*batch, 6), (classes, 6), (classes,)][: 2 + case["bias"]] if case["linear"] else [(*batch, classes)]
    leaves = [torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True) for shape in shapes]
    found: Any
    with tridal.use(device=None if case["served"] else "auto"):
        if case["linear"]:
            options["linear_bias"] = leaves[2] if case["bias"] else None
            chunks: Any = {name: case[name] for name in ("chunk_size", "save_logits")}
            found = tridal.token_log_probs(*leaves[:2], target, return_entropy=True, **chunks, **options)
        else:
            found = tridal.log_probs(leaves[0], target, return_entropy=True, **options)
        options.pop("linear_bias", None)
        expected = defined(functional.linear(*leaves) if case["linear"] else leaves[0], target, **options)
        assert_close(found, expected)
        pairs = [pair for pair in zip(found, expected, strict=True) if pair[0].is_floating_point()][chosen]
        grads = [torch.randn_like(result) for result, _ in pairs]
        gradients = torch.autograd.grad([result for result, _ in pairs], leaves, grads)
    assert_close(gradients, torch.autograd.grad([exact for _, exact in pairs], leaves, grads))


PLANS = pytest.mark.parametrize("plan", ["planned", "column_loop", "column_loop+peel", "column_loop+lanes"])


@PLANS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_target_is_correct_if_it_is_torchs_argmax(
    backend: Any, device: torch.device, plan: str, dtype: torch.dtype
) -> None:
    """Of equal logits, the first one counts, also in another block of columns; and of NaN, too."""
    x = torch.randn(8, 5000, device=device).bfloat16().to(dtype)
    x[0, 17::100] = x[1, [4999, 4000]] = 9.0
    x[2, [9, 4000, 7]] = torch.nan
    x[3], x[4], x[5, 3000:] = -torch.inf, 1.0, torch.inf
    expected = x.argmax(-1)
    others = torch.tensor([117, 4999, 9, 1, 4999, 3001, 0, 4999], device=device)
    with implementation(backend, plan):
        for target, wanted in ((expected, True), (others, False)):
            for entropy in (False, True):
                found = tridal.log_probs(x, target, return_entropy=entropy, return_correct=True)[-1]
                assert found.tolist() == (target == expected).tolist() == [wanted] * 8


@pytest.mark.parametrize("linear", [False, True])
def test_classes_without_probability_have_no_gradient(device: torch.device, linear: bool) -> None:
    """The target, some ids or all of them may have the logit -inf, and the teacher has no probability there either."""
    bias = torch.tensor([0.0, -torch.inf, 1.0, -torch.inf], device=device)
    target = torch.tensor([1, 0, 3], device=device)
    ids = torch.tensor([[0, 1], [1, 2], [1, 3]], device=device)
    teacher = torch.full((3, 2), -torch.inf, device=device)
    teacher[0, 0] = teacher[1, 1] = 0.0
    leaf = torch.zeros(3, 4, device=device, requires_grad=True)
    matrix, options = torch.eye(4, device=device), {"ids": ids, "teacher_log_probs": teacher}
    found: Any
    if linear:
        found = tridal.token_log_probs(leaf, matrix, target, linear_bias=bias, **options)
    else:
        found = tridal.log_probs(leaf + bias, target, **options)
    logs = torch.tensor([0.0, -torch.inf, 1.0, -torch.inf], device=device).log_softmax(0)
    assert_close(found[0], logs[target])
    assert_close(found[1], logs[ids])
    assert_close(found[2], torch.stack([-logs[0], -logs[2], torch.zeros_like(logs[0])]))
    (gradient,) = torch.autograd.grad(found[2].sum(), leaf)
    p = logs.exp()
    expected = torch.stack([p, p, 0 * p])
    expected[0, 0] -= 1
    expected[1, 2] -= 1
    assert_close(gradient, expected)


@pytest.mark.parametrize("save_logits", [False, True])
def test_gradients_at_ids_are_rounded_once(device: torch.device, save_logits: bool) -> None:
    """The gradient of a class with a probability near 1 is a small difference. An id may occur several times."""
    x, matrix = torch.eye(3, 8, device=device).bfloat16().requires_grad_(), torch.eye(8, device=device).bfloat16() * 6
    target, ids = torch.tensor([0, 1, 0], device=device), torch.tensor([[0, 3, 0], [1, 1, 2], [2, 1, 0]], device=device)
    found = tridal.token_log_probs(x, matrix.requires_grad_(), target, ids=ids, save_logits=save_logits)
    grads = [torch.rand_like(result) + 0.5 for result in found]
    ours = torch.autograd.grad(found, matrix, grads)[0].double()
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, matrix)]
    exact = defined(functional.linear(*wide), target, ids=ids)
    (wanted,) = torch.autograd.grad((exact[0], exact[2]), wide[1], [grad.double() for grad in grads])
    assert_close(ours, wanted, rtol=2**-7, atol=1e-6)


def test_masked_rows_are_not_computed_and_may_hold_anything(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, matrix = torch.randn(3, 4, 6, device=device), torch.randn(5, 6, device=device, requires_grad=True)
    mask = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4], device=device)
    x = x.masked_fill(~mask.unsqueeze(-1), torch.nan).requires_grad_()
    target = torch.randint(5, (3, 4), device=device).masked_fill(~mask, 77)
    ids = torch.randint(5, (3, 4, 2), device=device).masked_fill(~mask.unsqueeze(-1), -1)
    teacher = torch.zeros(3, 4, 2, device=device).masked_fill(~mask.unsqueeze(-1), torch.nan)
    options: Any = {"mask": mask, "ids": ids, "teacher_log_probs": teacher, "return_entropy": True}
    rows: list[int] = []
    mm = torch.mm
    monkeypatch.setattr(
        torch, "mm", lambda *given, out, **more: (rows.append(out.shape[0]), mm(*given, out=out, **more))
    )

    def gradients(function: Any) -> Any:
        found = function(x, matrix, target, **options)
        return found, torch.autograd.grad([result.sum() for result in found], (x, matrix))

    eager = gradients(tridal.token_log_probs)
    assert rows[0] == 6
    masked = ~mask
    assert [bool((result[masked] == 0).all()) for result in eager[0]] == [True] * 4
    assert (eager[1][0][masked] == 0).all()
    assert eager[1][1].isfinite().all()
    compiled = gradients(torch.compile(tridal.token_log_probs, backend="aot_eager", fullgraph=True))
    assert_close(compiled, eager)


@PLANS
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
    for ours, exact in zip(found, defined(x, target), strict=True):
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


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_masked_and_ignored_rows_of_nan_have_zeros(device: torch.device, served: bool, softcap: float | None) -> None:
    x = torch.randn(4, 6, device=device)
    x[1], x[2, 3] = torch.nan, torch.inf
    x.requires_grad_()
    target, mask = torch.tensor([5, IGNORED, 3, 0], device=device), torch.tensor([1, 1, 0, 1], device=device).bool()
    with tridal.use(device=None if served else "auto"):
        found: Any = tridal.log_probs(
            x, target, ignore_index=IGNORED, mask=mask, softcap=softcap, return_entropy=True, return_correct=True
        )
        (gradient,) = torch.autograd.grad(found[:2], x, [torch.ones_like(result) for result in found[:2]])
    assert all((result[1:3] == 0).all() for result in (*found, gradient))
    assert gradient[[0, 3]].isfinite().all()
    assert (gradient[[0, 3]] != 0).any(1).all()


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


@pytest.mark.parametrize("options", [{}, {"return_correct": True}, {"return_entropy": True}], ids=str)
@pytest.mark.parametrize("differentiated", [False, True])
def test_known_calls_are_found_by_their_keys(
    device: torch.device, no_calls: None, options: Any, differentiated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their function is not computed again, whichever of the results it returns."""
    logits, target = torch.randn(9, 57, device=device).requires_grad_(differentiated), torch.arange(9, device=device)
    expected = tridal.log_probs(logits, target, **options)
    monkeypatch.setattr(functions, "_checked_numbers", None)
    found = tridal.log_probs(logits, target, **options)
    assert_close(found, expected)
    results = [result for result in (found if options else (found,)) if result.is_floating_point()]
    assert all(result.requires_grad is differentiated for result in results)
    with pytest.raises(TypeError, match="not callable"):
        tridal.log_probs(logits[:8], target[:8], **options)
