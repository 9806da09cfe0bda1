"""Result rows and files: JSON with everything about a run, CSV with the measurements."""

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
"""A measurement as plain data; see `row`."""

_FORMAT = "tridal benchmark 1"
_PARTIAL = "results.partial.json"


class ResultsError(TridalError, ValueError):
    """A file that was expected to contain results does not."""


def row(measurement: Measurement) -> Row:
    """Converts a measurement to plain data. Times are in milliseconds, rates in GB/s of useful traffic."""
    workload, timing = measurement.workload, measurement.timing
    return {
        "group": workload.group,
        "op": workload.op,
        "direction": workload.direction,
        "dtype": workload.dtype,
        "shape": workload.label,
        "rows": workload.rows,
        "cols": workload.cols,
        "provider": measurement.provider,
        "ms": timing.median if timing else None,
        "ms_20": timing.low if timing else None,
        "ms_80": timing.high if timing else None,
        "gbps": measurement.rate,
        "share_of_copy": measurement.share,
        "skipped": measurement.skipped,
    }


def host_row(provider: str, grad: bool, timing: Timing | None, skipped: str | None = None) -> Row:
    """Converts a host time to plain data, in microseconds per call."""
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
    """Returns everything about a run as plain data: the content of results.json."""
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
    """Describes the device, the backend and the versions of a run."""
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


def save_partial(document: Mapping[str, Any], folder: Path) -> None:
    """Atomically writes the results so far to results.partial.json, which `save` deletes."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{_PARTIAL}.new"
    new.write_text(json.dumps(document) + "\n")
    new.replace(folder / _PARTIAL)


def save(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes results.json, and results.csv and host.csv if they have rows. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "results.json"]
    written[0].write_text(json.dumps(document, indent=1) + "\n")
    (folder / _PARTIAL).unlink(missing_ok=True)
    for name, rows in (("results.csv", document["measurements"]), ("host.csv", document["host"])):
        if rows:
            written.append(folder / name)
            with written[-1].open("w", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    return written


def load(file: Path) -> dict[str, Any]:
    """Reads a results.json.

    Raises:
        ResultsError: The file cannot be read, is not JSON, or has another format.
    """
    try:
        document = json.loads(file.read_text())
    except OSError as error:
        raise ResultsError(f"{file}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ResultsError(
            f"{file}: not JSON: {error}; expected the results.json of a run of `tridal bench`"
        ) from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ResultsError(f"{file}: expected the results.json of a run of `tridal bench` ({_FORMAT!r})")
    return document


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Returns the rows that have all of the given values."""
    return [entry for entry in rows if all(entry[key] == value for key, value in wanted.items())]


def distinct(rows: Iterable[Row], key: str) -> list[Any]:
    """Returns the distinct values of a column in order of first occurrence."""
    return list(dict.fromkeys(entry[key] for entry in rows))
