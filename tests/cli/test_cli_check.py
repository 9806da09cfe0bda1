"""Tests `tridal check`: its report, the device that it chooses, and its exit code when a check fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from cli_helpers import run, run_json
from op_samples import L2_NORM
from torch_versions import compiles
from tridal import testing
from tridal.cli import check
from tridal.devices import registry
from tridal.devices.types import Backend
from tridal.ops import table
from tridal.pytorch.path.function import FUNCTIONS
from tridal.testing import declarations
from tridal.testing.cases import Case

pytestmark = pytest.mark.usefixtures("no_settings")


def check_text(backend: Backend, *arguments: str, code: int = 0) -> str:
    return str(run("check", *arguments, "--device", backend.name, code=code).stdout)


def check_json(backend: Backend, *arguments: str, code: int = 0) -> Any:
    return run_json("check", *arguments, "--device", backend.name, code=code)


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that replaces the cases of the suite."""

    def replace(*cases: Case) -> None:
        monkeypatch.setattr(testing, "cases", lambda backend, ops: cases)

    return replace


def test_json_report_of_a_passing_backend_has_a_plan_of_every_compiling_backend(backend: Backend) -> None:
    report = check_json(backend)
    assert report["backend"] == backend.name
    assert report["passed"] is True
    assert report["unit_test"]["shape"] == [1823, 781]
    assert 0 <= report["unit_test"]["difference_to_torch"] < 1e-6
    assert [result["passed"] for result in report["unit_test"]["results"]] == [True, True]
    assert [[round(n, 4) for n in row] for row in report["worked_example"]["dx"]] == [
        [-0.0381, -0.0792, 0.1173],
        [-0.0043, -0.0202, 0.0245],
    ]
    plans = {plan["backend"]: plan for plan in report["plans"]}
    for entry in registry.registered():
        if entry.backend is None or entry.backend.interpreted:
            continue
        planned = plans[entry.name]
        assert planned["arch"] == next(iter(entry.backend.architectures()))
        if compiles(entry.name):  # this Triton compiles for AMD GPUs with a linker of ROCm
            assert planned["problem"] is None
            assert planned["plan"]["launched_programs"] >= 1


def test_text_report_has_every_section(backend: Backend) -> None:
    output = check_text(backend)
    for text in ("largest difference from torch.softmax", "Worked example", "-0.0792", "Launch plan", "checks passed"):
        assert text in output
    assert f"device {backend.name!r}, from --device" in output
    rows = [line.split() for line in output[output.index("Worked example") :].splitlines()]
    first = {row[0]: row[1] for row in rows if row and row[0] in ("X", "dY", "Y", "dX")}
    assert first["dX"] == "-0.0381", "the name is before the first row"


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the settings choose an accelerator here")
def test_without_an_accelerator_checks_the_interpreter() -> None:
    backend, index, why = check.choose(None)
    assert backend.interpreted
    assert index is None
    assert why == (
        "Running the kernels in Triton's interpreter, because no backend computes cpu tensors "
        "(device 'auto', the default)"
    )


def test_a_kernel_that_raises_an_exception_has_no_error_in_json(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON has no NaN."""
    monkeypatch.setitem(FUNCTIONS, "softmax", raises)
    result = check_json(backend, code=1)["unit_test"]["results"][0]
    assert (result["passed"], result["error"]) == (False, None)
    assert result["message"].startswith("raised KeyError: 'reduction'")


def test_fails_when_a_kernel_is_wrong(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FUNCTIONS, "softmax", lambda x, dim=-1, **kwargs: torch.softmax(x, dim) * 1.01)
    report = check_json(backend, code=1)
    assert report["passed"] is False
    assert report["unit_test"]["difference_to_torch"] is None
    assert "elements are off" in report["unit_test"]["results"][0]["message"]
    output = check_text(backend, code=1)
    assert "FAILED softmax forward 1823x781" in output
    assert "FAILED 3 of 3 checks, see the messages above" in output


def test_all_option_runs_the_conformance_suite(backend: Backend, suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [Case(op, direction, (3, 5)) for op in ("softmax", "log_softmax") for direction in ("forward", "backward")]  # type: ignore[arg-type]
    suite(*cases)
    report = check_json(backend, "--all")
    assert [result["name"] for result in report["suite"]] == [case.name for case in cases]
    monkeypatch.setattr(testing, "run_case", lambda case, backend: testing.Result(case.name, False, 1, 0, "[off]", 0))
    output = check_text(backend, "--all", code=1)
    assert "Conformance suite" in output
    assert "FAILED softmax forward 3x5 dim=-1 float32: [off]" in output


def test_quick_suite_runs_the_quick_cases(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "run_case", lambda case, backend: testing.Result(case.name, True, 0, 1, None, 0))
    report = check_json(backend, "--op", "swiglu", "--quick")
    quick = testing.quick_cases(backend, ["swiglu"])
    assert [result["name"] for result in report["suite"]] == [case.name for case in quick]
    assert len(quick) < len(testing.cases(backend, ["swiglu"])) / 2


def raises(*arguments: Any, **options: Any) -> Any:
    raise KeyError("reduction")


CASES = testing.OpCases(is_defined=raises)
WRONG_KERNELS = tuple(replace(kernel, name=kernel.name.replace("l2", "wrong")) for kernel in L2_NORM.kernels)


@pytest.mark.parametrize(
    ("wrong", "reason", "printed"),
    [
        ({"reference": lambda x, reduce, eps: x.sum()}, "its declaration is wrong", "the reference returned"),
        ({"cases": "test_cli_check:CASES"}, "raised KeyError: 'reduction' (in raises, ", "FAILED 2 of "),
    ],
    ids=["reference", "is_defined"],
)
def test_an_op_with_a_wrong_declaration_is_named_and_the_suite_runs_the_other_ops(
    wrong: dict[str, Any], reason: str, printed: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = replace(L2_NORM, name="wrong_norm", kernels=WRONG_KERNELS, **wrong)
    entries = [table.RegisteredOp("softmax", "tridal", table.op_named("softmax"))]
    entries.append(table.RegisteredOp(op.name, "vendor 1.0", op))
    entries.append(table.RegisteredOp("absent", "other 2.0", None, "it could not be loaded: ImportError: vendorlib"))
    monkeypatch.setattr(table, "_entries", tuple(entries))
    monkeypatch.setattr(declarations, "_compiled_architectures", lambda: ())
    ran: list[str] = []

    def run_case(case: Case, backend: Backend) -> testing.Result:
        ran.append(case.op)
        return testing.Result(case.name, True, 0.0, 1.0, None, 0.0)

    monkeypatch.setattr(testing, "run_case", run_case)
    output = " ".join(check_text(backend, "--all", code=1).split())
    assert set(ran) == {"softmax"}
    assert f"FAILED the suite skipped wrong_norm (vendor 1.0): {reason}" in output
    assert "FAILED absent declaration of other 2.0: it could not be loaded: ImportError: vendorlib" in output
    assert printed in output
