"""Wrong arguments of softmax and log_softmax: torch's types of errors, and messages that name the argument."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tridal
from tridal.errors import DimensionError, DTypeError, LayoutError, ShapeError

X = torch.randn(5, 7)
BOTH: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dim": 2}, DimensionError, r"dim must be from -2 to 1 for input of shape \(5, 7\), got 2"),
    ({"dim": 1.0}, TypeError, "dim must be an int, got 1.0|must be int, not float"),
    ({"dtype": torch.int32}, DTypeError, "dtype must be a floating-point torch.dtype or None, got torch.int32"),
    ({"dtype": "float32"}, TypeError, "dtype must be a floating-point torch.dtype or None, got 'float32'"),
    ({"input": torch.arange(3)}, DTypeError, "got torch.int64: pass dtype=, for example dtype="),
    ({"input": X.cfloat()}, DTypeError, "input must have a floating-point dtype, got torch.complex64"),
    ({"input": X.to_sparse()}, LayoutError, r"use input.to_dense\(\) or torch\.sparse\.(log_)?softmax"),
    ({"input": X.to_sparse_csr()}, LayoutError, "input must be a dense tensor, got the layout torch.sparse_csr"),
    ({"input": [1.0, 2.0]}, TypeError, "input must be a torch.Tensor, got list"),
]
SCALED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"mask": [True]}, TypeError, "mask must be a torch.Tensor or None, got list"),
    ({"mask": torch.ones(7, dtype=torch.int64)}, DTypeError, "mask must have a boolean dtype .*, got torch.int64"),
    ({"mask": torch.ones(3)}, ShapeError, r"mask must have .* broadcast to \(5, 7\), .* got \(3,\)"),
    ({"scale": "big"}, TypeError, "scale must be a number, got 'big'"),
    ({"causal": True, "dim": 0}, DimensionError, "queries by keys, with causal=True"),
    ({"causal": True, "input": X[0]}, DimensionError, "dim must be -1 of at least two dims"),
    ({"scale": 2.0, "dim": 2}, DimensionError, "dim must be from -2 to 1"),
    ({"masked_rows": "one"}, ValueError, "masked_rows must be 'nan' or 'zero', got 'one'"),
]


@pytest.fixture(params=["served", "torch"])
def place(request: pytest.FixtureRequest, device: torch.device) -> Iterator[torch.device]:
    """A device that a backend serves, and a device where torch computes."""
    with tridal.use(device=None if request.param == "served" else "auto"):
        yield device if request.param == "served" else torch.device("cpu")


def raised(function: Any, arguments: dict[str, Any], place: torch.device) -> Exception:
    given = {"input": X, "dim": -1, **arguments}
    moved = {name: value.to(place) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    with pytest.raises((TypeError, ValueError, RuntimeError, IndexError)) as found:
        function(**moved)
    return found.value


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(("arguments", "error", "message"), BOTH, ids=range(len(BOTH)))
def test_errors_have_torchs_types_and_name_the_argument(
    place: torch.device, name: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    theirs = raised(getattr(torch, name), arguments, place)
    with pytest.raises(error, match=message):
        raise raised(getattr(tridal, name), arguments, place)
    assert issubclass(error, type(theirs))


@pytest.mark.parametrize(("arguments", "error", "message"), SCALED, ids=range(len(SCALED)))
def test_errors_of_scaled_and_masked_scores_name_the_argument(
    place: torch.device, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^softmax: .*{message}"):
        raise raised(tridal.softmax, arguments, place)
