"""Wrong arguments of each public function of an op: shapes, values of other types, and layouts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tridal
from tridal.errors import LayoutError, ShapeError

Tensor = torch.Tensor
X, INDEX, HEADS, ANGLES = torch.randn(4, 6), torch.tensor([0, 1, 2, 3]), torch.randn(1, 2, 4, 8), torch.randn(4, 8)
LINEAR = {"linear_weight": torch.randn(7, 6), "target": INDEX, "linear_bias": torch.randn(7)}
NORM = {"normalized_shape": (6,), "weight": torch.ones(6), "residual": X}
CALLS: dict[Callable[..., Any], dict[str, Any]] = {
    tridal.softmax: {"input": X, "mask": torch.zeros(4, 6)},  # torch computes nested tensors without a mask
    tridal.rms_norm: {"input": X, **NORM},
    tridal.layer_norm: {"input": X, **NORM, "bias": torch.ones(6)},
    tridal.cross_entropy: {"input": X, "target": INDEX, "weight": torch.ones(6)},
    tridal.linear_cross_entropy: {"input": X, **LINEAR, "weight": torch.ones(7)},
    tridal.log_probs: {"logits": X, "target": INDEX},
    tridal.token_log_probs: {"input": X, **LINEAR},
    tridal.swiglu: {"input": X, "up": X},
    tridal.geglu: {"input": X, "up": X},
    tridal.rotary_embedding: {"query": HEADS, "key": HEADS, "cos": ANGLES, "sin": ANGLES},
}
TENSORS = [(f, name) for f, given in CALLS.items() for name, value in given.items() if isinstance(value, Tensor)]
OPTIONS = [
    (function, parameter)
    for function, given in CALLS.items() for parameter in inspect.signature(function).parameters.values()
    if parameter.name not in {*given, "stream", "dtype", "accum_dtype", "mask", "up", "removed"}
]  # fmt: skip


def ids(value: Any) -> str:
    return getattr(value, "__name__", None) or getattr(value, "name", None) or str(value)


@pytest.fixture(params=["served", "torch"], autouse=True)
def computed_by(request: pytest.FixtureRequest, device: torch.device) -> Any:
    if device.type != "cpu":
        pytest.skip("the tensors are on the CPU")
    with tridal.use(device=None if request.param == "served" else "auto"):
        yield request.param


@pytest.mark.parametrize(
    ("function", "name"), [t for t in TENSORS if t[1] not in ("input", "logits", "query", "key")], ids=ids
)
def test_a_tensor_of_a_wrong_shape_raises_shape_error(function: Any, name: str) -> None:
    for shape in ((3,), (4, 5), (2, 4, 7), (0,)):
        wrong = torch.zeros(shape, dtype=CALLS[function][name].dtype)
        with pytest.raises(ShapeError, match=f"^{function.__name__}: {name} must "):
            function(**{**CALLS[function], name: wrong})


@pytest.mark.parametrize(("function", "parameter"), OPTIONS, ids=ids)
def test_an_option_of_another_type_raises(function: Any, parameter: inspect.Parameter) -> None:
    """A bool is no number, and numbers, strings and tensors are no bools."""
    is_bool = isinstance(parameter.default, bool)
    values = ["no", "", "1", [], 1j, torch.tensor([1, 2]), torch.tensor(0.5), torch.tensor(True)]
    values += [0, 1, 2, 0.5, None] if is_bool else [True, False]
    for value in values:
        with pytest.raises((TypeError, ValueError), match=f"^{function.__name__}: {parameter.name} must ") as found:
            function(**{**CALLS[function], parameter.name: value})
        assert not is_bool or found.type is TypeError


@pytest.mark.parametrize(("function", "name"), TENSORS, ids=ids)
def test_a_sparse_or_nested_tensor_raises_layout_error(function: Any, name: str) -> None:
    tensor = CALLS[function][name]
    for value in (tensor.to_sparse(), torch.nested.nested_tensor([tensor, tensor], layout=torch.jagged)):
        with pytest.raises(LayoutError, match=f"^{function.__name__}: {name} must be a dense tensor.*: use {name}.to_"):
            function(**{**CALLS[function], name: value})
