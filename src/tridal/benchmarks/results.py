"""Results as flat rows, and the files that hold them: JSON with all about the run, CSV with the measurements."""

from __future__ import annotations

import csv
import json
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

import torch

import tridal
from tridal.benchmarks.measuring import Measurement, Timing
from tridal.benchmarks.providers import Provider
from tridal.devices.types import Backend
from tridal.errors import TridalError

Row: TypeAlias = dict[str, Any]
"""A measurement as plain data: what `row` makes."""

_FORMAT = "tridal benchmark 1"
_PARTIAL = "results.partial.json"


class ResultsError(TridalError, ValueError):
    """A file that should hold results, and doesn't."""


def row(measurement: Measurement) -> Row:
    """A measurement as plain data. Times are in milliseconds, rates in GB/s of useful traffic."""
    point, timing = measurement.point, measurement.timing
    return {
        "group": point.group,
        "op": point.op,
        "direction": point.direction,
        "dtype": point.dtype,
        "shape": point.label,
        "rows": point.rows,
        "cols": point.cols,
        "provider": measurement.provider,
        "ms": timing.median if timing else None,
        "ms_20": timing.low if timing else None,
        "ms_80": timing.high if timing else None,
        "gbps": measurement.rate,
        "share_of_copy": measurement.share,
        "skipped": measurement.skipped,
    }


def host_row(provider: str, grad: bool, timing: Timing | None, skipped: str | None = None) -> Row:
    """A host time as plain data, in microseconds a call."""
    return {
        "provider": provider,
        "grad": grad,
        "us": timing.median if timing else None,
        "us_20": timing.low if timing else None,
        "us_80": timing.high if timing else None,
        "skipped": skipped,
    }


def document(
    device: torch.device,
    backend: Backend | None,
    providers: Sequence[Provider],
    rows: Sequence[Row],
    host: Sequence[Row],
) -> dict[str, Any]:
    """All about a run."""
    return {
        "format": _FORMAT,
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["tridal", *sys.argv[1:]]),
        "machine": machine(device, backend),
        "providers": {provider.name: provider.version for provider in providers},
        "measurements": list(rows),
        "host": list(host),
    }


def machine(device: torch.device, backend: Backend | None) -> dict[str, Any]:
    """On what it ran."""
    from importlib import metadata

    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = None
    return {
        "device": str(device),
        "name": backend.properties(device.index or 0).name if backend else f"{platform.machine()} processor",
        "backend": backend.name if backend else None,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": triton,
        "tridal": tridal.__version__,
    }


def keep(found: Mapping[str, Any], folder: Path) -> None:
    """Writes what a run has so far to results.partial.json, wholly or not at all; `save` takes that away."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{_PARTIAL}.new"
    new.write_text(json.dumps(found) + "\n")
    new.replace(folder / _PARTIAL)


def save(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes results.json, and results.csv and host.csv for what there is."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "results.json"]
    written[0].write_text(json.dumps(found, indent=1) + "\n")
    (folder / _PARTIAL).unlink(missing_ok=True)
    for name, rows in (("results.csv", found["measurements"]), ("host.csv", found["host"])):
        if rows:
            written.append(folder / name)
            with written[-1].open("w", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    return written


def load(file: Path) -> dict[str, Any]:
    """The document in a results.json.

    Raises:
        ResultsError: it cannot be read, or is something else.
    """
    try:
        found = json.loads(file.read_text())
    except OSError as error:
        raise ResultsError(f"{file}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ResultsError(
            f"{file}: not JSON: {error}; expected the results.json of a run of `tridal bench`"
        ) from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise ResultsError(f"{file}: expected the results.json of a run of `tridal bench` ({_FORMAT!r})")
    return found


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [found for found in rows if all(found[key] == value for key, value in wanted.items())]


def distinct(rows: Iterable[Row], key: str) -> list[Any]:
    """The values of a column, each once, in the order in which they come."""
    return list(dict.fromkeys(found[key] for found in rows))
