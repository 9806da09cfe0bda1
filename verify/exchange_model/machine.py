"""The state of a launch: the workspace, the writes in flight, and where each warp of each program is.

The model assumes this of a device, and nothing else:

- Accesses of one 64-bit slot are atomic, and all warps see them in one order. Nothing comes between the load and the
  store of an atomic.
- The accesses of one vector are performed in any order, and the warps of a program at any speed between their meetings.
- A warp waits for what it loads or adds before it goes on: its next step needs the result, and warps do not speculate.
  (Only a claim is loaded before it is needed. No word is published in between.)
- If the launch is `delayed`, a write whose result is not used is performed at any later time, also after a meeting.
  Only accesses of the same slot wait for it: those of the same warp, and after a meeting those of the whole program.
- Programs start in the order of their numbers, `resident` of them at first, and one more for each one that has ended.
- A launch starts when the one before has ended, so its workspace is what that one left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from exchange_model.launches import Launch
from exchange_model.source import Edit
from exchange_model.warp import Warp, start

Word = int
Slot = Any
"""The number of a slot, or (slot, half)."""


class Event(NamedTuple):
    """A step of a program, for a trace."""

    program: int
    warp: int
    location: str
    what: str
    slot: Slot
    word: Word


class Fault(Exception):
    """A violated property, with the steps that lead to it."""

    def __init__(self, message: str, trace: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message, self.trace = message, trace


class Write(NamedTuple):
    """A write in flight. `seen_by` are the warps of its program whose accesses of the slot wait for it."""

    slot: Slot
    word: Word
    kind: str
    program: int
    seen_by: frozenset[int]
    location: str


class State:
    """A state of a launch. It changes in place; `copy` and `key` are for an exploration."""

    def __init__(self, memory: list[Word], warps: list[Warp]) -> None:
        self.memory, self.warps = memory, warps
        self.found: list[tuple[Any, ...] | None] = [None] * len(warps)
        """For each warp: the results of the elements of its vector so far."""
        self.in_flight: list[Write] = []
        self.written: frozenset[tuple[int, int]] = frozenset()
        """The cells of the output that are written, and by which of the warps."""
        self.retries = [0] * len(warps)
        """For each warp: how often a loop of it began another iteration since the last write. Not part of `key`."""

    def copy(self) -> State:
        """Returns a copy. Warps are immutable, if the launch is explored."""
        other = State.__new__(State)
        other.memory, other.warps, other.found = self.memory[:], self.warps[:], self.found[:]
        other.in_flight, other.written, other.retries = self.in_flight[:], self.written, self.retries[:]
        return other

    def key(self) -> Any:
        """Returns everything that the future depends on."""
        in_flight = tuple(sorted(self.in_flight, key=lambda write: str(write.slot))) if self.in_flight else ()
        return tuple(self.memory), tuple(map(id, self.warps)), tuple(self.found), in_flight


class Machine:
    """The steps that the warps of a launch can take, and the properties that must hold."""

    def __init__(self, launch: Launch, edits: tuple[Edit, ...] = (), live: bool = False) -> None:
        self.launch = launch
        self.slots, self.length = launch.workspace()
        self.programs = launch.programs
        self.owners = [(p, w) for p in range(self.programs) for w in range(launch.warps_of(p))]
        self.members = [[t for t, (p, _) in enumerate(self.owners) if p == program] for program in range(self.programs)]
        self.expected = launch.expected()
        self.starts = [start(launch, p, w, edits, self.slots, live) for p, w in self.owners]

    def initial(self) -> State:
        """Returns the state before the first step."""
        return State([0] * self.length, [begin() for begin in self.starts])

    def running(self, state: State) -> int:
        """Returns the number of programs that have started."""
        resident = self.launch.resident or self.programs
        if resident >= self.programs:
            return self.programs
        ended = sum(all(state.warps[t].request is None for t in members) for members in self.members)
        return min(self.programs, resident + ended)

    def settle(self, state: State, changed: int | None = None) -> bool:
        """Takes all steps of the program `changed`, or of all, that no other program can see.

        Returns False if a loop that waits begins another iteration. The last iteration changed nothing, so an
        exploration drops the state: the one before the iteration is explored.
        """
        retried, running = False, self.running(state)
        for program in range(running) if changed is None else (changed,):
            members, moved = self.members[program], True
            while moved:
                moved = False
                for t in members:
                    request = state.warps[t].request
                    if request is None or request[0] in ("load", "add", "meet"):
                        continue
                    if request[0] in ("store", "swap") and not self.launch.delayed:
                        continue
                    if request[0] == "retry":
                        retried = True
                        state.retries[t] += 1
                    self._step(state, t, request)
                    moved = True
                requests = [state.warps[t].request for t in members]
                if all(request is not None and request[0] == "meet" for request in requests):
                    self._meet(state, members, requests)
                    moved = True
        started = running < self.programs and self.running(state) > running
        return (not started or self.settle(state)) and not retried

    def _step(self, state: State, t: int, request: tuple[Any, ...]) -> None:
        program, warp = self.owners[t]
        if request[0] == "write":
            self._check_output(state, t, request[1], request[2])
        elif request[0] in ("store", "swap"):
            for slot, word in zip(request[1], request[2], strict=True):
                self._check_bounds(slot)
                location = state.warps[t].location
                state.in_flight.append(Write(slot, word, request[0], program, frozenset([warp]), location))
        state.warps[t] = state.warps[t].advance(None)

    def _meet(self, state: State, members: list[int], requests: list[Any]) -> None:
        locations = sorted(
            {f"{request[1]} in {state.warps[t].location}" for t, request in zip(members, requests, strict=True)}
        )
        program = self.owners[members[0]][0]
        if len(locations) > 1:
            raise Fault(f"warps of program {program} wait at different barriers: {', '.join(locations)}")
        payloads = tuple(request[2] for request in requests)
        for t in members:
            state.warps[t] = state.warps[t].advance(payloads)
        all_warps = frozenset(range(len(members)))
        state.in_flight = [w._replace(seen_by=all_warps) if w.program == program else w for w in state.in_flight]

    def actions(self, state: State) -> Iterator[tuple[int, int]]:
        """Yields the next steps: (warp, element of its vector), or (-1, write in flight)."""
        yield from ((-1, k) for k in self.writes(state))
        for program in range(self.running(state)):
            for t in self.members[program]:
                yield from ((t, i) for i in self.elements(state, t))

    def writes(self, state: State) -> Iterator[int]:
        """Yields the writes in flight that can be performed: those of one program to one slot are in order."""
        earlier = set()
        for k, write in enumerate(state.in_flight):
            if (write.program, write.slot) not in earlier:
                earlier.add((write.program, write.slot))
                yield k

    def elements(self, state: State, t: int) -> Iterator[int]:
        """Yields the elements of a warp's vector that it can access next."""
        request, found = state.warps[t].request, state.found[t]
        if request is None or request[0] == "meet":
            return
        slots = (request[1],) if request[0] == "add" else request[1]
        program, warp = self.owners[t]
        blocked = {w.slot for w in state.in_flight if w.program == program and warp in w.seen_by}
        for i, slot in enumerate(slots):
            if (found is None or found[i] is None) and slot not in blocked:
                yield i
                if self.launch.ordered:
                    return

    def apply(self, state: State, action: tuple[int, int]) -> Event:
        """Takes a step."""
        t, i = action
        if t < 0 or (state.warps[t].request or ("",))[0] != "load":
            state.retries = [0] * len(state.warps)
        if t < 0:
            write = state.in_flight.pop(i)
            self._store(state, write.slot, write.word, write.kind, write.program)
            return Event(
                write.program, min(write.seen_by), write.location, f"delayed {write.kind}", write.slot, write.word
            )
        program, warp = self.owners[t]
        kind, slots, *rest = state.warps[t].request or ()
        location = state.warps[t].location
        slot = slots if kind == "add" else slots[i]
        self._check_bounds(slot)
        if kind == "load":
            word: Any = _half(state.memory, slot) if isinstance(slot, tuple) else state.memory[slot]
        elif kind == "add":
            word = state.memory[slot]
            state.memory[slot] += rest[0]
            state.warps[t] = state.warps[t].advance(word)
            return Event(program, warp, location, "add", slot, state.memory[slot])
        else:
            word = rest[0][i]
            self._store(state, slot, word, kind, program)
        found = list(state.found[t] or [None] * len(slots))
        found[i] = word
        if None in found:
            state.found[t] = tuple(found)
        else:
            state.found[t] = None
            state.warps[t] = state.warps[t].advance(tuple(found) if kind == "load" else None)
        return Event(program, warp, location, kind, slot, word)

    def _store(self, state: State, slot: Slot, word: Word, kind: str, program: int) -> None:
        if isinstance(slot, tuple):
            low, high = (word, _half(state.memory, (slot[0], 1))) if slot[1] == 0 else (state.memory[slot[0]], word)
            state.memory[slot[0]] = (high << 32 if slot[1] else state.memory[slot[0]] >> 32 << 32) | (low & 0xFFFFFFFF)
            return
        if kind == "swap" and slot < self.launch.tiles * self.slots and state.memory[slot] != 0:
            raise Fault(f"program {program} overwrites a word in {self.name(slot)}: it is lost")
        state.memory[slot] = word

    def _check_bounds(self, slot: Slot) -> None:
        number = slot[0] if isinstance(slot, tuple) else slot
        if not 0 <= number < self.length:
            raise Fault(f"slot {number} is outside of the workspace of {self.length} slots")

    def _check_output(self, state: State, t: int, name: str, cells: tuple[tuple[int, float], ...]) -> None:
        program, warp = self.owners[t]
        for cell, number in cells:
            if number != self.expected[name][cell]:
                wrong = f"{name} statistic of element {cell} is {number}, not {self.expected[name][cell]}"
                raise Fault(f"program {program} read a stale or torn word: the {wrong}")
            if name == "first":
                if (cell, warp) in state.written:
                    raise Fault(f"element {cell} is computed twice")
                state.written |= {(cell, warp)}

    def stuck(self, state: State) -> bool:
        """Returns whether all warps wait: those in loops have read all that is written."""
        waiting = (
            warp.request is None or warp.request[0] == "meet" or state.retries[t] > 1 or p >= self.running(state)
            for t, ((p, _), warp) in enumerate(zip(self.owners, state.warps, strict=True))
        )  # fmt: skip
        return not state.in_flight and all(waiting)

    def ended(self, state: State) -> bool:
        """Returns whether the launch has ended."""
        return not state.in_flight and all(warp.request is None for warp in state.warps)

    def check_end(self, state: State) -> None:
        """Checks a launch that has ended: each element is computed, and the workspace is zero."""
        for p, w in self.owners:
            cells = {cell for cell, warp in state.written if warp == w}
            missing = [cell for cell in self.launch.cells(p) if cell not in cells]
            if missing:
                raise Fault(f"elements {missing} are not computed")
        for slot, word in enumerate(state.memory):
            if word != 0:
                raise Fault(f"the workspace is not zero at the end: {self.name(slot)} holds {word & 2**64 - 1:#x}")

    def name(self, slot: Slot) -> str:
        """Returns what a slot is for."""
        if isinstance(slot, tuple):
            return f"the {('low', 'high')[slot[1]]} half of {self.name(slot[0])}"
        counter = self.launch.tiles * self.slots
        if slot < counter:
            return f"slot {slot % self.slots} of tile {slot // self.slots}"
        if slot < counter + 2:
            return ("the number of claimed tiles", "the number of finished groups")[slot - counter]
        kinds = ("claim 0", "claim 1", "the number of finished programs")
        return f"{kinds[(slot - counter - 2) % 3]} of group {(slot - counter - 2) // 3}"


def _half(memory: list[Word], slot: tuple[int, int]) -> Word:
    """Returns half of a word, with the sign of an int32."""
    half = memory[slot[0]] >> 32 if slot[1] else memory[slot[0]] & 0xFFFFFFFF
    return (half & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
