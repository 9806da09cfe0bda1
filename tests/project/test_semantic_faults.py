"""The table of semantic faults fits the code and the tests."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "semantic_faults.py"))
FAULTS = [*SCRIPT["read"](SCRIPT["TABLE"])]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{Path(fault.file).stem}: {fault.kind}")
def test_the_text_of_a_fault_occurs_once_and_its_tests_exist(fault: Any) -> None:
    source = (ROOT / fault.file).read_text()
    assert source.count(fault.old) == 1
    compile(source.replace(fault.old, fault.new), fault.file, "exec")
    for file, _, name in (test.partition("::") for test in fault.tests if not test.startswith("-")):
        assert f"def {name}" in (ROOT / file).read_text()
