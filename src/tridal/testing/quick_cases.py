"""The cases of the suite's quick mode: few and small ones that together hold every pair of traits."""

from __future__ import annotations

import heapq
import math
import zlib
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product

from tridal.devices.types import Backend
from tridal.testing.cases import Case
from tridal.testing.suite import cases

_PAIRED = ("op", "direction", "plan", "shape", "dim", "numbers")
_FEWEST_ELEMENTS = 100
"""A smaller case has one block, and is chosen for its shape only."""


def quick_cases(backend: Backend, ops: Sequence[str] | None = None) -> tuple[Case, ...]:
    """Returns few small cases that cover every pair of an op's direction or a plan override and another trait.

    They are a sixth of the cases of all ops, which `tridal.testing.cases` returns for the same arguments.

    Example:
        >>> backend = tridal.registry.available("interpreter")
        >>> quick = tridal.testing.quick_cases(backend, ["softmax"])
        >>> 0 < len(quick) < len(tridal.testing.cases(backend, ["softmax"])) / 4
        True
    """
    candidates = sorted(cases(backend, ops), key=_size)
    return tuple(
        _with_fewer_rows(case) if backend.interpreted and "lanes" in case.plan else case
        for case in (candidates[number] for number in _covering([*map(_pairs_of, candidates)]))
    )


def _size(case: Case) -> tuple[bool, int, int]:
    elements = math.prod(case.shape)
    return elements < _FEWEST_ELEMENTS, elements, zlib.crc32(case.name.encode())


def _pairs_of(case: Case) -> set[object]:
    traits = [(field.name, getattr(case, field.name)) for field in fields(case) if field.name not in _PAIRED]
    drawn = len(case.numbers) > 1  # from ranges, for all arguments at once
    traits += [(n, "drawn" if drawn and isinstance(value, (int, float)) else value) for n, value in case.numbers]
    kind = case.op, case.direction
    return {(case.shape, case.dim), (kind, case.plan), *product((kind, case.plan), traits)}


def _covering(sets: Sequence[set[object]]) -> list[int]:
    """The numbers of few sets that together hold all elements. The set with the most new ones comes first."""
    waiting, seen, found = [(-len(one), number) for number, one in enumerate(sets)], set[object](), list[int]()
    heapq.heapify(waiting)
    while waiting:
        gain, number = heapq.heappop(waiting)
        new = len(sets[number] - seen)
        if new == -gain:
            found.append(number)
            seen |= sets[number]
        elif new:
            heapq.heappush(waiting, (-new, number))
    return sorted(found)


def _with_fewer_rows(case: Case) -> Case:
    """The case with at most 7 rows, or with at most 3 in each of several dims.

    With lanes, a tile has one row, and the interpreter takes as long for it as for a tile of many rows. It runs four
    programs, so some of them have several tiles.
    """
    rank, most = len(case.shape), 7 if len(case.shape) == 2 else 3
    of_row = range(rank - case.dims, rank) if case.dims > 1 else [case.dim % rank]
    return replace(case, shape=tuple(n if i in of_row else min(n, most) for i, n in enumerate(case.shape)))
