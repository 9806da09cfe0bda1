"""The texts of pictures: short numbers and shapes, captions, and descriptions for readers who cannot see a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tridal.benchmarks.plot_style import TIMES, title_of
from tridal.benchmarks.providers import OURS, PROVIDERS
from tridal.benchmarks.report import describe_conditions, geometric_mean, is_cpu, number, values
from tridal.benchmarks.results import Rows, distinct

_OWN = ("torch", "tridal")  # distributions whose versions every caption has
UNITS = {"share_of_copy": "share of copy (1.0 = as fast as y.copy_(x))", "gbps": "useful traffic in GB/s"}
"""What a column of the results is called in a picture."""


def compact(number: int) -> str:
    """Returns a number as text, multiples of 1024 and of 1024 * 1024 as "1k" and "1M"."""
    for unit, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if number >= unit and number % unit == 0:
            return f"{number // unit}{letter}"
    return str(number)


def shape_label(shape: str) -> str:
    """Returns the label of a workload in two lines, with compact numbers and without its dimension."""
    sizes, _, rest = shape.partition(" ")
    text = f"\n{TIMES}".join(
        [compact(int(sizes.split("x")[0])), TIMES.join(compact(int(n)) for n in sizes.split("x")[1:])]
    )
    return text + (" slice" if "slice" in rest else "")


def describe_run(document: Mapping[str, Any]) -> str:
    """Returns the device of a run and the versions that were measured."""
    machine = document["machine"]
    versions = {"tridal": machine["tridal"], "PyTorch": machine["torch"], "Triton": machine["triton"]}
    for name, version in document["providers"].items():
        if name not in PROVIDERS or PROVIDERS[name].distribution not in _OWN:
            versions[name] = version
    found = ", ".join(f"{name} {version.partition('+')[0]}" for name, version in versions.items() if version)
    return f"{machine['name']}, {found}."


def describe_rates(machine: Mapping[str, Any], column: str) -> str:
    """Explains what a picture of rates or shares shows."""
    if is_cpu(machine):
        return f"Measured on {describe_conditions(machine)}."
    explained = "Share of copy: rate of useful traffic divided by that of y.copy_(x) on the same shape, L2 flushed."
    return explained if column == "share_of_copy" else "L2 cache flushed between calls."


def summarize(rows: Rows, names: Sequence[str], column: str) -> str:
    """Returns the geometric mean of each provider's values, and the range of tridal's, as text for a description."""
    parts, total = [], len(distinct(rows, "shape"))
    for name in names:
        if not (found := values(rows, column, provider=name)):
            continue
        low, mean, high = (number(value, column) for value in (min(found), geometric_mean(found), max(found)))
        notes = [f"{low} to {high}"] if name == OURS and low != high else []
        notes += [f"{len(found)} of {total} shapes"] if len(found) < total else []
        parts.append(f"{title_of(name)} {mean}" + (f" ({', '.join(notes)})" if notes else ""))
    return f"geometric mean {', '.join(parts)}"
