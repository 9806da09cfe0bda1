"""One warp of a program: its next request, and the warp that follows from the request's result.

A warp's future depends on the results that it got so far, and on nothing else. So a `Known` warp is a node of a tree of
results: equal results lead to the same node, and each node runs the kernel once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from exchange_model.language import Language, Pointer, Steps, Workspace
from exchange_model.launches import Launch
from exchange_model.source import Edit, kernel


class Warp(Protocol):
    """One warp of a program."""

    request: tuple[Any, ...] | None
    """The next request, see `language`; None at the end."""
    location: str
    """The function and the line of the kernel."""
    waiting: bool
    """Whether it is in a loop that waits."""
    trying: bool
    """Whether it has loaded in this iteration of the loop."""

    def advance(self, result: Any) -> Warp:
        """Returns the warp after the result of its request."""


class Live:
    """A warp that changes in place, for a single run."""

    def __init__(self, begin: Callable[[], Steps]) -> None:
        self._steps = begin()
        self.request: tuple[Any, ...] | None = None
        self.waiting = self.trying = False
        self.send(None)
        self.location = _location(self._steps)

    def send(self, result: Any) -> None:
        """Runs the kernel to its next request."""
        if self.request is not None:
            self.waiting = self.request[0] != "done" and (self.waiting or self.request[0] == "wait")
            self.trying = self.waiting and (self.request[0] == "load" or (self.trying and self.request[0] != "retry"))
        try:
            self.request = self._steps.send(result)
        except StopIteration:
            self.request = None

    def advance(self, result: Any) -> Live:
        """Runs the kernel to its next request."""
        self.send(result)
        self.location = _location(self._steps)
        return self


class Known:
    """A node of the tree of results."""

    __slots__ = ("_begin", "_live", "_next", "_results", "location", "request", "trying", "waiting")

    def __init__(self, begin: Callable[[], Steps], results: tuple[Any, ...], live: Live) -> None:
        self._begin, self._results, self._live = begin, results, live
        self._next: dict[Any, Known] = {}
        self.request, self.location = live.request, _location(live._steps)
        self.waiting, self.trying = live.waiting, live.trying

    def advance(self, result: Any) -> Known:
        """Returns the node for a result. A node's first successor takes its generator; others run the kernel again."""
        node = self._next.get(result)
        if node is None:
            live, self._live = self._live, None  # type: ignore[assignment]
            if live is None:
                live = Live(self._begin)
                for earlier in self._results:
                    live.send(earlier)
            live.send(result)
            node = self._next[result] = Known(self._begin, (*self._results, result), live)
        return node


def _location(steps: Any) -> str:
    """Returns the innermost function of a kernel that a generator runs, and its line."""
    location = ""
    while steps is not None and steps.gi_frame is not None:
        if "/kernels/" in steps.gi_code.co_filename:
            location = f"{steps.gi_code.co_name}:{steps.gi_frame.f_lineno}"
        steps = steps.gi_yieldfrom
    return location


def start(
    launch: Launch, program: int, warp: int, edits: tuple[Edit, ...], slots: int, live: bool
) -> Callable[[], Warp]:
    """Returns a function that returns a warp before its first step. `slots` is the number of slots of a tile."""

    def language(spread: bool) -> Language:
        spread = spread and not launch.tile_in_one_warp
        return Language(program, launch.programs, warp, launch.warps_of(program), launch.layout, spread)

    arguments = launch.arguments() | {
        "x_ptr": Pointer(launch.input().ravel()),
        "first_result": Pointer("first"),
        "second_result": Pointer("second"),
        "workspace": Pointer(Workspace()),
    }
    function = kernel(language, edits, launch.block, launch.constants(slots), tuple(arguments))
    names = function.__code__.co_varnames[: function.__code__.co_argcount]  # the text lacks numbers without use

    def begin() -> Steps:
        return function(**{name: arguments[name] for name in names})  # type: ignore[no-any-return]

    if live:
        return lambda: Live(begin)
    root = Known(begin, (), Live(begin))
    return lambda: root
