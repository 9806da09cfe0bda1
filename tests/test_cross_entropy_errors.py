"""Bad arguments of the losses: torch's types of errors, and messages that name the cause."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.testing import assert_close

import tridal
from tridal.errors import ShapeError

X, TARGET = torch.randn(4, 5), torch.tensor([0, 4, 1, 2])
LONG = torch.long

BOTH: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "reduction": ({"reduction": "avg"}, ValueError, "reduction must be 'none', 'mean' or 'sum', got 'avg'"),
    "smoothing": ({"label_smoothing": 1.5}, RuntimeError, "label_smoothing must be a number from 0 to 1, got 1.5"),
    "ignore_index dtype": ({"ignore_index": 1.5}, TypeError, "ignore_index must be an int of 64 bits, got 1.5"),
    "weight shape": ({"weight": torch.rand(4)}, RuntimeError, r"weight must have the shape \(5,\), got \(4,\)"),
    "weight rank": ({"weight": torch.rand(1, 5)}, RuntimeError, r"weight must have the shape \(5,\)"),
    "weight dtype": ({"weight": torch.rand(5).double()}, RuntimeError, "weight must have the dtype torch.float32"),
    "integer weight": ({"weight": torch.ones(5, dtype=LONG)}, RuntimeError, "weight must have .*, got torch.int64"),
    "weight device": ({"weight": torch.rand(5, device="meta")}, RuntimeError, "weight must be on cpu, .*, got meta"),
    "too large": ({"target": torch.tensor([0, 5, 1, 2])}, IndexError, "target must hold classes from 0 to 4, got 5"),
    "negative": ({"target": torch.tensor([0, -1, 1, 2])}, IndexError, "target must hold classes from 0 to 4, got -1"),
    "float index": ({"target": torch.ones(4)}, RuntimeError, "target must have the dtype .*, got torch.float32"),
    "int32 index": ({"target": TARGET.int()}, RuntimeError, "target must have the dtype .*, got torch.int32"),
    "batch": ({"target": TARGET[:3]}, ValueError, r"target must have the shape \(4,\) .*, got \(3,\)"),
    "integer probabilities": (
        {"target": torch.ones(4, 5, dtype=LONG)},
        RuntimeError,
        "target must have a floating-point dtype",
    ),
    "ignored probabilities": ({"target": torch.rand(4, 5), "ignore_index": 1}, RuntimeError, "ignore_index"),
    "target type": ({"target": [0, 1, 2, 3]}, TypeError, "target must be a torch.Tensor, got list"),
}
OURS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "negative smoothing": ({"label_smoothing": -0.1}, RuntimeError, "must be a number from 0 to 1, got -0.1"),
    "smoothing type": ({"label_smoothing": "0.1"}, TypeError, "must be a number from 0 to 1, got '0.1'"),
    "large ignore_index": ({"ignore_index": 2**63}, ValueError, "be an int of 64 bits, got 9223372036854775808"),
    "small ignore_index": ({"ignore_index": -(2**63) - 1}, ValueError, "be an int of 64 bits, got -92233720368547758"),
    "softcap": ({"softcap": 0.0}, ValueError, "softcap must be a positive number or None, got 0.0"),
    "one row": (
        {"input": torch.rand(5), "target": TARGET[:2]},
        ValueError,
        r"target must have the shape \(\) .*, got \(2,\)",
    ),
    "z_loss": ({"z_loss": None}, TypeError, r"z_loss must be a number \(0 for a loss without it\), got None"),
}


def call(function: Any, arguments: dict[str, Any]) -> None:
    function(**({"input": X, "target": TARGET} | arguments))


@pytest.mark.parametrize("case", BOTH)
def test_errors_have_the_types_of_torch(device: torch.device, case: str) -> None:
    if device.type != "cpu":
        pytest.skip("the tensors are on the CPU")
    arguments, kind, message = BOTH[case]
    with pytest.raises(kind, match=message):
        call(tridal.cross_entropy, arguments)
    with pytest.raises(kind):
        call(functional.cross_entropy, arguments)


@pytest.mark.parametrize("case", OURS)
def test_errors_of_other_arguments_name_the_cause(case: str) -> None:
    arguments, kind, message = OURS[case]
    with pytest.raises(kind, match=message):
        call(tridal.cross_entropy, arguments)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_logits_need_a_floating_point_dtype(dtype: torch.dtype) -> None:
    with pytest.raises(NotImplementedError, match=f"input must have a floating-point dtype, got {dtype}"):
        tridal.cross_entropy(X.to(dtype), TARGET)


def test_the_error_for_classes_in_the_last_dim_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"dim 1 of the logits has the classes; .* use logits.movedim\(-1, 1\)"):
        tridal.cross_entropy(torch.rand(2, 5, 7), torch.zeros(2, 5, dtype=torch.int64))


@pytest.mark.parametrize("function", [tridal.cross_entropy, tridal.log_probs])
@pytest.mark.parametrize("served", [True, False])
def test_targets_out_of_range_of_logits_with_tangents_raise(device: torch.device, function: Any, served: bool) -> None:
    if device.type != "cpu":
        pytest.skip("the range is checked on the CPU")
    with tridal.use(device=None if served else "auto"), forward_ad.dual_level():
        logits = forward_ad.make_dual(X, torch.ones_like(X))
        with pytest.raises(IndexError, match="target must hold classes from 0 to 4, got 5"):
            function(logits, torch.tensor([0, 5, 1, 2]))


def test_positional_arguments_after_weight_raise() -> None:
    with pytest.raises(TypeError, match="positional"):
        tridal.cross_entropy(X, TARGET, None, True)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"linear_weight": torch.rand(7)}, RuntimeError, r"linear_weight must have the shape \(C, 5\)"),
        ({"linear_weight": torch.rand(7, 3)}, RuntimeError, r"linear_weight must have the shape \(C, 5\)"),
        ({"linear_bias": torch.rand(3)}, RuntimeError, r"linear_bias must have the shape \(7,\), got \(3,\)"),
        ({"linear_weight": torch.rand(7, 5).double()}, RuntimeError, "linear_weight must have the dtype torch.float32"),
        ({"target": torch.rand(4, 7), "ignore_index": 0}, RuntimeError, "ignore_index must be negative or absent"),
        ({"target": torch.tensor([0, 7, 1, 2])}, IndexError, "target must hold classes from 0 to 6, got 7"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be a positive int or None"),
        ({"chunk_size": 1.5}, TypeError, "chunk_size must be a positive int or None"),
        ({"accum_dtype": torch.int32}, NotImplementedError, "accum_dtype must be a floating-point"),
        ({"accum_dtype": "float32"}, TypeError, "accum_dtype must be a floating-point"),
        (
            {"input": torch.rand(5), "linear_weight": torch.rand(7, 2, 5)},
            RuntimeError,
            r"input must have the shape \(N, 5\)",
        ),
        ({"input": torch.rand(2, 2, 5)}, RuntimeError, r"target must have the shape \(2, 2\) for indices"),
        ({"input": torch.rand(7, 5), "linear_weight": torch.rand(4, 5)}, ValueError, "the first argument is the input"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_errors_of_the_linear_form(
    device: torch.device, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    if device.type != "cpu":
        pytest.skip("the tensors are on the CPU")
    with pytest.raises(kind, match=message):
        call(tridal.linear_cross_entropy, {"linear_weight": torch.rand(7, 5)} | arguments)


# Arguments that are correct and unusual


def test_a_byte_target_can_have_the_class_to_which_ignore_index_would_wrap(device: torch.device) -> None:
    x, target = torch.randn(3, 200, device=device), torch.tensor([156, 0, 7], device=device)
    assert_close(tridal.cross_entropy(x, target.byte()), functional.cross_entropy(x, target))
    features, matrix = torch.randn(3, 8, device=device), torch.randn(200, 8, device=device)
    expected = functional.cross_entropy(features @ matrix.t(), target)
    assert_close(tridal.linear_cross_entropy(features, matrix, target.byte()), expected)


def test_the_weight_of_another_class_may_be_infinite_if_a_row_is_ignored(device: torch.device) -> None:
    x, weight = torch.randn(4, 5, device=device), torch.ones(5, device=device)
    weight[0] = torch.inf
    target = torch.tensor([1, -100, 4, 2], device=device)
    assert_close(tridal.cross_entropy(x, target, weight), functional.cross_entropy(x, target, weight))


def test_numbers_of_numpy_are_accepted(device: torch.device) -> None:
    numpy = pytest.importorskip("numpy")
    x, target = torch.randn(4, 5, device=device), torch.zeros(4, dtype=torch.int64, device=device)
    expected = functional.cross_entropy(x, target, label_smoothing=0.25)
    assert_close(tridal.cross_entropy(x, target, label_smoothing=numpy.float32(0.25)), expected)


def test_meta_tensors_have_a_meta_loss() -> None:
    x, target = torch.empty(7, 5, device="meta"), torch.empty(7, dtype=torch.int64, device="meta")
    assert tridal.cross_entropy(x, target, reduction="none").shape == (7,)  # type: ignore[union-attr]
    assert tridal.linear_cross_entropy(x, torch.empty(3, 5, device="meta"), target).device.type == "meta"


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_linear_layer_without_outputs_has_an_empty_loss(device: torch.device, reduction: Any) -> None:
    x, matrix = torch.randn(7, 6, device=device), torch.randn(5, 0, 6, device=device)
    target = torch.zeros(7, 0, dtype=torch.int64, device=device)
    expected = functional.cross_entropy(torch.randn(7, 5, 0, device=device), target, reduction=reduction)
    assert_close(tridal.linear_cross_entropy(x, matrix, target, reduction=reduction), expected, equal_nan=True)


def test_the_registered_op_checks_its_arguments() -> None:
    x, op = torch.randn(3, 5), torch.ops.tridal.cross_entropy
    numbers = (1, -100, 0.0, 0.0, None, torch.float32)
    with pytest.raises(ShapeError, match=r"cross_entropy: target must have the shape \(3,\), .* a number per row"):
        op(x, torch.zeros(4, dtype=torch.long), None, *numbers)
    with pytest.raises(ShapeError, match=r"cross_entropy: weight must have the shape \(5,\), .* a number per column"):
        op(x, torch.zeros(3, dtype=torch.long), torch.ones(4), *numbers)
    given = (x, torch.zeros(3, dtype=torch.long), None, torch.zeros(3), None)
    with pytest.raises(ShapeError, match=r"grad must have the shape \(\), got \(3,\): one number"):
        torch.ops.tridal.cross_entropy_backward(torch.ones(3), None, *given, *numbers[:-1], [True, False])


@pytest.mark.parametrize("function", [lambda **o: tridal.cross_entropy(X, TARGET, **o), tridal.nn.CrossEntropyLoss])
def test_an_error_for_an_unknown_argument_says_what_to_use(function: Any) -> None:
    with pytest.raises(TypeError, match=r"'inplace_backward'; it was removed: use tridal\.linear"):
        function(inplace_backward=True)
    with pytest.raises(TypeError, match="'lable_smoothing'; did you mean 'label_smoothing'"):
        function(lable_smoothing=0.1)
