"""Tests the implementation under test: which functions and which backend the conformance suite runs."""

from __future__ import annotations

import pytest

import tridal
from conformance_helpers import INTERPRETER
from tridal import testing
from tridal.devices import registry, settings
from tridal.devices.types import Backend
from tridal.errors import DeviceUnavailableError, PlanError
from tridal.testing.implementation import public_function


def test_functions_are_the_public_ones() -> None:
    assert public_function("softmax") is tridal.softmax
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
