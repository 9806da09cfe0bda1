"""Calls `tridal.override_torch` and runs a program: `python -m tridal.run [-m MODULE | SCRIPT] [ARGUMENTS...]`.

The program runs as with `python SCRIPT` or `python -m MODULE`: as the module `__main__`, with the same `__file__`,
`sys.argv` and `sys.path`. The traceback of an exception begins with the program's own frames.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import pkgutil
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn, TypeAlias

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
_Program: TypeAlias = tuple[CodeType, dict[str, Any]]
"""The code of a program, and the attributes of its module `__main__`."""


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
    previous = sys.excepthook
    sys.excepthook = lambda kind, error, traceback: previous(kind, error, _without_own_frames(error, traceback))
    try:
        code, attributes = _load_module(program[0]) if is_module else _load_script(program[0])
    except ModuleNotFoundError as error:
        _exit(2, str(error))
    _override()
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__dict__.update(attributes, __builtins__=builtins)
    interrupts.raise_at_interrupt()
    exec(code, module.__dict__)


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


def _load_script(script: str) -> _Program:
    """Loads a script, or the __main__.py of a folder or zip file. Raises ModuleNotFoundError if there is none."""
    path = os.path.abspath(script)
    if not os.path.exists(path):
        raise ModuleNotFoundError(f"there is no file {script!r} in {Path.cwd()}")
    if pkgutil.get_importer(path) is not None:  # a folder or a zip file
        _set_first_entry(path)
        return _load(PathFinder.find_spec("__main__", [path]), f"the folder {script!r} has no __main__.py")
    _set_first_entry(os.path.dirname(os.path.realpath(path)))
    loader = SourceFileLoader("__main__", path)
    code = compile(loader.get_data(path), path, "exec", dont_inherit=True)
    return code, {"__file__": path, "__loader__": loader}


def _load_module(name: str) -> _Program:
    """Loads a module, or the `__main__` of a package. Imports its parent packages, as Python does.

    Raises ModuleNotFoundError if there is none.
    """
    _set_first_entry(str(Path.cwd()))
    spec = None
    with suppress(ValueError):  # for example, the name is empty
        spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    code, attributes = _load(spec, f"there is no module {name!r}")
    sys.argv[0] = attributes["__file__"]
    return code, attributes


def _load(spec: ModuleSpec | None, problem: str) -> _Program:
    loader: Any = None if spec is None else spec.loader
    code = None if spec is None or loader is None else loader.get_code(spec.name)
    if spec is None or code is None:
        raise ModuleNotFoundError(problem)
    return code, {"__file__": spec.origin, "__loader__": loader, "__package__": spec.parent, "__spec__": spec}


def _set_first_entry(folder: str) -> None:
    """Sets the first entry of sys.path, which is that of the program. With `python -P`, programs have none."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _without_own_frames(error: BaseException, traceback: TracebackType | None) -> TracebackType | None:
    """Removes the frames before the program's first one from an exception. Returns the rest of the traceback."""
    frame = kept = traceback
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == __file__:
            kept = frame.tb_next
        frame = frame.tb_next
    error.__traceback__ = kept
    return kept


def _exit(code: int, message: str) -> NoReturn:
    print(f"tridal.run: {message}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
