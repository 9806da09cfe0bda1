"""The public names of all modules that docs/api.md lists: `__all__`, `dir()`, docstrings and their examples."""

from __future__ import annotations

import doctest
import importlib
import inspect
import io
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch

import tridal

API = Path(__file__).parents[2] / "docs" / "api.md"
MODULES = re.findall(r"^\| `(tridal[\w.]*)` \|", API.read_text(), re.MULTILINE)
PUBLIC = {name: importlib.import_module(name).__all__ for name in MODULES}


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
        for public in PUBLIC[name]
        if isinstance(getattr(sys.modules[name], public), ModuleType)
    }
    assert found <= set(MODULES)
    assert importlib.import_module("tridal.models.kernelize") is not tridal.models.kernelize is tridal.kernelize


def public_objects() -> dict[str, object]:
    """The public functions and classes of all modules that the reference lists, by name."""
    found = {f"{name}.{public}": getattr(sys.modules[name], public) for name in MODULES for public in PUBLIC[name]}
    return {name: value for name, value in found.items() if inspect.isroutine(value) or inspect.isclass(value)}


def needs_example(name: str, value: object) -> bool:
    """Returns whether a public object is a function, or a class that users call: `override_torch`, modules."""
    return inspect.isroutine(value) or name.startswith(("tridal.nn.", "tridal.override_torch"))


def test_public_classes_and_functions_have_a_docstring() -> None:
    assert [name for name, value in public_objects().items() if not value.__doc__] == []


@pytest.mark.parametrize("name", [name for name, value in public_objects().items() if needs_example(name, value)])
@pytest.mark.usefixtures("fresh_registry")
def test_the_example_of_a_public_function_gives_the_output_shown(name: str) -> None:
    """Runs the docstring's examples with the names `torch` and `tridal`, in an empty working folder."""
    value, output = public_objects()[name], io.StringIO()
    (examples,) = doctest.DocTestFinder(recurse=False).find(value, name, globs={"torch": torch, "tridal": tridal})
    assert examples.examples, f"the docstring of {name} has no example: add a section 'Example:'"
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    with mock.patch.dict(os.environ):
        runner.run(examples, out=output.write)
    assert not runner.failures, output.getvalue()
