"""Puts typical faults into the code, one at a time, and expects a failing test for each of them.

    python scripts/semantic_faults.py [--only 'guard'] [--jobs 2] [--json FILE]

`semantic_faults.yaml` has the faults: for each file, the text that is replaced, the new text, and the tests that should
find it, as arguments of pytest. They run in a copy of the checkout, on the CPU, until the first one fails.

The exit code is 1 if a fault survives, 2 if a text does not occur once, or if tests are not found, do not end in time
or fail without a fault, and 130 after Ctrl-C or SIGTERM, which keep the results so far.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from checkout_copies import Copy, failing_without_a_fault, in_copies

TABLE = Path(__file__).with_suffix(".yaml")
INTERRUPTED = 130  # exit code of a process that SIGINT ends
_TIMEOUT = 900  # seconds for the tests of one fault


class SemanticFault(NamedTuple):
    """A kind of fault, as a text of a file that another one replaces."""

    file: str
    kind: str
    old: str
    new: str
    tests: tuple[str, ...]


class Result(NamedTuple):
    """What the tests do with a fault: one finds it, or there is an error, or the fault survives."""

    found_by: str | None = None
    error: str | None = None


def read(table: Path) -> Iterator[SemanticFault]:
    """Yields the faults of a table."""
    for file, rows in yaml.safe_load(table.read_text()).items():
        for row in rows:
            tests = tuple(test if test.startswith("-") else f"tests/{test}" for test in row["tests"].split())
            yield SemanticFault(file, row["kind"], row["old"], row["new"], tests)


def result_of(copy: Copy, fault: SemanticFault) -> Result:
    """Puts a fault into a copy, and runs its tests there."""
    file = copy.root / fault.file
    source = file.read_text() if file.exists() else ""
    if (count := source.count(fault.old)) != 1:
        return Result(error=f"the text occurs {count} times, expected once: adapt {TABLE.name} to the code")
    file.write_text(source.replace(fault.old, fault.new))
    try:
        failing = copy.failing(fault.tests, "-x", timeout=_TIMEOUT)
    finally:
        file.write_text(source)
    if failing and "::" not in failing[0]:  # an error of an import or of an option, or the end of the time
        return Result(error=f"the tests do not run: {failing[0]}")
    return Result(failing[0] if failing else None)


def main(arguments: Sequence[str] | None = None, root: Path = Path(__file__).parents[1], table: Path = TABLE) -> int:
    """Runs the command. Returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="the faults whose file or kind contains it")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    options = parser.parse_args(arguments)
    faults = [fault for fault in read(table) if re.search(options.only, f"{fault.file}: {fault.kind}")]
    if not faults:
        parser.error(f"--only fits no fault of {table.name}")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the faults are found without a GPU
    results = in_copies(root, options.jobs, result_of, faults, "faults")
    report(results)
    if options.json:
        rows = [{**fault._asdict(), **results[fault]._asdict()} for fault in faults if fault in results]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if len(results) < len(faults):
        return INTERRUPTED
    finders = sorted({result.found_by for result in results.values() if result.found_by})
    if broken := failing_without_a_fault(root, finders, options.jobs):
        Console(stderr=True).print(f"these tests fail without a fault: {', '.join(broken)}", markup=False)
    if broken or any(result.error for result in results.values()):
        return 2
    return int(not all(result.found_by for result in results.values()))


def report(results: dict[SemanticFault, Result]) -> None:
    """Prints a table of the faults. Those that are not found are the last ones."""
    table = Table()
    for name in ("file", "fault", "found by"):
        table.add_column(name, overflow="fold")
    for fault, result in sorted(results.items(), key=lambda pair: (not pair[1].found_by, pair[0])):
        table.add_row(*map(escape, (fault.file, fault.kind, result.found_by or result.error or "nothing")))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
