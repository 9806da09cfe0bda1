"""Counts what `tridal.kernelize` replaces in the classes of the installed diffusers, for `model_coverage.py`.

What a class computes is read from its source:

- modulations: sums 1 + scale in a forward that calls a norm
- gated MLPs: classes that multiply an activation with another tensor, between linear layers, and classes with the name
  of a gated linear unit
- rotary of processors: classes of attention processors that call a function for a rotary embedding
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import torch

from model_classes import kind_of, make
from tridal.models import glu
from tridal.models.forwards import definition
from tridal.models.modulation_source import FUNCTION, rewritten
from tridal.models.reads import names_in
from tridal.models.rotary import called_by
from tridal.models.rotary_comparison import RotaryForm
from tridal.models.rotary_processors import forms_of

BEGIN, END = "<!-- diffusers coverage -->\n", "<!-- end of diffusers coverage -->\n"
UNIT = re.compile("GEGLU|SwiGLU", re.IGNORECASE)


def classes() -> Iterator[tuple[Any, Any]]:
    """Yields each Python module and class of diffusers' models."""
    models = importlib.import_module("diffusers.models")
    for found in pkgutil.walk_packages(models.__path__, f"{models.__name__}."):
        try:
            module = importlib.import_module(found.name)
        except (ImportError, RuntimeError):  # an optional package
            continue
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                yield module, kind


def modulations(forward: Any) -> tuple[int, int]:
    """Returns how many modulations a forward has, and how many kernelize replaces if the norms are known."""
    node = definition(forward)
    norms = {name for name in names_in(forward) if "norm" in name.lower()}
    if node is None or not norms:
        return 0, 0
    added = [n for n in ast.walk(node) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add)]
    number = sum(bool(re.match(r"1(\.0)? \+ .*scale|\w*scale\w* \+ 1(\.0)?$", ast.unparse(n))) for n in added)
    return number, ast.unparse(rewritten(forward, norms)).count(f"{FUNCTION}(") if number else 0


def is_gated(module: Any, kind: Any) -> bool | None:
    """Returns whether kernelize replaces a gated MLP, or None if a class is none."""
    if kind_of(kind) != "gated MLPs" and not UNIT.search(kind.__name__):
        return None
    made = make(kind, module)
    return not isinstance(made, str) and glu.may_be_glu(made) and not isinstance(glu.find_form(made), str)


def is_rotary(kind: Any) -> bool | None:
    """Returns whether kernelize replaces the function of a processor, or None if it calls none."""
    call = vars(kind).get("__call__")
    name = called_by(call, None) if inspect.isfunction(call) and "Processor" in kind.__name__ else None
    if call is None or name is None:
        return None
    return any(isinstance(form, RotaryForm) for form in forms_of(call, name).values())


def table() -> list[str]:
    """Returns the lines of the table."""
    numbers = {"modulations": [0, 0], "gated MLPs": [0, 0], "rotary of processors": [0, 0]}
    for module, kind in classes():
        forward = inspect.unwrap(vars(kind).get("forward", object))
        if issubclass(kind, torch.nn.Module) and inspect.isfunction(forward):
            found, replaced = modulations(forward)
            numbers["modulations"][0] += found
            numbers["modulations"][1] += replaced
            _count(numbers["gated MLPs"], is_gated(module, kind))
        _count(numbers["rotary of processors"], is_rotary(kind))
    lines = ["| in diffusers | number | replaced | share |", "| --- | ---: | ---: | ---: |"]
    return lines + [f"| {name} | {n} | {taken} | {taken / n:.0%} |" for name, (n, taken) in numbers.items()]


def _count(number: list[int], taken: bool | None) -> None:
    number[0] += taken is not None
    number[1] += bool(taken)


def with_table(page: str) -> str:
    """Returns the text of a page with the table between its markers, or the same text without diffusers."""
    if importlib.util.find_spec("diffusers") is None:
        return page
    before, rest = page.split(BEGIN)
    text = f"diffusers {importlib.metadata.version('diffusers')}:\n\n" + "\n".join(table())
    return f"{before}{BEGIN}\n{text}\n\n{END}{rest.split(END)[1]}"
