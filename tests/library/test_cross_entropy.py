"""The losses: their definition, and torch's behavior at the edges. The suite compares kernels and dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal
from pairwise import covering_rows
from torch_versions import target_of_one_row

AXES: dict[str, list[Any]] = {
    "shape": [(6, 7), (2, 5, 4), (2, 3, 2, 5), (6,)],
    "probabilities": [False, True],
    "weight": [False, True],
    "label_smoothing": [0.0, 0.2, 1.0],
    "z_loss": [0.0, 0.1],
    "softcap": [None, 3.0],
    "reduction": ["none", "mean", "sum"],
    "served": [True, False],
    "layer": ["none", "weight", "weight and bias", "weight of batches"],
    "chunk_size": [None, 1, 2, 100],
}
MATRIX = ("layer", "weight of batches"), ("shape", (6, 7))
CASES: Any = covering_rows(AXES, lambda row: MATRIX[0] not in row.items() or row.get("shape", (6, 7)) == (6, 7))  # type: ignore[comparison-overlap]


def defined(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, case: dict[str, Any]) -> Any:
    """The loss and the log-sum-exp of each row, in torch's ops."""
    x = x if case["softcap"] is None else case["softcap"] * torch.tanh(x / case["softcap"])
    given: Any = {"weight": weight, "label_smoothing": case["label_smoothing"]}
    dim = min(1, x.dim() - 1)
    lse = x.logsumexp(dim)
    counts = torch.ones_like(lse)  # in the mean and in z_loss
    if not case["probabilities"]:
        counts = (target != -100) * (counts if weight is None else weight[target.clamp(min=0)])
    rows = functional.cross_entropy(x, target, **given, reduction="none") + case["z_loss"] * lse.square() * counts
    return {"none": rows, "sum": rows.sum(), "mean": rows.sum() / counts.sum()}[case["reduction"]], lse


def inputs_of(case: dict[str, Any], device: torch.device) -> Any:
    """Returns logits, targets, the weight of classes, and the numbers of a case."""
    shape, dim, options = case["shape"], min(1, len(case["shape"]) - 1), {"dtype": torch.float64, "device": device}
    weight = torch.rand(shape[dim], **options) if case["weight"] else None
    target = torch.randint(shape[dim], (*shape[:dim], *shape[dim + 1 :]), device=device)
    target.view(-1)[1:2] = -100
    target = torch.rand(shape, **options) if case["probabilities"] else target
    numbers = {name: case[name] for name in ("label_smoothing", "z_loss", "softcap", "reduction")}
    return torch.randn(shape, **options).mul(2), target, weight, numbers


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_loss_and_gradients_equal_their_definition(device: torch.device, case: dict[str, Any]) -> None:
    x, target, weight, numbers = inputs_of(case, device)
    tensors = [t.requires_grad_() for t in (x, *(target, weight) * case["probabilities"]) if t is not None]
    with tridal.use(device=None if case["served"] else "auto"):
        found = tridal.cross_entropy(x, target, weight, return_lse=True, **numbers)
        expected = defined(x, target, weight, case)
        assert_close(found, expected)
        grads = [torch.randn_like(result) for result in expected]
        assert_close(torch.autograd.grad(found, tensors, grads), torch.autograd.grad(expected, tensors, grads))


@pytest.mark.parametrize("case", [case for case in CASES if case["layer"] != "none"], ids=str)
def test_the_loss_of_a_layer_equals_its_definition(device: torch.device, case: dict[str, Any]) -> None:
    x, target, weight, numbers = inputs_of(case, device)
    shape, dim = x.shape, min(1, x.dim() - 1)
    shapes = [(*shape[:dim], 6), (*shape[dim:], 6), *[shape[dim:]] * (case["layer"] == "weight and bias")]
    leaves = [torch.randn(size, dtype=x.dtype, device=device, requires_grad=True) for size in shapes]
    logits = functional.linear(leaves[0], leaves[1].flatten(0, -2), *(bias.flatten() for bias in leaves[2:]))
    expected, _ = defined(logits.view(shape), target, weight, case)
    input, bias = leaves[0], (*leaves, None)[2]
    if case["layer"] == "weight of batches":
        input, target = input.view(2, 3, 6), target.view(2, 3, *target.shape[1:])
    with tridal.use(device=None if case["served"] else "auto"):
        loss = tridal.linear_cross_entropy(
            input, leaves[1], target, linear_bias=bias, weight=weight, chunk_size=case["chunk_size"], **numbers
        )
        grad = torch.randn_like(expected)
        gradients = torch.autograd.grad(loss, leaves, grad.view(loss.shape))
    assert_close(loss.view(expected.shape), expected)
    assert_close(gradients, torch.autograd.grad(expected, leaves, grad))


EDGES: list[tuple[tuple[int, ...], torch.Tensor]] = [
    ((0, 5), torch.zeros(0, dtype=torch.long)), ((0, 5), torch.zeros(0, 5)), ((3, 5), torch.full((3,), -100)),
    ((3, 0), torch.full((3,), -100)), ((2, 5, 0), torch.zeros(2, 0, dtype=torch.long)), ((5,), torch.tensor(-100)),
    ((2, 5), torch.tensor([2, 4], dtype=torch.uint8)), ((2, 0, 3), torch.randn(2, 0, 3)), ((0,), torch.randn(0)),
]  # fmt: skip


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(
    ("shape", "target"), [*EDGES, pytest.param((5,), torch.tensor([2]), marks=target_of_one_row)], ids=str
)
def test_edges_equal_torch(device: torch.device, shape: tuple[int, ...], target: torch.Tensor, reduction: Any) -> None:
    x, target = torch.randn(shape, device=device, requires_grad=True), target.to(device)
    ours = tridal.cross_entropy(x, target, reduction=reduction)
    y = x.detach().cpu().requires_grad_()  # on CUDA, torch's mean of one ignored target is zero
    theirs = functional.cross_entropy(y, target.cpu(), reduction=reduction)
    assert_close(ours.cpu(), theirs, equal_nan=True)
    (gradient,) = torch.autograd.grad(ours.sum(), x)
    if len(shape) > target.dim():  # torch cannot compute the gradient for a target of shape (1,) and one row
        assert_close(gradient.cpu(), *torch.autograd.grad(theirs.sum(), y), equal_nan=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e4])
@pytest.mark.parametrize("where", ["target", "other", "row", "ignored"])
def test_special_values_equal_torch(device: torch.device, value: float, where: str) -> None:
    x, target = torch.randn(4, 9, device=device), torch.tensor([3, 1, -100, 8], device=device)
    x[{"row": 0, "ignored": 2}.get(where, 0), {"target": 3, "other": 4}.get(where, slice(None))] = value
    x.requires_grad_()
    ours, theirs = (f(x, target, reduction="none") for f in (tridal.cross_entropy, functional.cross_entropy))
    assert_close(ours, theirs, equal_nan=True)
    gradients = [torch.autograd.grad(loss.sum(), x)[0] for loss in (ours, theirs)]
    assert_close(*gradients, equal_nan=True, rtol=1e-3 if value == 1e4 else 1e-5, atol=1e-5)  # of |lse| 2^-24


@pytest.mark.parametrize("probabilities", [False, True])
def test_logits_of_any_strides_and_their_gradient_need_no_transposed_copy(
    device: torch.device, probabilities: bool
) -> None:
    dense = torch.randn(3, 4, 7, device=device)
    row = torch.randn(14, device=device)
    for x in (dense.movedim(-1, 1), dense, dense.repeat(1, 2, 1)[:, ::2], dense.flip(0), row[::2], row[:1].expand(5)):
        x = x.detach().requires_grad_()
        target, dim = torch.rand(x.shape, device=device), min(x.dim() - 1, 1)
        target = target if probabilities else target.argmax(dim)
        ours, theirs = tridal.cross_entropy(x, target), functional.cross_entropy(x, target)
        assert_close(ours, theirs)
        found, expected = (torch.autograd.grad(loss, x)[0] for loss in (ours, theirs))
        assert_close(found, expected)
        if x.movedim(dim, -1).is_contiguous():
            assert found.stride() == x.stride()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_autocast_computes_in_float32(device: torch.device, dtype: torch.dtype) -> None:
    x, target = torch.randn(4, 6, device=device).to(dtype).requires_grad_(), torch.tensor([1, 2, 5, 0], device=device)
    weight = torch.rand(6, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        for w in (None, weight if dtype is not torch.float64 else weight.double()):
            ours, theirs = (f(x, target, w) for f in (tridal.cross_entropy, functional.cross_entropy))
            assert ours.dtype is theirs.dtype
            with torch.autocast(device.type, enabled=False):  # on CUDA, torch's rounds the logarithms to bfloat16
                wide = x.to(ours.dtype)
                theirs = functional.cross_entropy(wide, target, w)
            assert_close(ours, theirs)
            assert_close(torch.autograd.grad(ours, x), torch.autograd.grad(theirs, x))


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_z_loss_of_a_class_of_weight_zero_is_zero_even_if_the_square_overflows(reduction: str) -> None:
    x = torch.tensor([[1e20, 0.0, 1e20], [1.0, 2.0, 3.0], [-1e20, -1e20, -1e20]], requires_grad=True)
    target, weight = torch.tensor([0, 1, 0]), torch.tensor([0.0, 1.0, 2.0])
    plain = torch.nn.functional.cross_entropy(x, target, weight, reduction=reduction)
    added = 0.5 * x[1].logsumexp(0).square() * torch.tensor([0.0, 1.0, 0.0])
    expected = plain + (added if reduction == "none" else added.sum())
    with tridal.use(device="interpreter"):
        loss = tridal.cross_entropy(x, target, weight, z_loss=0.5, reduction=reduction)
    torch.testing.assert_close(loss, expected)
    (found,), (wanted,) = (torch.autograd.grad(y.sum(), x) for y in (loss, expected))
    torch.testing.assert_close(found, wanted)


def test_classes_beyond_the_integers_of_float32_are_not_the_ignored_one(device: torch.device) -> None:
    ignored = 2**24 + 1
    x = torch.zeros(1, ignored + 1, device=device, dtype=torch.float16)
    loss = tridal.cross_entropy(x, torch.tensor([ignored - 1], device=device), ignore_index=ignored)
    assert_close(loss, torch.tensor(ignored + 1.0, device=device).log().half())


@pytest.mark.parametrize("ignored", [2**40, -(2**63), -(2**31)])
def test_an_ignored_index_may_need_64_bits(device: torch.device, ignored: int) -> None:
    x, target = torch.randn(3, 5, device=device, requires_grad=True), torch.tensor([1, ignored, 2], device=device)
    expected = functional.cross_entropy(x, target, ignore_index=ignored)
    ours = tridal.cross_entropy(x, target, ignore_index=ignored)
    of_layer = tridal.linear_cross_entropy(x, torch.eye(5, device=device), target, ignore_index=ignored)
    wanted = torch.autograd.grad(expected, x)
    for loss in (ours, of_layer):
        assert_close(loss, expected)
        assert_close(torch.autograd.grad(loss, x), wanted)


@pytest.mark.parametrize("cap", [0.5, 30.0, 1e20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_large_softcap_rounds_no_more_than_torch(device: torch.device, cap: float, dtype: torch.dtype) -> None:
    x = torch.randn(4, 50, dtype=torch.float64) * 3
    target = torch.arange(4)
    expected = functional.cross_entropy(cap * torch.tanh(x.to(dtype).double() / cap), target)
    loss = tridal.cross_entropy(x.to(device, dtype), target.to(device), softcap=cap)
    assert_close(loss.cpu().double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_rows_of_a_tile_may_be_far_apart_in_memory(device: torch.device) -> None:
    """The offset of a target's logit needs 64 bits, although each stride needs 32."""
    try:
        memory = torch.empty(34 << 26, dtype=torch.float16, device=device)  # pages that are not used take no memory
    except RuntimeError:
        pytest.skip("the device has too little memory")
    x, target = memory.as_strided((34, 32), (1 << 26, 1)), torch.arange(34, device=device) % 32
    x.copy_(torch.randn(34, 32))
    expected = functional.cross_entropy(x.clone().float(), target, reduction="none")
    assert_close(tridal.cross_entropy(x, target, reduction="none").float(), expected, rtol=2e-3, atol=2e-3)
