"""Explores the interleavings of a launch: all of them for a few programs, or random ones for many programs."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from exchange_model.launches import Launch
from exchange_model.machine import Event, Fault, Machine, State
from exchange_model.source import Edit


@dataclass(frozen=True)
class Result:
    """The result of an exploration: the number of states or steps, and the fault that it found, if any."""

    states: int
    steps: int
    fault: Fault | None


@dataclass
class _Visit:
    """A state on the path from the first one."""

    key: object
    state: State
    actions: Iterator[tuple[int, int]]
    event: Event | None
    can_end: bool = False


def explore(launch: Launch, edits: tuple[Edit, ...] = ()) -> Result:
    """Visits all states of a launch, or those before the first fault.

    Iterations of a loop that waits are explored only if they leave the loop: others change nothing. A state is at rest
    if no warp is within such an iteration. If the launch cannot end from a state at rest, that is a deadlock.
    """
    machine = Machine(launch, edits)
    can_end: dict[object, bool] = {}
    steps = 0
    path: list[_Visit] = []
    try:
        state = machine.initial()
        machine.settle(state)
        path.append(_Visit(state.key(), state, machine.actions(state), None))
        while path:
            visit = path[-1]
            action = next(visit.actions, None)
            if action is None:
                can_end[visit.key] = visit.can_end
                if not visit.can_end and _at_rest(visit.state):
                    raise Fault("deadlock: " + waits(machine, visit.state))
                path.pop()
                if path:
                    path[-1].can_end |= visit.can_end
                continue
            steps += 1
            state = visit.state.copy()
            path.append(_Visit(None, state, iter(()), None))  # the last step of a trace, if it is a fault
            event = path[-1].event = machine.apply(state, action)
            goes_on = machine.settle(state, event.program)
            path.pop()
            if not goes_on:
                continue
            key = state.key()
            if key not in can_end:
                if machine.ended(state):
                    path.append(_Visit(None, state, iter(()), event))
                    machine.check_end(state)
                    path.pop()
                    can_end[key] = True
                else:
                    can_end[key] = False
                    path.append(_Visit(key, state, machine.actions(state), event))
                    continue
            visit.can_end |= can_end[key]
    except Fault as fault:
        events = [visit.event for visit in path if visit.event is not None]
        return Result(len(can_end), steps, Fault(fault.message, trace(machine, events)))
    return Result(len(can_end), steps, None)


def _at_rest(state: State) -> bool:
    return not any(
        warp.trying or (found is not None and warp.waiting)
        for warp, found in zip(state.warps, state.found, strict=True)
    )


def run(launch: Launch, seed: int, edits: tuple[Edit, ...] = ()) -> Result:
    """Runs a launch once, in a random order of steps. Warps have very different speeds, which change at times."""
    machine, rng, steps = Machine(launch, edits, live=True), random.Random(seed), 0
    events: deque[Event] = deque(maxlen=60)
    try:
        state = machine.initial()
        machine.settle(state)
        while not machine.ended(state):
            running = [t for p in range(machine.running(state)) for t in machine.members[p]]
            speeds = [10 ** rng.uniform(-3, 0) for _ in running]
            flight = 10 ** rng.uniform(-3, 0) * len(running)  # the speed of writes in flight
            for t in rng.choices([*running, -1], [*speeds, flight], k=20 * len(running)):
                choices = list(machine.writes(state) if t < 0 else machine.elements(state, t))
                if choices:
                    events.append(machine.apply(state, (t, rng.choice(choices))))
                    machine.settle(state, events[-1].program)
                    steps += 1
            if machine.stuck(state) and not machine.ended(state):
                raise Fault("deadlock: " + waits(machine, state))
        machine.check_end(state)
    except Fault as fault:
        return Result(steps, steps, Fault(fault.message, trace(machine, list(events))))
    return Result(steps, steps, None)


def waits(machine: Machine, state: State) -> str:
    """Describes where each warp that has not ended waits."""
    waiting = []
    for (program, warp), at in zip(machine.owners, state.warps, strict=True):
        if program >= machine.running(state):
            waiting.append(f"program {program} has not started")
        elif at.request is not None:
            what = ", ".join(map(machine.name, at.request[1])) if at.request[0] == "load" else at.request[1]
            waiting.append(f"program {program} warp {warp} waits in {at.location} for {what}")
    return "; ".join(waiting)


def trace(machine: Machine, events: list[Event]) -> tuple[str, ...]:
    """Returns a line for each step."""
    return tuple(
        f"program {e.program} warp {e.warp} {e.location}: {e.what} {machine.name(e.slot)}: {e.word & 2**64 - 1:#x}"
        for e in events
    )
