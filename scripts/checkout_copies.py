"""Copies of a checkout, in which tests run with a fault in the code."""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")
Result = TypeVar("Result")
SOURCES = ("src", "backends")


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

    def failing(self, tests: Sequence[str], *options: str, timeout: float | None) -> list[str]:
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
