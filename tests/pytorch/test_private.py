"""Private API of PyTorch: all of it is in one module, and each item has a fallback that gives right results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tridal
from torch_versions import ABSENT
from tridal.pytorch.torch import dtensor, private

CORE = Path(tridal.__file__).parent
assert dtensor  # its import looks up the collectives


def test_other_modules_use_no_private_names() -> None:
    """PyTorch documents the class TorchDispatchMode for modes that see each operation, and its ops are public."""
    public, found = re.compile(r"torch\.utils\._python_dispatch|torch\.ops\.\w+\.\w+"), dict[str, list[str]]()
    private_name = re.compile(r"\btorch(?:\.\w+)*\._[A-Za-z]\w*|\bfrom torch\S* import .*\b_[A-Za-z]\w*")
    for path in {*CORE.rglob("*.py")} - {Path(private.__file__)}:
        found[path.name] = private_name.findall(public.sub("", path.read_text()))
    assert len(found) > 50
    assert {name: names for name, names in found.items() if names} == {}


def test_version_of_torch_has_every_item() -> None:
    """If this fails, a fallback is in use: look for the item's new name."""
    assert private.MISSING == ABSENT


@pytest.mark.slow("it imports tridal in many processes")
def test_right_results_without_each_item(pytestconfig: pytest.Config) -> None:
    """Runs `private_fallbacks.py`, which forks a child for seven items (at night, for one) and removes them."""
    script = Path(__file__).parents[1] / "helpers" / "private_fallbacks.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    items = [item for item in dict.fromkeys(private.ITEMS) if item not in ABSENT]
    if not pytestconfig.getoption("--matrix"):
        children = -(-len(items) // 7)  # neighbors belong to one feature
        items = [",".join(items[number::children]) for number in range(children)]
    done = subprocess.run(
        [sys.executable, str(script), *items], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    failures: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    assert list(failures) == items
    assert not any(failures.values()), "\n\n".join(
        f"without {item}:\n{text}" for item, text in failures.items() if text
    )
