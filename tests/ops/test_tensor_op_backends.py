"""Ops of several tensors from a third party on each backend under test, and the rows of CI, which run this file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import yaml
from torch.testing import assert_close

import tridal
from backend_helpers import BUNDLED
from op_samples import THIRD_PARTY, Sample, as_tuple
from tridal.devices.types import Backend

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


def test_each_bundled_backend_has_a_row_of_ci_that_names_it() -> None:
    jobs = yaml.safe_load((Path(__file__).parents[2] / ".github/workflows/ci.yml").read_text())["jobs"]
    rows = [jobs[name] for name in ("test", "gpu")]
    assert {job["env"][ROW] for job in rows} == {"${{ matrix.backend }}"}
    matrices = [job["strategy"]["matrix"] for job in rows]
    named = {name for matrix in matrices for name in matrix.get("backend", ())}
    assert named | {row["backend"] for matrix in matrices for row in matrix["include"]} == BUNDLED
