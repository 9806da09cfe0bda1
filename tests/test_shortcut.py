"""The way around Triton's launcher, with launchers that pass their arguments on as Triton's versions do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tridal.runtime.direct_launch import shortcut

COMPILED = SimpleNamespace(
    src=SimpleNamespace(fn=None, signature={"out": "*fp32", "in": "*fp32", "cols": "i32", "LOG": "constexpr"}),
    metadata="metadata",
    function=1234,
    packed_metadata=(4, 1, 0),
)


def launcher(flat: bool, scratch: int = 0) -> Any:
    class Launcher:
        entered: list[Any] = []  # noqa: RUF012
        called = 0
        global_scratch_size = scratch

        def __init__(self, source: Any, metadata: Any) -> None:
            assert list(source.signature) == ["out", "in", "cols"]
            assert source.constants == {}
            assert metadata == "metadata"
            self.launch = lambda *arguments: Launcher.entered.append(arguments)

        def __call__(self, x: int, y: int, z: int, stream: Any, function: int, packed: Any, *rest: Any) -> None:
            Launcher.called += 1
            hooks, arguments = rest[:3], rest[3:]
            if flat:
                self.launch(x, y, z, stream, function, False, *packed, *hooks, *arguments)
            else:
                self.launch(x, y, z, stream, function, packed, *hooks, b"iPP", arguments)

    return Launcher


@pytest.mark.parametrize("flat", [True, False])
def test_it_enters_with_what_the_launcher_would_have_passed(flat: bool) -> None:
    made = launcher(flat)
    launch = shortcut(COMPILED, made, 7, 2, [99])
    assert launch is not None
    assert made.entered == [], "nothing was launched to find out"
    out, source = torch.zeros(4), torch.zeros(4)
    for stream in (5, 6):
        launch(stream, out, source)
        arguments = (out.data_ptr(), source.data_ptr(), 99)
        if flat:
            assert made.entered[-1] == (7, 1, 1, stream, 1234, False, 4, 1, 0, None, None, None, *arguments)
        else:
            assert made.entered[-1] == (7, 1, 1, stream, 1234, (4, 1, 0), None, None, None, b"iPP", arguments)
    assert made.called == 1


def test_a_kernel_with_scratch_memory_takes_tritons_own_way() -> None:
    assert shortcut(COMPILED, launcher(True, scratch=64), 7, 2, [99]) is None


@pytest.mark.parametrize(
    "passed",
    [
        lambda stream, expected: (stream, "more", *reversed(expected)),
        lambda stream, expected: ("no stream", *expected),
        lambda stream, expected: ("no stream", expected),
    ],
)
def test_a_launcher_that_passes_something_else_is_left_alone(passed: Any) -> None:
    class Other:
        def __init__(self, *_: Any) -> None:
            self.launch = None

        def __call__(self, *arguments: Any) -> None:
            self.launch(*passed(arguments[3], arguments[9:]))  # type: ignore[misc]

    assert shortcut(COMPILED, Other, 7, 2, [99]) is None
