"""Private API of PyTorch: all of it is in one module, and each item has a fallback that gives right results."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tridal
from torch_versions import ABSENT
from tridal.pytorch.torch import dtensor, private

CORE = Path(tridal.__file__).parent
PRIVATE_MODULES = ("torch._C", "torch._dynamo", "torch._functorch")
assert dtensor  # its import looks up the collectives


def private_names(source: str) -> set[str]:
    """Returns the private names of torch in some source code: those with a part that starts with one underscore."""
    tree = ast.parse(source)
    imported: dict[str, str] = {}
    paths: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
            paths |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            imported |= names
            paths |= set(names.values())
    imported |= {name: name.partition(".")[0] for name, path in imported.items() if name == path.partition(".")[0]}

    def path_of(node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return imported.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := path_of(node.value)) is not None:
            return f"{owner}.{node.attr}"
        return None

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            paths.add(path_of(node) or "")
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("getattr", "hasattr", "setattr"):
            owner, name = path_of(node.args[0]), node.args[1]
            if owner is not None and isinstance(name, ast.Constant):
                paths.add(f"{owner}.{name.value}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("torch."):
            paths.add(node.value)
    return {path for path in paths if path.startswith("torch.") and any(map(_is_private, path.split(".")))}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize(
    "path", sorted({*CORE.rglob("*.py")} - {Path(private.__file__)}), ids=lambda path: str(path.relative_to(CORE))
)
def test_other_modules_use_no_private_names(path: Path) -> None:
    # PyTorch documents this class for modes that see each operation.
    assert private_names(path.read_text()) <= {"torch.utils._python_dispatch.TorchDispatchMode"}


def test_version_of_torch_has_every_item() -> None:
    """If this fails, a fallback is in use: look for the item's new name."""
    assert private.MISSING == ABSENT


@pytest.mark.slow("it imports tridal in many processes")
def test_right_results_without_each_item(pytestconfig: pytest.Config) -> None:
    """Runs `private_fallbacks.py`, which forks a child for four items (at night, for one) and removes them."""
    script = Path(__file__).parents[1] / "helpers" / "private_fallbacks.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    items = [item for item in dict.fromkeys(private.ITEMS) if item not in ABSENT]
    if not pytestconfig.getoption("--matrix"):
        fourth = -(-len(items) // 4)  # neighbours belong to one feature
        items = [",".join(items[number::fourth]) for number in range(fourth)]
    done = subprocess.run(
        [sys.executable, str(script), *items], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    failures: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    assert list(failures) == items
    assert not any(failures.values()), "\n\n".join(
        f"without {item}:\n{text}" for item, text in failures.items() if text
    )
