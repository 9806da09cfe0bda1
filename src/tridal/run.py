"""Calls `tridal.override_torch` and runs a program: `python -m tridal.run [-m MODULE | SCRIPT] [ARGUMENTS...]`.

The program runs as it does with `python SCRIPT` or `python -m MODULE`.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import NoReturn

import tridal
from tridal.errors import TridalError
from tridal.models import environment

USAGE = """\
usage: python -m tridal.run [-m MODULE | SCRIPT] [ARGUMENTS...]

Runs a program whose softmax functions of torch are computed by tridal. It runs as with `python`.
TRIDAL_DEVICE=NAME selects the backend. TRIDAL_LOG_CALLS=1 shows at the end which backend computed how many calls.
TRIDAL_KERNELIZE=1 also calls tridal.kernelize for each model that transformers builds."""


def main() -> None:
    """Runs the script or module on the command line.

    Without one, or if it does not exist, prints a message on stderr and exits with 2. If the settings or the device
    cannot be used, exits with 1.
    """
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return
    is_module = arguments[:1] == ["-m"]
    program = arguments[int(is_module) :]
    if not program or (program[0].startswith("-") and not is_module):
        print(USAGE, file=sys.stderr)
        raise SystemExit(2)
    sys.argv = program
    if not getattr(sys.flags, "safe_path", False):  # with `python -P`, the first entry is not that of a program
        sys.path[0] = str(Path.cwd() if is_module else Path(program[0]).resolve().parent)
    problem = _module_problem(program[0]) if is_module else _script_problem(Path(program[0]))
    if problem is not None:
        _exit(2, problem)
    _override()
    if is_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program[0], run_name="__main__")


def _override() -> None:
    """Calls `override_torch`. Exits with 1 if a setting is wrong, the device is not available or torch is broken.

    `import tridal` has not read the variables, so that a wrong value is one sentence here.
    """
    try:
        from tridal.pytorch import call_records

        call_records.start_from_environment()
        environment.start_from_environment()
        tridal.override_torch()
    except (TridalError, ImportError) as error:
        _exit(1, str(error))


def _script_problem(script: Path) -> str | None:
    """Returns why a script cannot be run, or None if it exists. Python also runs a folder that has a __main__.py."""
    if not script.exists():
        return f"there is no file {str(script)!r} in {Path.cwd()}"
    if script.is_dir() and not (script / "__main__.py").exists():
        return f"the folder {str(script)!r} has no __main__.py"
    return None


def _module_problem(name: str) -> str | None:
    """Returns why a module cannot be run, or None if it exists. Imports its parent packages, as Python does."""
    try:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations is not None:
            found, name = importlib.util.find_spec(f"{name}.__main__"), f"{name}.__main__"
    except ModuleNotFoundError as error:
        return str(error)
    except ValueError:  # for example, the name is empty
        found = None
    return f"there is no module {name!r}" if found is None else None


def _exit(code: int, message: str) -> NoReturn:
    print(f"tridal.run: {message}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
