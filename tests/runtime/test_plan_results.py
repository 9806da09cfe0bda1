"""Plans that pass the checks compute right results."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tridal
from backend_helpers import FakeBackend
from tridal.devices import registry
from tridal.devices.types import KernelConfig, LaunchPlan
from tridal.errors import PlanError


def configurations() -> st.SearchStrategy[KernelConfig]:
    sizes = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 32, 64])
    return st.builds(
        KernelConfig,
        st.sampled_from(["whole_row", "column_loop", "cooperative"]),
        rows=sizes,
        cols=sizes,
        num_stages=st.integers(0, 3),
        programs_per_row=st.sampled_from([1, 1, 1, 2]),
        peel=st.booleans(),
        exp2_bias=st.sampled_from([None, 0.0, -5e-8]),
        persistent=st.booleans(),
        reload=st.booleans(),
    )


@pytest.mark.usefixtures("fresh_registry")
@pytest.mark.parametrize("dim", [0, 1])
def test_every_plan_that_passes_computes_the_right_result(dim: int) -> None:
    """Runs random plans for random shapes in the interpreter."""
    interpreter = registry.get("interpreter")
    if interpreter.unavailable() is not None:
        pytest.skip("needs the interpreter")
    forced = FakeBackend("forced", device_type="cpu", interpreted=True, count=1)
    forced.schedules, forced.features = interpreter.schedules | {"cooperative"}, interpreter.features
    registry.register(forced)
    passed = []

    @given(configurations(), st.integers(1, 9), st.integers(1, 40), st.integers(1, 12))
    @hypothesis.settings(deadline=None, max_examples=150, derandomize=True, database=None)
    def run(config: KernelConfig, rows: int, cols: int, programs: int) -> None:
        most = programs if config.persistent else None
        forced.plan = lambda *_: LaunchPlan(config, most, "forced")  # type: ignore[method-assign]
        registry.invalidate()
        x = torch.randn(rows, cols, generator=torch.Generator().manual_seed(cols))
        with tridal.use(device="forced"):
            try:
                y = tridal.softmax(x, dim)
            except PlanError:
                return
        torch.testing.assert_close(y, torch.softmax(x, dim))
        passed.append(config)

    run()
    assert {config.schedule for config in passed} >= {"whole_row", "column_loop"}
    assert {config.peel for config in passed} == ({True, False} if dim else {False})
