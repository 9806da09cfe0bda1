"""Runs a program after `tridal.override_torch`: `python -m tridal.run [-m MODULE | SCRIPT] [ARGUMENTS...]`.

As with `python SCRIPT` or `python -m MODULE`, the program runs as the module `__main__`, with the same `__file__`,
`sys.argv` and first entry of `sys.path`.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NoReturn

import tridal
from tridal import interrupts
from tridal.errors import TridalError
from tridal.models import environment

__all__: list[str] = []  # a command
__dir__ = __all__.copy

USAGE = """\
usage: python -m tridal.run [-m MODULE | SCRIPT] [ARGUMENTS...]

Runs a program as `python` does. tridal computes its ops in it, instead of torch.
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
    name, sys.argv = program[0], program
    path = Path.cwd() if is_module else Path(name).resolve()
    if not getattr(sys.flags, "safe_path", False):  # with `python -P`, programs have no such entry
        sys.path[0] = str(path if path.is_dir() else path.parent)
    spec = _spec(name) if is_module else None
    if spec is None and (is_module or not path.exists()):
        _exit(2, f"there is no {'module' if is_module else 'file'} {name!r} in {Path.cwd()}")
    is_folder = path.is_dir() if spec is None else spec.submodule_search_locations is not None
    if is_folder and not (_spec(f"{name}.__main__") if is_module else (path / "__main__.py").exists()):
        _exit(2, f"{name!r} has no __main__.py, so it cannot be run")
    _override()
    interrupts.raise_at_interrupt()
    if is_module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(os.path.abspath(name), run_name="__main__")


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


def _spec(name: str) -> ModuleSpec | None:
    """The spec of a module, or None if there is none. Imports its parent packages, as Python does."""
    with suppress(ModuleNotFoundError, ValueError):  # ValueError: the name is empty
        return importlib.util.find_spec(name)
    return None


def _exit(code: int, message: str) -> NoReturn:
    print(f"tridal.run: {message}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
