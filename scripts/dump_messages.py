"""Records the errors of the wrong calls in `wrong_calls.txt`: `PYTHONPATH=src:backends dump_messages.py FILE`.

To compare two commits, run the scripts of one checkout in both, as `dump_kernels.py` describes, and compare the files
with `diff`. Each line is a call, a device that the settings name, the type of the error and its message. Numbers of
lines, folders and addresses are left out. A call without an error has the type of its result.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import tridal

CALLS = Path(__file__).with_name("wrong_calls.txt")
DEVICES = ("auto", "interpreter")
_DEFINITION = re.compile(r"[\w, ]+ = ")


def under(function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Calls a function with other settings."""
    with tridal.use(**settings):
        return function(*args)


def under_override(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function of torch while tridal overrides it."""
    with tridal.override_torch():
        return function(*args)


def names() -> dict[str, Any]:
    """Returns the names that the lines may use."""
    modules = {"torch": torch, "F": F, "tridal": tridal, "functools": functools, "types": types}
    return modules | {"under": under, "under_override": under_override}


def outcome(line: str, known: dict[str, Any]) -> dict[str, str]:
    """Returns the type and the message of a call's error, or the type of its result."""
    try:
        result = eval(line, known)
    except Exception as error:
        text = re.sub(r"0x[0-9a-f]{6,}", "0x...", str(error))
        text = re.sub(r"(?:/[\w.-]+)+/([\w.-]+)", r"\1", text)
        return {"type": type(error).__name__, "message": re.sub(r"(?<=line )\d+|(?<=\.py:)\d+", "N", text)}
    return {"type": f"no error, {type(result).__name__}", "message": ""}


def messages() -> Iterator[dict[str, str]]:
    """Yields the outcome of each call, with each device in the settings."""
    known = names()
    for line in CALLS.read_text().splitlines():
        if _DEFINITION.match(line):
            exec(line, known)
        elif line and not line.startswith("#"):
            for device in DEVICES:
                with tridal.use(device=device):
                    yield {"call": line, "device": device} | outcome(line, known)


def main() -> None:
    """Writes one JSON object per line."""
    logging.disable()
    warnings.simplefilter("ignore")
    lines = [json.dumps(message) for message in messages()]
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
