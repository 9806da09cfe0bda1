"""Results as plain data: selecting rows, and writing and reading the files with the measurements."""

from __future__ import annotations

import csv
import json
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import torch

import tridal
from tridal.benchmarks.op_benchmark import OpBenchmark
from tridal.benchmarks.providers import Provider
from tridal.devices.types import Backend
from tridal.errors import TridalError
from tridal.runtime.kernel_files import write_atomically

Row: TypeAlias = dict[str, Any]
"""A measurement: values by the column names of results.csv or host.csv."""
Rows: TypeAlias = Sequence[Row]

_FORMAT = "tridal benchmark 2"
_COLUMNS: Mapping[str, Sequence[str]] = {
    "measurements": (
        "group", "op", "direction", "dtype", "shape", "provider", "rows", "cols", "ms", "ms_20", "ms_80", "gbps",
        "share_of_copy", "noisy", "share_noisy", "skipped",
    ),
    "host": ("provider", "grad", "us", "us_20", "us_80", "noisy", "skipped"),
}  # fmt: skip
"""The columns of results.csv and host.csv, by the lists of a document."""
_RESULTS, _PARTIAL = "results.json", "results.partial.json"
_WRITTEN = ("results.*", "host.*", "overview*.png", "grid-*.png", "suite-*.png")  # patterns of all files of a run


class ResultsError(TridalError, ValueError):
    """The error for a file without benchmark results, or for a folder to which they cannot be written."""


def document(
    device: torch.device, backend: Backend | None, providers: Sequence[Provider], op: str, entry: OpBenchmark
) -> dict[str, Any]:
    """Has the content of results.json before the first measurement: the op, the machine and the providers."""
    machine = {
        "device": str(device),
        "name": backend.properties(device.index or 0).name if backend else f"{platform.machine()} processor",
        "backend": backend.name if backend else None,
        "interpreted": backend is not None and backend.interpreted,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": next((found.version for found in metadata.distributions(name="triton")), None),
        "tridal": tridal.__version__,
    }
    return {
        "format": _FORMAT,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "interrupted": False,
        "command": " ".join(["tridal", *sys.argv[1:]]),
        "machine": machine,
        "providers": {provider.name: provider.version for provider in providers},
        "op": op,
        "passes": entry.traffic,
        "aims": entry.aims,
        "measurements": [],
        "host": [],
    }


def make_folder(folder: Path | None, op: str, overwrite: bool) -> Path:
    """Creates the folder of a run, or a new one in bench-results/ if it is None. Checks that files can be written.

    Raises:
        ResultsError: the folder has results and `overwrite` is False, or files cannot be written to it.
    """
    if folder is None:
        start = f"{datetime.now():%Y-%m-%d-%H%M%S}-{op}"
        names = (start if number == 1 else f"{start}-{number}" for number in count(1))
        folder = next(path for path in map(Path("bench-results").joinpath, names) if not path.exists())
    with writing(folder, "name another folder with --output"):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        if not overwrite and any((folder / name).exists() for name in (_RESULTS, _PARTIAL)):
            raise ResultsError(f"{folder} has the results of another run; choose another --output, or add --overwrite")
    return folder


@contextmanager
def writing(folder: Path, advice: str) -> Iterator[None]:
    """Turns an OSError into a ResultsError with advice, because the reason is the folder, or its full disk."""
    try:
        yield
    except OSError as error:
        reason = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror or error
        raise ResultsError(f"cannot write to {folder}: {reason}; {advice}") from error


def save_partial(document: Mapping[str, Any], folder: Path) -> None:
    """Writes the results so far to results.partial.json, which `save` deletes."""
    with writing(folder, "the run continues, and writes its results at the end"):
        write_atomically(folder / _PARTIAL, json.dumps(document) + "\n")


def save(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes results.json, and results.csv and host.csv if they have rows. Returns the files.

    Deletes all other files of a former run in this folder.
    """
    written = [folder / _RESULTS]
    write_atomically(written[0], json.dumps(document, indent=1) + "\n")
    for former in {file for pattern in _WRITTEN for file in folder.glob(pattern)} - set(written):
        former.unlink()
    for name, kind in (("results.csv", "measurements"), ("host.csv", "host")):
        if document[kind]:
            written.append(folder / name)
            with written[-1].open("w", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=_COLUMNS[kind], extrasaction="ignore")
                writer.writeheader()
                writer.writerows(document[kind])
    return written


def load(file: Path) -> dict[str, Any]:
    """Reads a results.json that `save` has written. Raises ResultsError if it cannot be read, or has another format."""
    try:
        document = json.loads(file.read_text())
    except OSError as error:
        raise ResultsError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ResultsError(f"{file}: expected the results.json of a run of `tridal bench` ({_FORMAT!r})")
    return document


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Keeps the rows that have all of the given values."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def distinct(rows: Iterable[Row], key: str) -> list[Any]:
    """Lists the distinct values of a column in order of first occurrence."""
    return list(dict.fromkeys(row[key] for row in rows))
