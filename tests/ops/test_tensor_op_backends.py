"""Ops of several tensors from a third party on each backend under test, and the rows of CI, which run this file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.testing import assert_close

import tridal
from backend_helpers import BUNDLED
from op_samples import THIRD_PARTY, Sample, as_tuple
from tridal.devices.types import Backend

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).relative_to(ROOT)
ROW = "CI_BACKEND"
"""The variable with the backend of a row of CI."""


@pytest.mark.parametrize("sample", THIRD_PARTY.values(), ids=THIRD_PARTY)
@pytest.mark.parametrize("shape", [(5, 37), (3, 40, 7), (2, 3000)])
def test_results_and_gradients_equal_torch(
    backend: Backend, device: torch.device, sample: Sample, shape: tuple[int, ...]
) -> None:
    tensors = sample.leaves(*shape, dtype=torch.float32, device=device)
    exact = {name: tensor.detach().cpu().double().requires_grad_() for name, tensor in tensors.items()}
    with tridal.record_calls() as calls:
        results, wanted = as_tuple(sample.function(**tensors)), as_tuple(sample.expected(**exact))
        upstream = [torch.linspace(0.5, 1.5, y.numel()).view(y.shape) for y in wanted]
        found = torch.autograd.grad(results, list(tensors.values()), [dy.to(device) for dy in upstream])
    expected = torch.autograd.grad(wanted, list(exact.values()), [dy.double() for dy in upstream])
    for y, exact_y in zip((*results, *found), (*wanted, *expected), strict=True):
        assert_close(y.detach().cpu().double(), exact_y.detach(), rtol=1e-5, atol=1e-5)
    assert {(call.backend, call.reason) for call in calls} == {(backend.name, None)}
    assert sample.op.steps or len(calls) == 2, "a forward and a backward"


def test_the_backend_of_a_row_of_ci_is_under_test(request: pytest.FixtureRequest) -> None:
    """Otherwise a row without its device would pass, because the tests above would not run."""
    from conftest import backends

    name = os.environ.get(ROW)
    assert name is None or name in [backend.name for backend in backends(request.config)]


# -- ci.yml


def jobs() -> list[dict[str, Any]]:
    """Returns the jobs that have a row per backend: without and with a device."""
    found = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    return [found[name] for name in ("test", "gpu")]


def rows() -> Iterator[dict[str, Any]]:
    """Yields the rows of the jobs. A row of `include` adds one, because it changes a value."""
    for job in jobs():
        matrix = job["strategy"]["matrix"]
        yield from ({"backend": backend, "run": run} for backend in matrix.get("backend", ()) for run in matrix["run"])
        yield from matrix["include"]


def commands(run: str) -> Iterator[str]:
    """Yields the command lines with pytest that a command runs: those of the targets of make, or of a script."""
    if run.startswith(".ci/run "):
        job = re.search(rf"^ +{run.split()[1]}\) (.*) ;;", (ROOT / ".ci/run").read_text(), re.MULTILINE)
        yield from commands(job[1]) if job else ()
    elif run.startswith("make "):
        text = "".join((ROOT / name).read_text() for name in ("Makefile", "npu.mk"))
        for target in run.split()[1:]:
            recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
            for line in recipe[1].splitlines() if recipe else ():
                yield from commands(line.strip())
    elif run.startswith("scripts/"):
        yield from re.findall(r"^.*-m pytest .*$", (ROOT / run.split()[0]).read_text(), re.MULTILINE)
    elif "-m pytest " in run:
        yield run


def runs_this_file(command: str) -> bool:
    """Whether a command line runs this file, by its name or because it names no file."""
    return str(FILE) in command or "tests/" not in command


def test_rows_of_ci_are_the_backends_with_an_entry_point() -> None:
    assert {row["backend"] for row in rows()} == BUNDLED


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: f"{row['backend']}: {row['run']}")
def test_each_row_of_ci_runs_the_ops_of_several_tensors(row: dict[str, Any]) -> None:
    assert any(map(runs_this_file, commands(row["run"])))


@pytest.mark.parametrize(
    ("run", "expected"),
    [("make demo lint", False), ("make test-rocm", False), (".ci/run quick", False), (".ci/run npu", True)],
)
def test_commands_of_a_row_are_found(run: str, expected: bool) -> None:
    assert any(map(runs_this_file, commands(run))) is expected


def test_every_row_names_its_backend_in_the_environment() -> None:
    assert {job["env"][ROW] for job in jobs()} == {"${{ matrix.backend }}"}
