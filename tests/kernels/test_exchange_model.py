"""The exchange between programs: a model of it has no fault in any interleaving, and finds each seeded fault."""

from __future__ import annotations

import pytest

from exchange_model.explore import explore, run
from exchange_model.faults import FAULTS, SeededFault
from exchange_model.launches import LONG, MANY, SHORT, Launch
from exchange_model.source import Edit
from processes import python

SEEDS = 3


@pytest.mark.parametrize("launch", SHORT, ids=str)
def test_all_interleavings(launch: Launch) -> None:
    result = explore(launch)
    assert result.fault is None, "\n".join((*result.fault.trace, result.fault.message))
    assert result.states > 100


@pytest.mark.parametrize("launch", LONG, ids=str)
def test_all_interleavings_of_more_steps(launch: Launch, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--matrix"):
        pytest.skip("takes up to a minute: run with --matrix")
    test_all_interleavings(launch)


@pytest.mark.parametrize("launch", MANY, ids=str)
def test_random_orders_of_many_programs(launch: Launch, pytestconfig: pytest.Config) -> None:
    matrix = pytestconfig.getoption("--matrix")
    if launch not in MANY[:3] and not matrix:
        pytest.skip("run with --matrix")
    for seed in range(SEEDS if matrix else 1):
        result = run(launch, seed)
        assert result.fault is None, "\n".join((*result.fault.trace, f"seed {seed}: {result.fault.message}"))


@pytest.mark.parametrize("seeded", FAULTS, ids=lambda seeded: seeded.name)
def test_seeded_fault_is_found(seeded: SeededFault) -> None:
    fault = explore(seeded.launch, seeded.edits).fault
    assert fault is not None
    assert seeded.found in fault.message
    assert fault.trace
    assert all(step.startswith("program ") for step in fault.trace)


@pytest.mark.parametrize(
    "launch", dict.fromkeys(s.launch for s in FAULTS if s.edits and s.launch not in SHORT), ids=str
)
def test_launch_of_a_seeded_fault_has_none_without_it(launch: Launch, pytestconfig: pytest.Config) -> None:
    if (launch.delayed or launch.tiles * launch.groups > 4) and not pytestconfig.getoption("--matrix"):
        pytest.skip("takes up to a minute: run with --matrix")
    assert explore(launch).fault is None


@pytest.mark.parametrize(
    ("name", "launch"),
    [
        ("early clear by groups that claim", Launch(16, 3)),
        ("missing barrier at the end", Launch(16, 3, groups=2)),
        ("one slot for claims", Launch(9, 6)),
    ],
)
def test_random_order_of_many_programs_finds_a_fault(name: str, launch: Launch) -> None:
    (edits,) = [seeded.edits for seeded in FAULTS if seeded.name == name]
    fault = run(launch, 0, edits).fault
    assert fault is not None
    assert "deadlock" in fault.message


def test_edit_of_a_text_that_is_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="contains 0 times, not once: 'missing text'"):
        explore(Launch(2, 1), (Edit("exchange", "missing text", ""),))


def test_loop_that_uses_values_of_the_last_iteration_is_refused() -> None:
    with pytest.raises(AssertionError, match="reads word of the last one"):
        explore(
            Launch(2, 1, persistent=False),
            (Edit("exchange", "word, done = _poll(slots + index, valid)", "done, word = word, done"),),
        )


def test_command_lists_launches_and_faults_without_torch_or_triton() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from exchange_model import __main__ as command\n"
        "command.SHORT, command.MANY, command.FAULTS = command.SHORT[2:4], (), command.FAULTS[:3]\n"
        "sys.argv = ['exchange_model', '--json']\n"
        "command.main()"
    )
    done = python("-c", code, new=True)
    assert done.stdout.count('"kind": "all interleavings"') == 2
    assert done.stdout.count('"kind": "seeded fault"') == 3
