"""Runs cooperative plans in Triton's interpreter: the programs of a launch take turns, in a random order.

Triton's interpreter runs one program after another, so programs that wait for each other would never end. Here each
program is a thread, one of which runs at a time. It lets others run when it reads a word that may change.
"""

from __future__ import annotations

import contextvars
import inspect
import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any
from unittest import mock

import tridal
from tridal.devices import registry
from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Probe, Problem
from tridal_interpreter import Interpreter

MAX_TURNS = 20_000
"""Turns of a launch, after which its programs are taken for waiting forever."""


class CooperativeInterpreter(Interpreter):
    """The interpreter with cooperative plans, for kernels whose statistics programs can exchange."""

    name = "turns"
    schedules = frozenset({"whole_row", "column_loop", "cooperative"})
    devices: Mapping[str, DeviceProperties] = {
        "interpreter": DeviceProperties("a test", "interpreter", 1, max_programs=64)
    }

    def __init__(self, config: KernelConfig, groups: int) -> None:
        self.config, self.groups = config, groups

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        config, vector = self.config, problem.vector
        loops = config.schedule == "column_loop"
        cooperates = 0 < problem.statistics < 3 and problem.accumulator == 4 and (loops or problem.layout == "row")
        if loops:
            config = replace(config, peel=config.peel and problem.layout == "row" and problem.statistics_only)
        cols = problem.cols // vector * vector if config.peel else problem.cols
        if not cooperates or cols <= config.cols or (config.peel and problem.column_writes):
            return super().plan(problem, device, probe, options)
        blocks = math.ceil(cols / config.cols)
        config = replace(config, programs_per_row=min(blocks, config.programs_per_row) if loops else blocks)
        programs = self.groups * config.programs_per_row if config.persistent else None
        return LaunchPlan(config, programs, "a test", occupancy=64)


@contextmanager
def cooperative(config: KernelConfig, groups: int = 2, seed: int = 0) -> Iterator[None]:
    """Within this context, rows are computed by cooperative programs of a configuration, if they can be."""
    from triton.runtime import interpreter

    builder, executor = type(interpreter.interpreter_builder), interpreter.GridExecutor
    call, load, order = executor.__call__, builder.create_masked_load, random.Random(seed)

    def call_in_turns(self: Any, *arguments: Any, **keywords: Any) -> None:
        self.fn = _in_turns(self.fn, interpreter.interpreter_builder, order)
        call(self, *arguments, **keywords)

    def load_in_turns(
        self: Any, pointers: Any, mask: Any, other: Any, cache: Any, eviction: Any, volatile: bool
    ) -> Any:
        if volatile and isinstance(threading.current_thread(), _Program):
            threading.current_thread().pause()
        return load(self, pointers, mask, other, cache, eviction, volatile)

    backend = CooperativeInterpreter(config, groups)
    registry.register(backend)
    try:
        with (
            mock.patch.object(executor, "__call__", call_in_turns),
            mock.patch.object(builder, "create_masked_load", load_in_turns),
            tridal.use(device=backend.name),
        ):
            yield
    finally:
        registry.unregister(backend.name)


class _Program(threading.Thread):
    """A program of a launch. It runs during its turns."""

    def __init__(self, run: Callable[..., None], arguments: dict[str, Any], builder: Any) -> None:
        super().__init__(daemon=True)
        self._context, self._run, self._arguments = contextvars.copy_context(), run, arguments
        self._builder, self._index = builder, builder.grid_idx
        self._turn, self._end = threading.Semaphore(0), threading.Semaphore(0)
        self.error: BaseException | None = None
        self.ended = False

    def run(self) -> None:
        self._turn.acquire()
        try:
            self._context.run(self._run, **self._arguments)
        except BaseException as error:
            self.error = error
        self.ended = True
        self._end.release()

    def pause(self) -> None:
        """Ends a turn. Called by the thread of the program."""
        self._end.release()
        self._turn.acquire()

    def take_turn(self) -> None:
        """Runs the program until it pauses or ends."""
        self._builder.grid_idx = self._index
        self._turn.release()
        self._end.acquire()
        if self.error is not None:
            raise self.error


def _in_turns(run: Callable[..., None], builder: Any, order: random.Random) -> Any:
    """Returns a function that Triton's interpreter calls for each program. The last call runs all of them."""
    programs: list[_Program] = []

    def turns(**arguments: Any) -> None:
        add(arguments)

    def add(arguments: dict[str, Any]) -> None:
        programs.append(_Program(run, arguments, builder))
        if len(programs) < math.prod(builder.grid_dim):
            return
        for program in programs:
            program.start()
        waiting = list(programs)
        for _ in range(MAX_TURNS):
            program = order.choice(waiting)
            program.take_turn()
            if program.ended:
                waiting.remove(program)
            if not waiting:
                return
        raise AssertionError(f"{len(waiting)} of {len(programs)} programs wait forever")

    # Triton's interpreter looks for the modules of its language in the globals of the function.
    found: Any = FunctionType(turns.__code__, run.__globals__, run.__name__, None, turns.__closure__)  # type: ignore[attr-defined]
    found.__signature__ = inspect.signature(run)
    return found
