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
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": Tensor.to_sparse,
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
    "bsr": lambda x: x.to_sparse_bsr((1, 1)),
    "bsc": lambda x: x.to_sparse_bsc((1, 1)),
    "mkldnn": Tensor.to_mkldnn,
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "jagged": lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged),
}


def is_possible(layout: str, tensor: Tensor) -> bool:
    if layout == "mkldnn":
        return tensor.is_floating_point()
    return tensor.dim() > 1 or layout == "coo"


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


@pytest.mark.parametrize(
    ("function", "name", "layout"),
    [(*t, layout) for t in TENSORS for layout in LAYOUTS if is_possible(layout, CALLS[t[0]][t[1]])], ids=ids,
)  # fmt: skip
def test_the_advice_for_a_layout_works(function: Any, name: str, layout: str, computed_by: str) -> None:
    tensor, of_softmax = CALLS[function][name], "softmax" in function.__name__
    value = LAYOUTS[layout](tensor)
    if of_softmax and name == "input" and computed_by == "torch" and layout == "mkldnn":
        pytest.skip("torch.softmax computes it")
    with pytest.raises(LayoutError, match=f"^{function.__name__}: {name} must be a dense tensor") as found:
        function(**{**CALLS[function], name: value})
    _, _, advice = str(found.value).partition(": use ")
    scope: Any = {"torch": torch, name: value, "dim": -1}
    dense, *others = (eval(code, scope) for code in advice.partition(", where")[0].split(" or "))
    if value.is_nested:
        assert dense.shape == (2, *tensor.shape)
    else:
        function(**{**CALLS[function], name: dense})
        assert [other.to_dense().shape for other in others] == [tensor.shape] * (of_softmax and layout != "mkldnn")
