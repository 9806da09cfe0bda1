"""Pairs of features with norms and losses: each pair computes torch's result, or torch refuses it too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.nn import functional

import tridal
from feature_axes import ACCELERATOR_CONTEXTS, CALLS, CONTEXTS, INPUTS, SHAPE, SLOW_CALLS, like, plain
from feature_derivatives import DERIVATIVES, Function
from pairwise import Row, covering_rows
from refused_features import LEAKS_IN_TORCH, REFUSED, UNSTABLE_IN_TORCH
from test_combinations import NOT_ON_STREAMS, failures_of, mesh, name_of, refusals_are_known, same_kind, values_for

assert mesh
ON_CPU = {
    "weight": torch.linspace(0.5, 2, 6),
    "bias": torch.linspace(-1, 1, 6),
    "matrix": torch.linspace(-1, 1, 30).view(5, 6).sin(),
    "classes": torch.tensor([0.5, 1.0, 2.0, 0.25]),
    "target": torch.arange(18).view(3, 6) % 4,
    "rows": torch.arange(12).view(3, 4) % 5,
}
TENSORS = dict(ON_CPU)
"""The other arguments of the ops, on the device under test: a graph cannot capture a copy from the CPU."""


def _same(name: str, x: torch.Tensor) -> Any:
    """Returns an argument with the mesh and the dtype of x."""
    value = TENSORS[name]
    return like(value.to(x.dtype) if value.is_floating_point() else value, x)


def _norm(module: Any, name: str, *parameters: str) -> Function:
    return lambda x: getattr(module, name)(x, (6,), *(_same(parameter, x) for parameter in parameters))


def _with_residual(x: torch.Tensor) -> torch.Tensor:
    y, total = tridal.rms_norm(x, (6,), _same("weight", x), residual=x.cos())
    return y + total


def _sum_first(x: torch.Tensor) -> torch.Tensor:
    total = x + x.cos()
    return functional.rms_norm(total, (6,), _same("weight", x)) + total


def _entropy(module: Any, **options: Any) -> Function:
    return lambda x: module.cross_entropy(x, _same("target", x), _same("classes", x), **options)


def _linear_entropy(x: torch.Tensor) -> torch.Tensor:
    return tridal.linear_cross_entropy(x, _same("matrix", x), _same("rows", x), chunk_size=5)


def _linear_then_entropy(x: torch.Tensor) -> torch.Tensor:
    logits = functional.linear(x, _same("matrix", x)).flatten(0, 1)
    return functional.cross_entropy(logits, _same("rows", x).flatten())


OPS: dict[str, tuple[Function, Function]] = {
    "rms_norm": (_norm(tridal, "rms_norm", "weight"), _norm(functional, "rms_norm", "weight")),
    "rms_norm, residual": (_with_residual, _sum_first),
    "layer_norm": (_norm(tridal, "layer_norm", "weight", "bias"), _norm(functional, "layer_norm", "weight", "bias")),
    "cross_entropy": (_entropy(tridal), _entropy(functional)),
    "cross_entropy, rows": tuple(
        _entropy(module, reduction="none", label_smoothing=0.1, ignore_index=2) for module in (tridal, functional)
    ),  # type: ignore[dict-item]
    "linear_cross_entropy": (_linear_entropy, _linear_then_entropy),
}
"""tridal's function, and torch's."""
NOT_FLOATING = {"integers", "nested", "jagged"}
AXES: dict[str, list[str]] = {
    "op": list(OPS),
    "call": list(CALLS),
    "derivative": list(DERIVATIVES),
    "input": [name for name in INPUTS if name not in NOT_FLOATING],
    "context": list(CONTEXTS),
}


def allowed(row: Row) -> bool:
    values = set(row.values())
    if any(values & NOT_ON_STREAMS.get(value, set()) for value in values):
        return False
    return not any(refused <= values for refused in REFUSED | LEAKS_IN_TORCH | UNSTABLE_IN_TORCH)


ROWS = covering_rows(AXES, allowed)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs an eighth of the rows that compile, unless there is the option --matrix."""
    if "row" not in metafunc.fixturenames:
        return
    number = 1 if metafunc.config.getoption("--matrix") else 8
    slow = [row for row in ROWS if row["call"] in SLOW_CALLS or "compiled" in row["derivative"]]
    metafunc.parametrize("row", [row for row in ROWS if row not in slow] + slow[::number], ids=name_of)


def compute(row: Row, device: torch.device, function: Function) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the input and the result of a row."""
    torch.compiler.reset()
    x = INPUTS[row["input"]](values_for(row, device))
    run = functools.partial(CALLS[row["call"]], function, DERIVATIVES[row["derivative"]].compute, x)
    return x, (CONTEXTS | ACCELERATOR_CONTEXTS)[row["context"]](run, device)


@pytest.fixture(autouse=True)
def arguments_on_the_device(device: torch.device) -> Iterator[None]:
    """Also checks that the test leaves no level of forward-mode AD open: others would fail."""
    for name, value in ON_CPU.items():
        TENSORS[name] = value.to(device, copy=True)
    yield
    with torch.autograd.forward_ad.dual_level():
        pass


def check(row: Row, device: torch.device) -> None:
    """Compares a row with the same computation by torch's functions in float64, eager."""
    ours, theirs = OPS[row["op"]]
    called: Callable[..., Any] = theirs if row["call"] == "override_torch" else ours
    refused = None
    try:
        x, result = compute(row, device, called)
    except Exception as error:
        refused = error
    in_torch = row | {"call": "eager" if row["call"] == "override_torch" else row["call"]}
    if refused is not None:
        try:
            compute(in_torch, device, theirs)
        except Exception as error:
            if same_kind(refused, error):
                return
        raise refused
    kind = DERIVATIVES[row["derivative"]]
    wide = plain(x)
    expected = kind.reference(lambda x: theirs(x.double()), wide)
    narrow = torch.bfloat16 if row["context"] == "autocast" else x.dtype
    tolerance = 4 * kind.roundings * max(torch.finfo(x.dtype).eps, torch.finfo(narrow).eps)
    largest = max(1.0, float(plain(expected).abs().max()))
    try:
        torch.testing.assert_close(plain(result), plain(expected), rtol=tolerance, atol=tolerance * largest)
    except AssertionError:
        if refusals_are_known(device):
            raise
        # Other versions of torch have faults of their own: the gradient in inference mode is zero with torch 2.9.
        found = compute(in_torch, device, theirs)[1]
        torch.testing.assert_close(plain(result), plain(found), rtol=tolerance, atol=tolerance * largest)
    assert not isinstance(expected, DTensor)
    assert wide.shape == SHAPE


@pytest.mark.usefixtures("mesh")
@pytest.mark.filterwarnings("ignore")
def test_a_row_of_features_computes_the_result_of_torch(device: torch.device, row: Row) -> None:
    check(row, device)


@pytest.mark.usefixtures("mesh")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("context", ACCELERATOR_CONTEXTS)
def test_streams_and_graphs_compute_the_result_of_torch(device: torch.device, context: str) -> None:
    if device.type == "cpu":
        pytest.skip("needs an accelerator")
    rows = covering_rows(AXES | {"context": [context]}, allowed, through=("context", context))
    assert not failures_of(check, rows, device)
