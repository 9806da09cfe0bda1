"""Tests the implementation under test: which functions and which backend the conformance suite runs."""

from __future__ import annotations

import pytest
import torch

import tridal
from conformance_helpers import INTERPRETER
from third_party_op import UNIT_NORM
from tridal import testing
from tridal.devices import registry, settings
from tridal.devices.types import Backend
from tridal.errors import DeviceUnavailableError, PlanError
from tridal.ops import row_maths
from tridal.testing.implementation import public_function


def test_functions_are_the_public_ones() -> None:
    assert public_function("softmax") is tridal.softmax
    assert public_function("log_softmax") is tridal.log_softmax


@pytest.mark.usefixtures("unit_norm_in_table")
@pytest.mark.parametrize("shape", [(3, 5), (), (3, 0)])
def test_registered_op_of_a_third_party_has_a_gradient(shape: tuple[int, ...]) -> None:
    public_function("unit_norm")
    x = torch.randn(shape, requires_grad=True)
    y = torch.ops.tridal.unit_norm(x, -1, torch.float32)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    expected = row_maths.compute_gradient(UNIT_NORM, torch.ones(shape), x.detach(), -1, torch.float32, 1e-6)[0]
    torch.testing.assert_close(dx, expected)


def test_unknown_op_suggests_a_similar_name() -> None:
    with pytest.raises(PlanError, match="unknown op 'log_sofmax'; did you mean 'log_softmax'"):
        public_function("log_sofmax")


def test_backend_serves_its_tensors_inside_the_context_only(backend: Backend) -> None:
    before = settings.current().device
    with testing.implementation(backend) as implementation:
        assert implementation.device.type == backend.device_type
        assert implementation.interpreted == backend.interpreted
        assert settings.current().device == backend.name
    assert settings.current().device == before


def test_overridden_backend_is_unregistered_after_a_case(backend: Backend) -> None:
    before = [entry.name for entry in registry.registered()]
    testing.run_case(testing.Case("softmax", "forward", (3, 5), plan="column_loop"), backend)
    assert [entry.name for entry in registry.registered()] == before


def test_unavailable_backend_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(INTERPRETER), "unavailable", lambda self: "not installed: triton")
    with pytest.raises(DeviceUnavailableError, match="not installed: triton"), testing.implementation(INTERPRETER):
        pass


def test_worked_example_passes_on_a_backend(backend: Backend) -> None:
    with testing.implementation(backend) as implementation:
        assert testing.worked_example(implementation).result.passed


def test_functions_to_check_are_not_interpreted_unless_somebody_says_so() -> None:
    assert not testing.Implementation(torch.device("cpu"), lambda op: torch.softmax).interpreted
