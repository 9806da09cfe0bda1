"""The trial of an op's functions finds wrong shapes, compiled and interpreted."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from conformance_helpers import INTERPRETER
from op_sources import make_kernel
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
        ({"divide": "def divide(x, norm):\n    return norm"},
         rf": divide of op_of_a_test_\d+ returned the shape \(4,\): expected \(4, 8\)\. {HINT}"),
        ({"divide": "def divide(x, norm):\n    y = x / 2"},
         r": divide of op_of_a_test_\d+ returned None: expected a tensor of the shape \(4, 8\)$"),
        ({"square": "def square(x):\n    return x > 0"},
         r": square of op_of_a_test_\d+ returned int1: expected the dtype of its arguments, fp32$"),
        ({"norm": "def norm(squares, eps):\n    return squares[:, None]"},
         rf": norm of op_of_a_test_\d+ returned the shape \(4, 1\): expected \(4,\)\. {HINT}"),
    ],
    ids=["forgets AXIS", "row", "nothing", "bool term", "row value of a tile"],
)  # fmt: skip
def test_wrong_shape_is_an_error_with_kernel_function_and_shape(
    functions: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = make_kernel(tmp_path, monkeypatch, **functions)
    with pytest.raises(PluginError, match=message) as caught:
        try_functions(kernel)
    assert str(caught.value).startswith(f"kernel {kernel.name!r}: ")


REBASE = "def rebase(squares, part_top, top):\n    return "
SQUARE = "def square(x, top, count, AXIS: tl.constexpr):\n    return x * "
FINITE = "squares * tl.exp(part_top - tl.where(top > -1e38, top, 0.0))"
EXPANDED = "tl.expand_dims(top / count, AXIS)"


@pytest.mark.parametrize(
    ("square", "rebase", "message"),
    [
        (EXPANDED, FINITE, None),
        ("count", FINITE, rf"square, .*: 'return x \* count': .*{HINT}"),
        (EXPANDED, "tl.zeros_like(top)", r"rebase of .* returned the shape \(4,\): expected \(8, 4\)"),
        (EXPANDED, "squares * tl.exp(part_top - top)", "returned NaN for an empty part of a row: expected a number"),
    ],
)
def test_a_count_per_part_and_parts_of_several_rows_are_tried(
    square: str, rebase: str, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = make_kernel(tmp_path, monkeypatch, rebase=REBASE + rebase, square=SQUARE + square)
    kernel = replace(
        kernel, statistics=(Statistic("top", "max", "x"), Statistic("squares", "sum", "square", rebase="rebase"))
    )
    with nullcontext() if message is None else pytest.raises(PluginError, match=message):
        try_functions(kernel)


@pytest.mark.parametrize("kernel", [*table.kernels().values(), COLUMN_SUM], ids=lambda kernel: kernel.name)
def test_functions_of_built_in_ops_pass_their_trials(kernel: RowKernel) -> None:
    """They need no trial before use, so this test runs it."""
    assert op_trial.is_own(kernel)
    try_functions(kernel)
