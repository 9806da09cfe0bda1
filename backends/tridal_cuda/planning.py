"""The launch plan of a GPU: which of its tiles, with how many registers, and programs by occupancy. Arithmetic alone.

What each number comes from is told, with measurements, in docs/performance-notes.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tridal.devices.types import DeviceProperties, LaunchPlan, Probe, Problem, Resources, Tile
from tridal.errors import PlanError
from tridal_cuda import tiles
from tridal_cuda.occupancy import occupancy, registers_for
from tridal_cuda.tiles import (
    FEW_ELEMENTS,
    FEW_WAVES,
    MANY_ELEMENTS,
    REREAD_BYTES,
    SHARED_BYTES_IN_FLIGHT,
    WIDE_ROW,
    bytes_held,
)

_BYTES_IN_FLIGHT = 96 << 10  # that keep a multiprocessor's share of memory busy, loading a third of the time
_TOO_FEW_BYTES = 56 << 10  # with which it is better to share rows; and with all of those, if by a single program
_FEWER_REGISTERS = 8  # than the limit, if that spills: the compiler makes more of it at times
_FEW_SPILLS = 32  # bytes a thread that are worth one more program where programs wait for each other
_MORE_SPILLS = 64  # and that are worth it if all of them then wait only once
_HARDLY_SPILLS = 8  # and that cost nothing
_REGISTERS, _LIMITS = 255, 3  # of a thread; and limits on them that are tried, because each takes a compilation


@dataclass(frozen=True, slots=True)
class _Fit:
    """A tile with what it takes, and how many programs of it a multiprocessor holds."""

    tile: Tile
    resources: Resources
    programs: int
    arithmetic: str

    def in_flight(self, problem: Problem) -> int:
        """Bytes of the tiles that a multiprocessor holds."""
        return self.programs * bytes_held(self.tile, problem)


def plan(problem: Problem, device: DeviceProperties, probe: Probe) -> LaunchPlan:
    """Rows whole in registers where they fit, shared among programs beyond; column tiles where that can't be."""
    fit = _whole(problem, device, probe) or _shared(problem, device, probe)
    fit = fit or _fit(tiles.looped(problem, device), device, probe)
    tile, resident = fit.tile, fit.programs * device.cores
    count = problem.tiles(tile.rows)
    if tile.algorithm == "split":
        programs = min(count, resident // tile.split) * tile.split
        how = f"{tile.split} programs share a row and wait for each other, so {programs} of them are launched"
    elif tile.persistent:
        programs = min(count, resident)
        how = f"{programs} programs loop over them"
    else:
        programs = count
        how = f"a program each, {count / resident:.1f} times as many as at once"
    spilled = f"; {fit.resources.spills} bytes a thread are spilled" if fit.resources.spills else ""
    reason = (
        f"occupancy {fit.programs} = {fit.arithmetic}; {device.cores} {device.core_name}s x {fit.programs} = "
        f"{resident} programs at once; {problem.rows} rows in {count} tiles of {tile.rows} x {tile.cols}: "
        f"{how}{spilled}"
    )
    return LaunchPlan(tile, programs, reason, fit.programs, fit.resources)


def _whole(problem: Problem, device: DeviceProperties, probe: Probe) -> _Fit | None:
    """Rows in one tile, a program each; None if they are too wide, or keep more busy when they are shared."""
    tile = tiles.whole(problem, device)
    if tile is None:
        return None
    shareable = problem.layout != "inner" and tile.cols > WIDE_ROW and problem.accumulator == 4
    held = tile.edges and not tile.rereads
    if shareable and (held or problem.rows < FEW_WAVES * device.cores):
        return None  # few whatever a multiprocessor holds, so that needn't be asked
    if tile.rereads:
        fit = _limited(tile, problem, device, probe)
        busy = fit.in_flight(problem) > _BYTES_IN_FLIGHT and fit.resources.spills <= _HARDLY_SPILLS
    else:
        fit = _squeezed(_fit(tile, device, probe), _BYTES_IN_FLIGHT, problem, device, probe)
        least = _TOO_FEW_BYTES if fit.programs > 1 else _BYTES_IN_FLIGHT
        busy = fit.in_flight(problem) > least and problem.rows >= FEW_WAVES * fit.programs * device.cores
    return fit if busy or not shareable else None


def _limited(tile: Tile, problem: Problem, device: DeviceProperties, probe: Probe) -> _Fit:
    """With a limit on registers for as many programs as fill the cache, or fewer if that spills.

    More would drive each other out of it; and loads come earlier where the compiler has a limit.
    """
    wanted = -(-REREAD_BYTES // bytes_held(tile, problem))
    limits = {min(_REGISTERS, registers_for(programs, tile, device)) for programs in range(1, wanted + 1)}
    tried: list[int | None] = [*sorted(limits - {0})[:_LIMITS]]
    for most in tried or [None]:  # no limit if nobody knows how many registers there are
        fit = _fit(replace(tile, max_registers=most), device, probe)
        if fit.resources.spills <= (_HARDLY_SPILLS if problem.backward else 0):  # there a program more is worth more
            break
    return fit


def _shared(problem: Problem, device: DeviceProperties, probe: Probe) -> _Fit | None:
    """Rows in parts, with the next ones on their way while programs wait; None if not all parts can be resident."""
    if problem.accumulator == 8:
        return None  # sums of float64 don't fit the words that programs exchange
    once = _at_once(problem, device, probe)
    if once is not None:
        return once
    again = tiles.shared_again(problem, device)
    if again is not None:
        return _squeezed(_fit(again, device, probe), SHARED_BYTES_IN_FLIGHT, problem, device, probe, _HARDLY_SPILLS)
    tile = tiles.shared(problem, device)
    if tile is None:
        return None
    fit = _fit(tile, device, probe)
    while fit.programs * device.cores < fit.tile.split:
        longer = 2 * fit.tile.cols
        if fit.tile.rows * longer > tiles.widest_held(problem, device):
            return None
        fit = _fit(tiles.parted(fit.tile, longer, problem), device, probe)
    tight = _squeezed(fit, SHARED_BYTES_IN_FLIGHT, problem, device, probe, _FEW_SPILLS)
    missing = SHARED_BYTES_IN_FLIGHT / tight.in_flight(problem)
    if missing > 1 and tile.rows == 1 and not tile.edges:
        stages = min(tiles.most_stages(device) - 1, 1 + math.ceil(missing))
        piped = _fit(replace(fit.tile, num_stages=stages), device, probe)
        piped = _squeezed(piped, _BYTES_IN_FLIGHT, problem, device, probe)
        enough = max(2 * tight.programs, stages * -(-fit.tile.split // device.cores))
        return piped if piped.programs * stages >= enough else tight
    return tight


def _at_once(problem: Problem, device: DeviceProperties, probe: Probe) -> _Fit | None:
    """Parts of so few rows that all are resident, by as many warps as that allows: none takes a second one."""
    tile = tiles.at_once(problem, device)
    if tile is None:
        return None
    each = -(-tile.split * problem.rows // device.cores)
    if tile.rereads and each * bytes_held(tile, problem) > (device.shared_memory or 0):
        tile = replace(tile, rereads=False, max_registers=None)
    fit = _resident(replace(tile, num_warps=tiles.warps_for(tile.cols, FEW_ELEMENTS)), each, device, probe)
    if fit is not None and not fit.resources.spills:
        return fit
    if problem.itemsize > 2:  # what a register takes may as well stay there
        tile = replace(tile, rereads=False, max_registers=None)
    slower = _resident(replace(tile, num_warps=tiles.warps_for(tile.cols, MANY_ELEMENTS)), each, device, probe)
    return min((fit for fit in (slower, fit) if fit is not None), key=lambda fit: fit.resources.spills, default=None)


def _resident(tile: Tile, each: int, device: DeviceProperties, probe: Probe) -> _Fit | None:
    """A tile of which a multiprocessor holds `each`, with fewer registers if it has to be; None if it can't."""
    most = registers_for(each, tile, device)
    if most <= FEW_ELEMENTS:
        return None
    fit = _fit(tile, device, probe)
    if fit.programs < each:
        fit = _fit(replace(tile, max_registers=most), device, probe)
    return fit if fit.programs >= each and fit.resources.spills <= _MORE_SPILLS else None


def _squeezed(
    fit: _Fit, wanted: int, problem: Problem, device: DeviceProperties, probe: Probe, spills: int = 0
) -> _Fit:
    """With fewer registers, as long as that lets more programs in for few more `spills`, until `wanted` bytes are read.

    The compiler takes registers because it may: it is not told how many programs there should be.
    """
    while fit.in_flight(problem) < wanted:
        most = registers_for(fit.programs + 1, fit.tile, device)
        tight = replace(fit.tile, max_registers=most)
        if most < 1 or occupancy(tight, replace(fit.resources, registers=most), device)[0] <= fit.programs:
            break
        more = _fit(tight, device, probe)
        if more.resources.spills > fit.resources.spills:
            fewer = _fit(replace(tight, max_registers=most - _FEWER_REGISTERS), device, probe)
            more = min(more, fewer, key=lambda fit: fit.resources.spills)
        if more.programs <= fit.programs or more.resources.spills > fit.resources.spills + spills:
            break
        fit = more
    return fit


def _fit(tile: Tile, device: DeviceProperties, probe: Probe) -> _Fit:
    resources = probe(tile)
    programs, arithmetic = occupancy(tile, resources, device)
    if programs == 0 and tile.num_stages == 1:
        raise PlanError(f"{tile} does not fit on {device.name}: {arithmetic}")
    return _Fit(tile, resources, programs, arithmetic)
