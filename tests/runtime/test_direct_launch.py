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
    """Numbers that depend on the rows are computed for each launch. Tensors may be given as addresses."""
    launcher = make_launcher(flat)
    launches = direct_launch(COMPILED, launcher, lambda rows: 3 * rows, 2, [99, lambda rows: rows + 1])
    assert launches is not None
    assert launcher.launched == [], "preparing a direct launch launches nothing"
    tensors = torch.zeros(4), torch.zeros(4)
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    given = (launches[0], tensors), (launches[1], addresses)
    for stream, rows, (launch, pointers) in itertools.product((5, 6), (10, 20), given):
        launch(stream, rows, *pointers)
        arguments, start = (*addresses, 99, rows + 1), (3 * rows, 1, 1, stream, 1234)
        if flat:
            assert launcher.launched[-1] == (*start, False, 4, 1, 0, None, None, None, *arguments)
        else:
            assert launcher.launched[-1] == (*start, (4, 1, 0), None, None, None, b"iPP", arguments)
    assert launcher.calls == 1


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
