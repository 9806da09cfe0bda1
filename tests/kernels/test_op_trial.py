"""The trial of an op's functions finds wrong shapes, compiled and interpreted."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tridal
from conformance_helpers import INTERPRETER
from op_sources import make_kernel, make_op
from tridal.errors import PluginError
from tridal.kernels.row_kernel import RowKernel, Statistic
from tridal.ops import table
from tridal.pytorch.path.kernel_calls import COLUMN_SUM
from tridal.testing import op_trial
from tridal.testing.op_trial import try_functions

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")

HINT = r"A tile of 4 rows and 8 columns has the shape .*: expand it with tl.expand_dims\(number, AXIS\)$"


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"divide": "def divide(x, norm):\n    return x / norm"}, rf"divide, .*: 'return x / norm': .*\. {HINT}"),
        (
            {"divide": "def divide(x, norm):\n    return norm"},
            rf": divide of op_of_a_test_\d+ returned the shape \(4,\): expected \(4, 8\)\. {HINT}",
        ),
        (
            {"divide": "def divide(x, norm):\n    y = x / 2"},
            r": divide of op_of_a_test_\d+ returned None: expected a tensor of the shape \(4, 8\)$",
        ),
        (
            {"square": "def square(x):\n    return x > 0"},
            r": square of op_of_a_test_\d+ returned int1: expected the dtype of its arguments, fp32$",
        ),
        (
            {"norm": "def norm(squares, eps):\n    return squares[:, None]"},
            rf": norm of op_of_a_test_\d+ returned the shape \(4, 1\): expected \(4,\)\. {HINT}",
        ),
    ],
    ids=["forgets AXIS", "row", "nothing", "bool term", "row value of a tile"],
)
def test_wrong_shape_is_an_error_with_kernel_function_and_shape(
    functions: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = make_kernel(tmp_path, monkeypatch, **functions)
    with pytest.raises(PluginError, match=message) as caught:
        try_functions(kernel)
    assert str(caught.value).startswith(f"kernel {kernel.name!r}: ")


@pytest.mark.parametrize(
    "functions",
    [
        {},
        {"divide": "def divide(x, norm, AXIS: tl.constexpr):\n    return tl.expand_dims(norm, AXIS)"},
        {"divide": "def divide(x):\n    return 1.0"},
        {
            "norm": "def norm(count):\n    return 1.0 / count",
            "divide": "def divide(x, norm):\n    return x * norm",
        },
    ],
    ids=["correct", "number per row", "number", "number for all rows"],
)
def test_results_that_schedules_broadcast_correctly_are_accepted(
    functions: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_functions(make_kernel(tmp_path, monkeypatch, **functions))


def test_a_count_per_part_and_parts_of_several_rows_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rebase = (
        "def rebase(squares, part_top, top):\n    return squares * tl.exp(part_top - tl.where(top > -1e38, top, 0.0))"
    )
    term = "def square(x, top, count, AXIS: tl.constexpr):\n    return x * {count}"
    kernel = make_kernel(tmp_path, monkeypatch, rebase=rebase, square=term.format(count="count"))
    statistics = Statistic("top", "max", "x"), Statistic("squares", "sum", "square", rebase="rebase")
    with pytest.raises(PluginError, match=rf"square, .*: 'return x \* count': .*{HINT}"):
        try_functions(replace(kernel, statistics=statistics))
    expanded = term.format(count="tl.expand_dims(top / count, AXIS)")
    kernel = make_kernel(tmp_path, monkeypatch, rebase=rebase, square=expanded)
    try_functions(replace(kernel, statistics=statistics))
    per_row = "def rebase(squares, part_top, top):\n    return tl.zeros_like(top)"
    kernel = make_kernel(tmp_path, monkeypatch, rebase=per_row, square=expanded)
    with pytest.raises(PluginError, match=r"rebase of .* returned the shape \(4,\): expected \(8, 4\)"):
        try_functions(replace(kernel, statistics=statistics))


@pytest.mark.parametrize("device", [{"device": "interpreter"}, {"arch": "sm_90"}], ids=str)
def test_without_a_trial_an_error_shows_the_line_of_the_written_kernel(
    device: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = make_op(tmp_path, monkeypatch, divide="def divide(x, norm):\n    return norm[:, None, None]")
    monkeypatch.setattr(table, "_entries", (*table.registered(), table.RegisteredOp(op.name, "a test", op)))
    ran = r"Triton('s interpreter)? cannot (run|compile) whole_row"

    def call() -> None:
        with tridal.use(device="interpreter"):
            tridal.row_function(op)(torch.ones(6, 5), 0)

    use = functools.partial(tridal.plan, 6, 5, op=op.name, **device) if "arch" in device else call
    with pytest.raises(PluginError, match=rf"^kernel {op.name!r}: {ran}, <{op.name}-\w+>:\d+: 'tl.store\("):
        use()


@pytest.mark.parametrize("kernel", [*table.kernels().values(), COLUMN_SUM], ids=lambda kernel: kernel.name)
def test_functions_of_built_in_ops_pass_their_trials(kernel: RowKernel) -> None:
    """They need no trial before use, so this test runs it."""
    assert op_trial.is_own(kernel)
    try_functions(kernel)


def test_nan_of_rebase_for_a_part_without_elements_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rebase = "def rebase(squares, part_top, top):\n    return squares * tl.exp(part_top - top)"
    kernel = make_kernel(tmp_path, monkeypatch, rebase=rebase)
    statistics = Statistic("top", "max", "x"), Statistic("squares", "sum", "square", rebase="rebase")
    with pytest.raises(PluginError, match=r"rebase of .* returned NaN for an empty part of a row: expected a number"):
        try_functions(replace(kernel, statistics=statistics))
