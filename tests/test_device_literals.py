"""The core names no device: backends supply the numbers, and everything else is theirs, too."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tridal

CORE = Path(tridal.__file__).parent
DEVICE = re.compile(r"(?<![a-z])(cuda|npu|ascend|hip|rocm|xpu|mps|sm_)(?![a-z])|ascend[0-9]", re.IGNORECASE)
"""A device's name as a word or as a part of one in snake case; "input" and "chip" hold no device."""


def literals(source: str) -> list[tuple[int, str]]:
    """Line and text of every string in the code that names a device, docstrings left out."""
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if isinstance(getattr(node, "body", None), list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                docstrings.add(id(statement.value))
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
        and DEVICE.search(node.value)
    ]


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_no_device_is_named(path: Path) -> None:
    assert literals(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        'x = "cuda"',
        'x = f"cuda:{i}"',
        'import_module("torch_npu")',
        'if t == "NPU": pass',
        'x = {"arch": "ascend910b"}',
    ],
)
def test_finds_what_it_looks_for(source: str) -> None:
    assert literals(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""For cuda."""',
        'def f():\n    """As cuda does."""',
        'x = 1\n"""An npu."""',
        'x = "input"',
        'x = "a chip"',
        "cuda = 1",
    ],
)
def test_finds_nothing_else(source: str) -> None:
    assert not literals(source)
