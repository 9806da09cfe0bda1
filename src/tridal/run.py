"""`python -m tridal.run [-m MODULE | SCRIPT] [ARGUMENTS...]`: runs a program that doesn't know tridal with it.

As `python SCRIPT` or `python -m MODULE`, but torch's own softmax is a tridal one: see `tridal.override_torch`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Runs the program that the command line names."""
    import tridal

    arguments = sys.argv[1:]
    module = arguments[:1] == ["-m"]
    program = arguments[int(module) :]
    if not program or (program[0].startswith("-") and not module):
        print("usage: python -m tridal.run [-m MODULE | SCRIPT] [ARGUMENTS...]", file=sys.stderr)
        raise SystemExit(2)
    sys.argv = program
    tridal.override_torch()
    if module:
        sys.path[0] = str(Path.cwd())
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
