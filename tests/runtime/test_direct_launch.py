"""Direct launches, tested with launchers that pass their arguments on as Triton's versions do."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tridal.runtime.direct_launch import direct_launch

COMPILED = SimpleNamespace(
    src=SimpleNamespace(fn=None, signature={"out": "*fp32", "in": "*fp32", "cols": "i32", "AXIS": "constexpr"}),
    metadata="metadata",
    function=1234,
    packed_metadata=(4, 1, 0),
)


def make_launcher(flat: bool, scratch: int = 0) -> Any:
    """Returns a launcher class. `flat` passes the kernel's arguments one by one, else they are one tuple."""

    class Launcher:
        launched: list[Any] = []  # noqa: RUF012
        calls = 0
        global_scratch_size = scratch

        def __init__(self, source: Any, metadata: Any) -> None:
            assert list(source.signature) == ["out", "in", "cols"]
            assert source.constants == {}
            assert metadata == "metadata"
            self.launch = lambda *arguments: Launcher.launched.append(arguments)

        def __call__(self, x: int, y: int, z: int, stream: Any, function: int, packed: Any, *rest: Any) -> None:
            Launcher.calls += 1
            hooks, arguments = rest[:3], rest[3:]
            if flat:
                self.launch(x, y, z, stream, function, False, *packed, *hooks, *arguments)
            else:
                self.launch(x, y, z, stream, function, packed, *hooks, b"iPP", arguments)

    return Launcher


@pytest.mark.parametrize("flat", [True, False])
def test_a_direct_launch_passes_the_arguments_that_the_launcher_would_pass(flat: bool) -> None:
    launcher = make_launcher(flat)
    launches = direct_launch(COMPILED, launcher, 7, 2, [99])
    assert launches is not None
    assert launcher.launched == [], "preparing a direct launch launches nothing"
    out, source = torch.zeros(4), torch.zeros(4)
    arguments = (out.data_ptr(), source.data_ptr(), 99)
    given = (launches[0], (out, source)), (launches[1], arguments[:2])
    for stream, (launch, tensors) in itertools.product((5, 6), given):
        launch(stream, 4, *tensors)
        if flat:
            assert launcher.launched[-1] == (7, 1, 1, stream, 1234, False, 4, 1, 0, None, None, None, *arguments)
        else:
            assert launcher.launched[-1] == (7, 1, 1, stream, 1234, (4, 1, 0), None, None, None, b"iPP", arguments)
    assert launcher.calls == 1


@pytest.mark.parametrize("flat", [True, False])
def test_numbers_that_depend_on_the_rows_are_computed_for_each_launch(flat: bool) -> None:
    launcher = make_launcher(flat)
    launches = direct_launch(COMPILED, launcher, lambda rows: 3 * rows, 2, [99, lambda rows: rows + 1, 5])
    assert launches is not None
    out, source = torch.zeros(4), torch.zeros(4)
    for rows in (10, 20):
        launches[0](6, rows, out, source)
        passed = launcher.launched[-1]
        assert passed[:5] == (3 * rows, 1, 1, 6, 1234)
        arguments = passed[-5:] if flat else passed[-1]
        assert arguments == (out.data_ptr(), source.data_ptr(), 99, rows + 1, 5)


def test_a_launcher_that_changes_the_number_of_programs_gets_no_direct_launch() -> None:
    class Changes(make_launcher(True)):  # type: ignore[misc]
        def __call__(self, x: int, *arguments: Any) -> None:
            super().__call__(x + 1, *arguments)

    assert direct_launch(COMPILED, Changes, 7, 2, [99]) is None


def test_a_kernel_with_scratch_memory_gets_no_direct_launch() -> None:
    assert direct_launch(COMPILED, make_launcher(True, scratch=64), 7, 2, [99]) is None


def test_a_launcher_that_reads_tensors_gets_no_direct_launch() -> None:
    class Reads:
        def __init__(self, *_: Any) -> None:
            self.launch = None

        def __call__(self, *arguments: Any) -> None:
            arguments[9].data_ptr()

    assert direct_launch(COMPILED, Reads, 7, 2, [99]) is None


@pytest.mark.parametrize(
    "passed",
    [
        lambda stream, expected: (stream, "more", *reversed(expected)),
        lambda stream, expected: ("no stream", *expected),
        lambda stream, expected: ("no stream", expected),
    ],
    ids=["other_order", "flat_without_stream", "tuple_without_stream"],
)
def test_a_launcher_with_unknown_arguments_gets_no_direct_launch(passed: Any) -> None:
    class Unknown:
        def __init__(self, *_: Any) -> None:
            self.launch = None

        def __call__(self, *arguments: Any) -> None:
            self.launch(*passed(arguments[3], arguments[9:]))  # type: ignore[misc]

    assert direct_launch(COMPILED, Unknown, 7, 2, [99]) is None
