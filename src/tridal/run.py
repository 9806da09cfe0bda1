"""Calls `tridal.override_torch` and runs a program: `python -m tridal.run [-m MODULE | SCRIPT] [ARGUMENTS...]`.

The program runs as it does with `python SCRIPT` or `python -m MODULE`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Runs the script or module on the command line. If there is none, prints the usage and exits with 2."""
    import tridal

    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    program = arguments[int(is_module) :]
    if not program or (program[0].startswith("-") and not is_module):
        print("usage: python -m tridal.run [-m MODULE | SCRIPT] [ARGUMENTS...]", file=sys.stderr)
        raise SystemExit(2)
    sys.argv = program
    tridal.override_torch()
    if not getattr(sys.flags, "safe_path", False):  # with `python -P`, the first entry is not that of a program
        sys.path[0] = str(Path.cwd() if is_module else Path(program[0]).resolve().parent)
    if is_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
