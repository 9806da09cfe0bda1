"""Direct launches, tested with launchers that pass their arguments on as Triton's versions do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
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


def make_launcher(flat: bool) -> Any:
    """Returns a launcher class. `flat` passes the kernel's arguments one by one, else they are one tuple."""

    class Launcher:
        launched: list[Any] = []  # noqa: RUF012
        calls = 0

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


def passing(arguments: Callable[[tuple[Any, ...]], tuple[Any, ...]], **attributes: Any) -> Any:
    """Returns a launcher class that passes other arguments on to its compiled part."""

    class Launcher:
        def __init__(self, *_: Any) -> None:
            self.launch: Any = None
            vars(self).update(attributes)

        def __call__(self, *given: Any) -> None:
            self.launch(*arguments(given))

    return Launcher


@pytest.mark.parametrize(
    "launcher",
    [
        passing(lambda given: (given[0] + 1, *given[1:])),
        passing(lambda given: (given[3], "more", *reversed(given[9:]))),
        passing(lambda given: ("no stream", *given[9:])),
        passing(lambda given: ("no stream", given[9:])),
        passing(lambda given: (given[9].data_ptr(),)),
        passing(lambda given: given, global_scratch_size=64),
    ],
    ids=["other_programs", "other_order", "flat_without_stream", "tuple_without_stream", "reads_tensors", "scratch"],
)
def test_a_launcher_that_does_something_unknown_gets_no_direct_launch(launcher: Any) -> None:
    assert direct_launch(COMPILED, launcher, 7, 2, [99]) is None
