"""The exchange between programs: a model of it has no fault in any interleaving, and finds each seeded fault."""

from __future__ import annotations

import pytest

from exchange_model.explore import explore, run
from exchange_model.faults import FAULTS, SeededFault
from exchange_model.launches import LONG, MANY, SHORT, Launch

# These take 3 to 10 seconds each. Others are dynamic, too, with two warps or delayed writes.
SLOW = (Launch(2, 2), Launch(2, 4, warps=(1, 2)), Launch(2, 2, warps=(2, 1), delayed=True, ordered=True))
NIGHTLY = pytest.mark.nightly("the launches of test_all_interleavings with fewer steps, and the seeded faults")


def by_day(launches: tuple[Launch, ...], *fast: Launch) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "launch", [pytest.param(each, id=str(each), marks=() if each in fast else NIGHTLY) for each in launches]
    )


@by_day(SHORT + LONG, *(launch for launch in SHORT if launch not in SLOW))
def test_all_interleavings(launch: Launch) -> None:
    result = explore(launch)
    assert result.fault is None, "\n".join((*result.fault.trace, result.fault.message))
    assert result.states > 100


@by_day(MANY, *MANY[:3])
def test_random_orders_of_many_programs(launch: Launch, pytestconfig: pytest.Config) -> None:
    for seed in range(3 if pytestconfig.getoption("--matrix") else 1):
        result = run(launch, seed)
        assert result.fault is None, "\n".join((*result.fault.trace, f"seed {seed}: {result.fault.message}"))


@pytest.mark.parametrize("seeded", FAULTS, ids=lambda seeded: seeded.name)
def test_seeded_fault_is_found(seeded: SeededFault) -> None:
    fault = explore(seeded.launch, seeded.edits).fault
    assert fault is not None
    assert seeded.found in fault.message
    assert fault.trace


@by_day(tuple(dict.fromkeys(s.launch for s in FAULTS if s.edits and s.launch not in SHORT)))
def test_launch_of_a_seeded_fault_has_none_without_it(launch: Launch) -> None:
    assert explore(launch).fault is None
