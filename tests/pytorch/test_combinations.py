"""Pairs of features: every pair of values of `feature_axes.py` computes the right result, or torch refuses it too."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_versions
from feature_axes import (
    ACCELERATOR_CONTEXTS,
    ARGUMENTS,
    CALLS,
    CONTEXTS,
    INPUTS,
    NEED_SCALE_MASK,
    SEVERAL_TENSORS,
    SHAPE,
    SLOW_CALLS,
    by_torch,
    like,
    ours,
    plain,
)
from feature_derivatives import DERIVATIVES
from pairwise import Row, covering_rows
from refused_features import (
    DISTRIBUTED,
    LEAKS_IN_TORCH,
    LIMITS,
    REFUSED,
    TORCH,
    UNSTABLE_IN_TORCH,
    WRONG_IN_TORCH,
)
from tridal.ops import table

AXES: dict[str, list[str]] = {
    "op": [*(op.name for op in table.ops().values() if op.one_tensor), *SEVERAL_TENSORS],
    "call": list(CALLS),
    "derivative": list(DERIVATIVES),
    "input": list(INPUTS),
    "arguments": list(ARGUMENTS),
    "context": list(CONTEXTS),
}
NOT_COMPARED = REFUSED | LIMITS | LEAKS_IN_TORCH | UNSTABLE_IN_TORCH | WRONG_IN_TORCH
NOT_FLOATING = {"integers", "nested", "jagged"}
NOT_ON_STREAMS = {
    "graph": {*SLOW_CALLS, *DISTRIBUTED, "nested", "jagged", "backward in compiled"},
    # Forward-mode AD, tracers and the override have one state for all threads.
    "threads with streams": {*SLOW_CALLS, *DISTRIBUTED, "backward in compiled", "jvp", "dual number"},
}


def allowed(row: Row) -> bool:
    """Returns whether a row may contain these values. What torch refuses is tested on its own."""
    values = set(row.values())
    if any(refused <= values for refused in NOT_COMPARED):
        return False
    if any(values & NOT_ON_STREAMS.get(value, set()) for value in values):
        return False
    if row.get("op") in SEVERAL_TENSORS:
        if torch_versions.TORCH < (2, 9) and not values.isdisjoint(DISTRIBUTED):
            return False  # DTensors of this torch have no `select`, which the samples of these ops call
        overflows = {"second gradient", "float16"} <= values
        return row.get("arguments", "plain") == "plain" and not values & NOT_FLOATING and not overflows
    return "op" not in row or table.op_named(row["op"]).scale_mask or not values & NEED_SCALE_MASK


ROWS = covering_rows(AXES, allowed)
SLOW_ROWS = [row for row in ROWS if row["call"] in SLOW_CALLS]


def rows_with(axis: str, value: str) -> list[Row]:
    """Returns rows that contain every pair of a value that is not in `AXES` and another value."""
    return covering_rows(AXES | {axis: [value]}, allowed, through=(axis, value))


def name_of(row: Row) -> str:
    return ", ".join(row.values())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs an eighth of the rows that compile, unless there is the option --matrix."""
    if "row" in metafunc.fixturenames:
        number = 1 if metafunc.config.getoption("--matrix") else 8
        rows = [row for row in ROWS if row not in SLOW_ROWS] + SLOW_ROWS[::number]
        metafunc.parametrize("row", rows, ids=name_of)


@pytest.fixture(autouse=True)
def no_level_of_forward_mode_is_left_open(device: torch.device) -> Iterator[None]:
    """Other tests would fail."""
    yield
    with torch.autograd.forward_ad.dual_level():
        pass


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one rank. There is one for all tests, because in torch 2.7 destroy may wait forever."""
    file = tmp_path_factory.mktemp("mesh") / "group"
    torch.distributed.init_process_group(init_method=f"file://{file}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def values_for(row: Row, device: torch.device) -> torch.Tensor:
    values = torch.linspace(-3, 3, math.prod(SHAPE)).view(SHAPE).sin().to(device) * 2
    return values[:1].expand(SHAPE) if row["input"] == "expanded" else values


def compute(row: Row, device: torch.device, function: Callable[..., Any] = ours) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the input and the result of a row. Under the override, torch's function is called."""
    torch.compiler.reset()
    x = INPUTS[row["input"]](values_for(row, device))
    keywords = {name: like(value, x) for name, value in ARGUMENTS[row["arguments"]].items()}
    called = (by_torch if row["call"] == "override_torch" else function)(row["op"], keywords)
    call, kind = CALLS[row["call"]], DERIVATIVES[row["derivative"]]
    context = (CONTEXTS | ACCELERATOR_CONTEXTS)[row["context"]]
    return x, context(lambda: call(called, kind.compute, x), device)


FAMILIES = (AssertionError, AttributeError, IndexError, TypeError, NotImplementedError, RuntimeError, ValueError)


def same_kind(one: Exception | None, other: Exception | None) -> bool:
    return any(isinstance(one, family) and isinstance(other, family) for family in FAMILIES)


def refusals_are_known(device: torch.device) -> bool:
    return torch.__version__.startswith(TORCH) and device.type == "cpu"


def error_of(row: Row, device: torch.device, function: Callable[..., Any]) -> Exception | None:
    try:
        compute(row, device, function)
    except Exception as error:
        return error
    return None


def check(row: Row, device: torch.device) -> None:
    """Compares a row with the same computation in float64, eager, by torch's functions."""
    try:
        x, result = compute(row, device)
    except Exception as error:
        known = refusals_are_known(device) and row["op"] not in SEVERAL_TENSORS
        in_torch = row | {"call": "eager"} if row["call"] == "override_torch" else row
        if known or not same_kind(error, error_of(in_torch, device, by_torch)):
            raise
        return
    arguments, kind = ARGUMENTS[row["arguments"]], DERIVATIVES[row["derivative"]]
    keywords = {name: like(value, values_for(row, device)) for name, value in arguments.items()}
    floating = x.dtype if x.dtype.is_floating_point else torch.float32
    expected = (
        kind.reference(by_torch(row["op"], {"dtype": floating} | keywords, wide=True), plain(x)).detach().double()
    )
    dtypes, roundings, largest = [floating, keywords.get("dtype", floating)], kind.roundings, 1.0
    if row["op"] in SEVERAL_TENSORS:
        dtypes += [torch.bfloat16] * (row["context"] == "autocast")
        roundings, largest = 4 * roundings, max(1.0, float(expected.abs().max()))
    tolerance = roundings * max(torch.finfo(dtype).eps for dtype in dtypes)
    close = functools.partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
    try:
        close(plain(result), expected)
    except AssertionError:
        if refusals_are_known(device) and row["call"] != "override_torch":
            raise
        # torch has faults of its own: the gradient in inference mode is zero with torch 2.11, and that of a float16
        # layer_norm is NaN for some rows on a CPU, which the override leaves to torch.
        close(plain(result), plain(compute(row, device, by_torch)[1]))
    if row["op"] not in SEVERAL_TENSORS and row["derivative"] == "forward" and row["context"] != "autocast":
        assert result.dtype is keywords.get("dtype", floating)


def failures_of(check: Callable[[Row, torch.device], None], rows: list[Row], device: torch.device) -> dict[str, str]:
    """Checks rows, and returns the errors of all that fail."""
    failures = {}
    for row in rows:
        try:
            check(row, device)
        except Exception as error:
            failures[name_of(row)] = f"{type(error).__name__}: {error}"[:500]
    return failures


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
    assert not failures_of(check, rows_with("context", context), device)
