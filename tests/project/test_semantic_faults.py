"""The script that puts semantic faults into the code: its table fits the code, and its results."""

from __future__ import annotations

import json
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


def test_faults_that_are_found_survive_or_do_not_fit_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take a second of each run
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "tests").mkdir()
    (tmp_path / "maths.py").write_text("ONE = 1\nTWO = 2\n")
    test, results, table = tmp_path / "tests" / "test_maths.py", tmp_path / "results.json", tmp_path / "table.yaml"
    test.write_text("from maths import ONE\n\n\ndef test():\n    assert ONE == 1\n")
    rows = [
        {"kind": kind, "old": old, "new": new, "tests": f"test_maths.py{option}"}
        for kind, old, new, option in (
            ("found", "= 1", "= 2", ""), ("survives", "TWO = 2", "TWO = 3", ""), ("missing", "= 7", "= 1", ""),
            ("wrong", "= 1", "= 2", " -no-such-option"), ("syntax", "= 1", "= (", ""),
        )
    ]  # fmt: skip
    table.write_text(json.dumps({"maths.py": rows}))
    monkeypatch.setenv("PYTHONPATH", ".")

    def run(only: str) -> int:
        return int(SCRIPT["main"](["--only", only, "--json", str(results)], tmp_path, table))

    assert (run("found"), run("found|survives"), run(".")) == (0, 1, 2)
    kinds = {row["kind"]: (row["found_by"], row["error"]) for row in json.loads(results.read_text())}
    assert kinds["found"] == ("tests/test_maths.py::test", None)
    assert kinds["survives"] == (None, None)
    assert "the text occurs 0 times" in kinds["missing"][1]
    assert all("the tests do not run" in kinds[kind][1] for kind in ("wrong", "syntax"))
    assert "nothing" in capsys.readouterr().out
    test.write_text("from maths import ONE\n\n\ndef test():\n    assert ONE == 3\n")
    assert run("found") == 2
    with pytest.raises(SystemExit, match=r"^2$"):
        run("no such fault")
