"""The public names of all modules that docs/api.md lists: `__all__`, `dir()`, docstrings and their examples."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import tridal

API = Path(__file__).parents[1] / "docs" / "api.md"
MODULES = re.findall(r"^\| `(tridal[\w.]*)` \|", API.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", [*MODULES, "tridal.library", "tridal.pytorch"])
def test_dir_and_star_import_give_the_names_in_all(name: str) -> None:
    module, found = importlib.import_module(name), {}
    exec(f"from {name} import *", found)
    assert found.keys() - {"__builtins__"} == set(dir(module)) == set(module.__all__)


def test_public_names_are_modules_only_if_the_reference_lists_them() -> None:
    """A submodule of the same name would replace a function, as `tridal.models.kernelize` did."""
    found = {
        f"{name}.{public}"
        for name in MODULES
        for public in importlib.import_module(name).__all__
        if isinstance(getattr(importlib.import_module(name), public), ModuleType)
    }
    assert found <= set(MODULES)
    assert importlib.import_module("tridal.models.kernelize") is not tridal.models.kernelize is tridal.kernelize


def test_public_classes_and_functions_have_a_docstring() -> None:
    for name in MODULES:
        for public, value in vars(importlib.import_module(name)).items():
            if public in importlib.import_module(name).__all__ and (inspect.isclass(value) or inspect.isroutine(value)):
                assert value.__doc__, f"{name}.{public} has no docstring"
