"""The check of declarations finds wrong references, gradients and Triton functions of an op, without a device."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import op_sources
from torch_versions import TRITON
from tridal import library, ops, testing
from tridal.ops import table
from tridal.testing import declarations

pytest.importorskip("triton")

Check = Callable[..., dict[str, str | None]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Returns a function that changes an op and returns the messages of its checks by name."""

    def check(changes: dict[str, Any], archs: tuple[str, ...] = (), **functions: str) -> dict[str, str | None]:
        monkeypatch.setattr(declarations, "_compiled_architectures", lambda: archs)
        op = replace(op_sources.make_op(tmp_path, monkeypatch, **functions), **changes)
        monkeypatch.setattr(table, "_entries", (*table.registered(), table.RegisteredOp(op.name, "a test", op)))
        results = testing.check_declarations([op.name])
        assert all(result.passed == (result.message is None) for result in results)
        return {result.name.removeprefix(f"{op.name} declaration "): result.message for result in results}

    return check


def test_a_correct_declaration_passes_and_is_compiled_for_architectures_without_a_device(check: Check) -> None:
    assert "sm_90" in declarations._compiled_architectures()
    messages = check({}, ("sm_90",))
    assert set(messages.values()) == {None}
    wrong = check({}, divide="def divide(x, norm):\n    return norm")
    assert "returned the shape (4,): expected (4, 8)" in str(wrong[next(n for n in wrong if n.startswith("functions"))])
    names = [name.partition(" ")[2] for name in messages if " compiled for " in name]
    assert names == [f"compiled for sm_90 in {how}" for how in ("float32 along dim -1", "float64 along dim 0")] * 2


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (ops.number("eps", 1e-3), "only the default 0.001 of 'eps' would be tested: declare its range as (smallest,"),
        (ops.number("eps", "a"), "only the default 'a' of 'eps' would be tested: declare its range as a tuple of all"),
    ],
    ids=lambda value: getattr(value, "type", None),
)
def test_a_number_without_a_range_is_named(check: Check, number: Any, message: str) -> None:
    found = check({"arguments": (ops.per_element("input"), number)})["range of eps"]
    assert found is not None
    assert found.startswith(message)


def test_built_in_ops_pass() -> None:
    results = testing.check_declarations([op.name for op in library.OPS])
    assert [result.name for result in results if not result.passed] == []
    names = [result.name for result in results]
    assert "layer_norm declaration math in torch.float64 without residual, weight, bias" in names
    assert {name.split()[0] for name in names} == {op.name for op in library.OPS if op.arguments[0].role == "element"}


def test_a_wrong_gradient_of_one_of_several_tensors_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    op = table.op_named("layer_norm")

    def gradient(*arguments: Any, **numbers: Any) -> Any:
        dx, dw, db = op.gradient(*arguments, **numbers)
        return dx, 2 * dw, db

    wrong = replace(op, name="wrong", gradient=gradient)
    entries = [entry for entry in table.registered() if entry.name != "layer_norm"]
    monkeypatch.setattr(table, "_entries", (*entries, table.RegisteredOp("wrong", "a test", wrong)))
    messages = [r.message for r in testing.check_declarations(["wrong"]) if not r.passed and "float64" in r.name]
    assert len(messages) == 1
    assert "the gradient of weight differs from autograd's gradient of the reference by 1 of" in str(messages[0])


def to(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """Returns a reference or gradient whose result has this dtype."""
    return lambda *arguments, **_: arguments[0].to(dtype)


SHAPE = r"of shape \(3, 7\)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": to(torch.bool)}, f"the reference returned torch.bool {SHAPE} for torch.float64 {SHAPE}: expect"),
        ({"reference": lambda x, reduce, eps: reduce(x, "sum")}, r"the reference returned .* of shape \(3, 1\) for "),
        ({"reference": lambda x, reduce, eps: None}, "the reference returned a NoneType: expected a tensor"),
        ({"reference": lambda x, reduce, eps: x.detach()}, "the reference has no gradient: autograd has to"),
        ({"gradient": lambda dy, x, reduce, eps: dy.double().sum()}, "the gradient returned torch.float64 of shape"),
        ({"gradient": lambda dy, x, reduce: dy}, "raised TypeError: .*unexpected keyword argument 'eps'"),
        (
            {"saves": ("output",)},
            r"with saves=\('output',\), the gradient differs from autograd's gradient of the reference by .* of its "
            "largest element: declare saves=\\('input',\\)$",
        ),
        ({"gradient": lambda dy, x, reduce, eps: 2 * dy}, r"with saves=\('input',\), .* of its largest element$"),
    ],
    ids=["dtype", "shape", "none", "constant", "gradient shape", "argument", "saves", "gradient"],
)  # fmt: skip
def test_fault_of_the_math_is_found(check: Check, changes: dict[str, Any], message: str) -> None:
    found = check(changes)["math in torch.float64"]
    assert found is not None
    assert re.search(message, found), found


@pytest.mark.skipif(TRITON < (3, 3), reason="Triton 3.2 aborts the process")
def test_python_if_on_a_tensor_is_found_by_the_compiler_only(check: Check) -> None:
    source = "def divide(x, norm, AXIS: tl.constexpr):\n    y = x / tl.expand_dims(norm, AXIS)\n    {}\n    return y"
    messages = check({}, ("sm_90",), divide=source.format("if x > 0:\n        y = -y"))
    faults = [name for name, message in messages.items() if message is not None]
    assert len(faults) == 2
    assert all(" compiled for " in name for name in faults)
