"""The conformance cases, what their inputs hold, and the bounds of their errors, as records for `golden_records.py`."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any
from unittest import mock

import torch

from conformance_helpers import INTERPRETER
from tridal import testing
from tridal.devices.types import FEATURES, ITEMSIZE, SCHEDULES
from tridal.ops import table
from tridal.testing import checking
from tridal.testing.cases import Case
from tridal.testing.checking import difference
from tridal.testing.inputs import make_tensors
from tridal.testing.suite import cases

_MAX_ELEMENTS = 5_000


class AllFeatures:
    """A backend with every dtype, schedule and feature."""

    dtypes = frozenset(ITEMSIZE) - {"int64", "uint8"}
    schedules, features = frozenset(SCHEDULES), frozenset(FEATURES)
    device_type = "cpu"

    def device_count(self) -> int:
        return 2


def conformance() -> dict[str, Any]:
    """The number of cases and a checksum of their names by op, direction and plan, and what small inputs hold."""
    backend: Any = AllFeatures()
    found: dict[str, list[Case]] = {}
    for case in cases(backend):
        found.setdefault(f"{case.op} {case.direction} {case.plan}", []).append(case)
    names = {key: [len(group), checksum("\n".join(case.name for case in group))] for key, group in found.items()}
    return {"names": names, "inputs": _inputs(case for group in found.values() for case in group)}


def _inputs(cases: Iterable[Case]) -> dict[str, Any]:
    """Returns counts of the values of each op's small inputs, and a checksum of their shapes, strides and dtypes."""
    kinds: dict[tuple[Any, ...], Case] = {}
    for case in cases:
        if torch.Size(case.shape).numel() <= _MAX_ELEMENTS and case.plan == "planned":
            kinds.setdefault((case.op, case.values, case.layout, case.dtypes, case.absent, case.dims), case)
    counts: dict[str, Counter[str]] = {}
    memory: dict[str, list[str]] = {}
    for case in kinds.values():
        for name, tensor in make_tensors(case, table.ops()[case.op], torch.device("cpu")).items():
            counts.setdefault(case.op, Counter()).update(_counts(name, tensor))
            described = "absent" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"
            memory.setdefault(case.op, []).append(f"{name} {described}")
    return {op: {"layouts": checksum("\n".join(memory[op])), **dict(sorted(counts[op].items()))} for op in counts}


def _counts(name: str, tensor: torch.Tensor | None) -> dict[str, int]:
    """Returns counts and a rounded sum of the values of an input. They do not depend on the processor."""
    if tensor is None:
        return {f"{name} absent": 1}
    values = tensor.double()
    ranges = {"nan": values.isnan(), "+inf": values == torch.inf, "-inf": values == -torch.inf, "zero": values == 0}
    finite = values[values.isfinite()]
    ranges |= {"above 30": values > 30, "below -30": values < -30, "whole": values == values.round()}
    counts = {f"{name} {key}": int(chosen.sum()) for key, chosen in ranges.items() if chosen.any()}
    return {**counts, f"{name} sum of magnitudes": int(float(f"{finite.abs().sum():.3g}"))}


def bounds() -> dict[str, Any]:
    """The mean and the largest of the error bounds of a case of each op, direction and dtype, for each result."""
    found: dict[str, list[str]] = {}
    key = ""

    def recorded(result: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor, largest: float) -> Any:
        numbers = [] if bound.numel() == 0 else [bound.double().mean(), bound.max()]
        found.setdefault(key, []).extend(f"{number:.2g}" for number in numbers)
        return difference(result, exact, bound, largest)

    with mock.patch.object(checking, "difference", recorded):
        for case in cases(INTERPRETER):
            key, small = f"{case.op} {case.direction} {case.dtype}", torch.Size(case.shape).numel() <= _MAX_ELEMENTS
            if small and case.values == "normal" and case.plan == "planned" and key not in found:
                found[key] = []
                assert testing.run_case(case, INTERPRETER).passed, case.name
    return {"bounds": found}


def checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
