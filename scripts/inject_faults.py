"""Puts small random faults into modules, one at a time, and runs the tests that belong to the module.

    python scripts/inject_faults.py [--modules 'pytorch/path/*'] [--count 24] [--seed 0] [--jobs 2] [--json FILE]

A fault is another comparison, number, boolean or arithmetic operator, a call that is removed, or a result that is None.
The tests of a module import it, or have its name, or are those that TESTS adds. They run in a copy of the checkout. A
fault is killed if a test fails that passes without it, or if the tests do not end in time. If no test kills it, mypy
checks the types, as `make test` does.

With `--lines FILE`, tests that execute the line of a fault run first. `pytest --cov --cov-context=test` writes it.

The exit code is 1 if fewer than `--least` of the faults are killed, 2 if tests fail without a fault, and 130 after
Ctrl-C or SIGTERM, which keep the results so far.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from coverage import CoverageData
from rich.console import Console
from rich.progress import track
from rich.table import Table

from faults import SOURCES, Fault, modules, random_faults

Item = TypeVar("Item")
Result = TypeVar("Result")
_TYPES = ".mypy_cache"
INTERRUPTED = 130  # exit code of a process that SIGINT ends
_TIMEOUT = 240  # seconds for the tests of one fault
_MAX_TESTS = 60  # that execute the line of a fault
TESTS = {
    "*": ("test_golden_records",),
    "src/tridal/pytorch/path/*": (
        "test_keys",
        "test_calls",
        "test_call_options",
        "test_registered_ops",
        "test_functions",
    ),
    "src/tridal/pytorch/torch/*": ("test_private", "test_override", "test_transforms", "test_dtensor"),
    "src/tridal/__main__.py": ("test_cli",),
    "src/tridal/library/*/modules.py": ("test_nn",),
    "src/tridal/models/environment.py": ("test_run",),
    "src/tridal/library/*/dtensor.py": ("test_dtensor",),
    "src/tridal/library/losses/functions.py": ("test_dtensor",),
    "src/tridal/library/softmax/*": ("test_functions", "test_scale_mask", "test_softmax_errors", "test_conformance"),
    "src/tridal/library/norms/*": ("test_norms", "test_kernelize", "test_conformance"),
    "src/tridal/library/rotary/*": ("test_rotary", "test_kernelize_rotary"),
    "src/tridal/library/glu/*": ("test_glu", "test_kernelize_glu"),
    "src/tridal/library/log_probs/*": ("test_log_probs",),
    "src/tridal/library/losses/*": ("test_cross_entropy", "test_loss_arguments", "test_linear_cross_entropy"),
    "src/tridal/runtime/target_*.py": ("test_target_check", "test_cli_doctor"),
    "src/tridal/runtime/source_text.py": ("test_source",),
    "src/tridal/models/*": ("test_kernelize", "test_kernelize_losses", "test_kernelize_modules"),
    "src/tridal/kernels/*": ("test_conformance", "test_scale_mask", "test_exchange_model", "test_exchange_delays"),
    "src/tridal/benchmarks/*plot*.py": ("test_make_figures",),
    "src/tridal/benchmarks/*": ("test_benchmark_plots", "test_benchmark_report", "test_cli_bench"),
    "src/tridal/testing/*": ("test_checking", "test_tolerance", "test_conformance"),
    "src/tridal/cli/*": ("test_cli",),
    "backends/tridal_cuda/*": ("test_backend_cuda_table", "test_backend_cuda_plans", "test_backend_cuda_traits"),
    "backends/tridal_*": ("test_backend_members",),
}
"""Tests that belong to modules besides those that import them or have their name."""


def tests_of(root: Path, module: str) -> list[str]:
    """Returns the files of the tests that belong to a module. Those that import it are first."""
    parts = Path(module).with_suffix("").parts[1:]
    *packages, name = parts if parts[-1] != "__init__" else parts[:-1]
    package = ".".join(packages)
    imports = rf"(?m)^\s*(from|import) {re.escape('.'.join([*packages, name]))}\b"
    if package:
        imports += rf"|^\s*from {re.escape(package)} import [^\n]*\b{name}\b"
    texts = {path.stem: path.read_text() for path in sorted((root / "tests").glob("*.py"))}
    tests = [stem for stem in texts if stem.startswith("test_")]
    importing = {stem for stem, text in texts.items() if re.search(imports, text)}
    found = [stem for stem in tests if stem in importing]
    found += [stem for stem in tests if re.fullmatch(rf"test_(\w+_)?{name.strip('_')}s?(_\w+)?", stem)]
    found += [stem for pattern, stems in TESTS.items() if fnmatch.fnmatch(module, pattern) for stem in stems]
    helpers = importing - set(tests)
    found += [s for s in tests if any(re.search(rf"(?m)^(from|import) {helper}\b", texts[s]) for helper in helpers)]
    return [f"tests/{stem}.py" for stem in dict.fromkeys(found) if stem in texts]


class Lines:
    """The tests that execute each line, from a file of coverage."""

    def __init__(self, file: Path) -> None:
        data = CoverageData(str(file))
        data.read()
        self.tests = {name: data.contexts_by_lineno(name) for name in data.measured_files()}

    def tests_of(self, fault: Fault) -> list[str]:
        """Returns tests that execute a line of a fault, at most `_MAX_TESTS` from all files."""
        of_lines = self.tests.get(fault.module, {})
        lines = range(fault.line, fault.line + fault.before.count("\n") + 1)
        found = sorted({context.rpartition("|")[0] for line in lines for context in of_lines.get(line, ())} - {""})
        return found[:: -(-len(found) // _MAX_TESTS)] if found else []


def _files(root: Path) -> list[str]:
    """Returns the files of a checkout: those that git tracks, or all of them without git, but no environments."""
    if not (root / ".git").exists():
        found = (path.relative_to(root).as_posix() for path in root.rglob("*"))
        return [name for name in found if not re.match(r"\.venv|\.\w+_cache/|(.*/)?__pycache__/", name)]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    return listed.split("\0")[:-1]


class Copy:
    """A copy of a checkout, in which tests run."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder
        for name in _files(root):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        if (root / _TYPES).is_dir():
            shutil.copytree(root / _TYPES, folder / _TYPES)

    def failing(self, tests: Sequence[str], *options: str, timeout: float | None = _TIMEOUT) -> list[str]:
        """Returns the tests that fail, without parameters; `timeout` or `crash` if there are no results."""
        given = filter(None, [os.environ.get("PYTHONPATH")])
        path = os.pathsep.join([*(str(self.root / folder) for folder in (*SOURCES, "verify")), *given])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", *options, *tests]
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        with subprocess.Popen(
            command, cwd=self.root, env=environment, stdout=pipe, stderr=both, start_new_session=True, text=True
        ) as process:
            try:
                output, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return ["timeout"]
        failing = re.findall(r"(?m)^(?:FAILED|ERROR) ([^\s\[]+)", output)
        # A fault may change the parameters of a test, and with them its name, and a module may be skipped where a
        # package is missing. This alone finds nothing.
        missing = re.search(r"(?m)^ERROR: (not found:|found no collectors for) ", output)
        return failing or ["crash"] * (process.returncode != 0 and missing is None)

    def has_wrong_types(self) -> bool:
        """Returns whether mypy reports an error."""
        command = [sys.executable, "-m", "mypy"]
        return subprocess.run(command, cwd=self.root, capture_output=True, check=False).returncode == 1

    def killer(self, fault: Fault, *runs: Sequence[str]) -> str | None:
        """Returns the first test that finds a fault, "mypy" or None. Each of `runs` is the tests of one process."""
        file = self.root / fault.module
        source = file.read_bytes()
        file.write_bytes(fault.put(source))
        try:
            found = next((found[0] for tests in runs if tests and (found := self.failing(tests, "-x"))), None)
            return found or ("mypy" if self.has_wrong_types() else None)
        finally:
            file.write_bytes(source)


def in_copies(
    root: Path, jobs: int, function: Callable[[Copy, Item], Result], items: Sequence[Item], what: str
) -> dict[Item, Result]:
    """Returns function(copy, item) for each item, and shows a progress bar. `jobs` copies of a checkout are used.

    After Ctrl-C or SIGTERM, returns the results so far.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console, found = Console(stderr=True), dict[Item, Result]()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, ThreadPoolExecutor(jobs) as threads:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(min(jobs, len(items))):
            copies.put(Copy(root, Path(folder, str(number))))

        def compute(item: Item) -> Result:
            copy = copies.get()
            try:
                return function(copy, item)
            finally:
                copies.put(copy)

        pending = {threads.submit(compute, item): item for item in items}
        try:
            for future in track(as_completed(pending), what, len(pending), console=console):
                found[pending[future]] = future.result()
        except KeyboardInterrupt:
            threads.shutdown(wait=False, cancel_futures=True)
            console.print(f"interrupted after {len(found)} of {len(items)} {what}, whose results are kept")
    return found


def failing_without_a_fault(root: Path, tests: Sequence[str], jobs: int = 1) -> list[str]:
    """Returns those of the tests that fail in a new copy of a checkout. They run in `jobs` processes."""
    parts = [tuple(tests[start::jobs]) for start in range(min(jobs, len(tests)))]
    failing = in_copies(root, jobs, lambda copy, part: copy.failing(part, timeout=None), parts, "tests without a fault")
    return sorted({test for found in failing.values() for test in found})


def main(arguments: Sequence[str] | None = None, root: Path = Path(__file__).parents[1]) -> int:
    """Runs the command. Returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", nargs="+", default=(), metavar="PATTERN", help="default: all of src and backends")
    parser.add_argument("--count", type=int, default=24, help="the number of faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--least", type=float, default=0.9, help="the share of the faults that the tests must find")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="the tests that execute each line")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    options = parser.parse_args(arguments)
    chosen = random_faults(root, modules(root, options.modules), options.count, options.seed)
    tests = {fault.module: tests_of(root, fault.module) for fault in chosen}
    lines = Lines(options.lines) if options.lines else None
    if not chosen:
        parser.error("no module with a possible fault fits the patterns")

    def killer(copy: Copy, fault: Fault) -> str | None:
        return copy.killer(fault, lines.tests_of(fault) if lines else (), tests[fault.module])

    found = in_copies(root, options.jobs, killer, chosen, "faults")
    killers = sorted({killer for killer in found.values() if killer and killer.startswith("tests/")})
    broken = failing_without_a_fault(root, killers) if len(found) == len(chosen) else []
    report(found)
    if options.json:
        rows = [{**asdict(fault), "killed_by": found[fault]} for fault in chosen if fault in found]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if broken:
        Console(stderr=True).print(f"these tests fail without a fault: {', '.join(broken)}")
        return 2
    few = sum(map(bool, found.values())) < options.least * len(found)
    return INTERRUPTED if len(found) < len(chosen) else int(few)


def report(found: dict[Fault, str | None]) -> None:
    """Prints the faults that survived, and the share of killed ones in each folder."""
    console = Console()
    for fault in sorted((fault for fault in found if not found[fault]), key=lambda fault: (fault.module, fault.line)):
        before, after = (" ".join(text.split()) for text in (fault.before, fault.after))
        console.print(f"survived: {fault.module}:{fault.line}: {fault.kind}: {before} -> {after}", markup=False)
    folders = {fault: Path(fault.module).parent.as_posix() for fault in found}
    of_folders = [Counter(folders.values())]
    for names in (lambda name: name != "mypy", lambda name: name == "mypy"):
        of_folders.append(Counter(folders[fault] for fault, killer in found.items() if killer and names(killer)))
    table = Table("folder", "faults", "killed by tests", "by mypy only")
    for folder in sorted(of_folders[0]):
        table.add_row(folder, *(str(counted[folder]) for counted in of_folders))
    table.add_section()
    table.add_row("all", *(str(counted.total()) for counted in of_folders))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
