"""Results as plain data: selecting rows, and writing and reading the files with the measurements."""

from __future__ import annotations

import csv
import json
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import torch

import tridal
from tridal.benchmarks.providers import Provider
from tridal.devices.types import Backend
from tridal.errors import TridalError

Row: TypeAlias = dict[str, Any]
"""A measurement: values by the column names of results.csv or host.csv."""
Rows: TypeAlias = Sequence[Row]

_FORMAT = "tridal benchmark 1"
_EXPECTED = "expected the results.json of a run of `tridal bench`"
_PARTIAL = "results.partial.json"


class ResultsError(TridalError, ValueError):
    """The error for a file that does not contain benchmark results."""


def document(
    device: torch.device, backend: Backend | None, providers: Sequence[Provider], host: Rows, measurements: Rows
) -> dict[str, Any]:
    """Returns the content of results.json: the measurements of a run, its machine and its providers."""
    machine = {
        "device": str(device),
        "name": backend.properties(device.index or 0).name if backend else f"{platform.machine()} processor",
        "backend": backend.name if backend else None,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": next((found.version for found in metadata.distributions(name="triton")), None),
        "tridal": tridal.__version__,
    }
    return {
        "format": _FORMAT,
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["tridal", *sys.argv[1:]]),
        "machine": machine,
        "providers": {provider.name: provider.version for provider in providers},
        "measurements": measurements,
        "host": host,
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
    """Reads a results.json. Raises ResultsError if it cannot be read, is not JSON, or has another format."""
    try:
        document = json.loads(file.read_text())
    except OSError as error:
        raise ResultsError(f"{file}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ResultsError(f"{file}: not JSON: {error}; {_EXPECTED}") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ResultsError(f"{file}: {_EXPECTED} ({_FORMAT!r})")
    return document


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Returns the rows that have all of the given values."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def distinct(rows: Iterable[Row], key: str) -> list[Any]:
    """Returns the distinct values of a column in order of first occurrence."""
    return list(dict.fromkeys(row[key] for row in rows))
