"""The script that puts random faults into modules: its faults, the tests of a module, and its results."""

from __future__ import annotations

import json
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import faults

ROOT = Path(__file__).parents[1]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "inject_faults.py"))
SOURCE = '''"""A module."""
def largest(numbers: list[int] = 3 * [1]) -> int:
    """Not 7."""
    best = 0
    for n in numbers:
        if n > best and not n == 5:
            print(f"é {n + 1}")
            best = n * 2
        if n < 0:
            raise ValueError(n + 9)
    return best
'''


def test_a_module_has_a_fault_for_each_comparison_number_operator_call_and_result() -> None:
    found = faults.faults("m.py", SOURCE.encode())
    assert {(fault.line, fault.kind, fault.after) for fault in found} == {
        (2, "arithmetic", "((3) + ([1]))"), (2, "constant", "(3 + 1)"), (2, "constant", "(1 + 1)"),
        (4, "constant", "(0 + 1)"), (6, "boolean", "((n > best) or (not n == 5))"), (6, "comparison", "(n >= best)"),
        (6, "boolean", "bool(n == 5)"), (6, "comparison", "(n != 5)"), (6, "constant", "(5 + 1)"),
        (7, "removed call", "pass"), (8, "arithmetic", "((n) + (2))"), (8, "constant", "(2 + 1)"),
        (9, "comparison", "(n <= 0)"), (9, "constant", "(0 + 1)"), (11, "returned None", "return None"),
    }  # fmt: skip
    for fault in found:
        text = fault.put(SOURCE.encode()).decode()
        compile(text, "m.py", "exec")
        changed = [new for old, new in zip(SOURCE.splitlines(), text.splitlines(), strict=True) if old != new]
        assert len(changed) == 1
        assert fault.after in changed[0]


def test_every_module_of_the_checkout_can_be_changed_and_the_weakest_have_tests() -> None:
    names = faults.modules(ROOT, ())
    assert len(names) > 150
    for name in names:
        for fault in faults.faults(name, (ROOT / name).read_bytes())[::40]:
            compile(fault.put((ROOT / name).read_bytes()), name, "exec")
    for module, test in (
        ("src/tridal/pytorch/path/keys.py", "tests/test_keys.py"),
        ("src/tridal/library/losses/linear_chunks.py", "tests/test_linear_cross_entropy.py"),
        ("src/tridal/library/norms/checks.py", "tests/test_norms.py"),
        ("src/tridal/models/losses.py", "tests/test_kernelize_losses.py"),
        ("backends/tridal_npu/plans.py", "tests/test_backend_npu_plans.py"),
    ):
        if (ROOT / module).exists():
            assert test in SCRIPT["tests_of"](ROOT, module), module
    assert set(faults.modules(ROOT, ["models/losses.py"])) == {"src/tridal/models/losses.py"}
    stems = {stem for stems in SCRIPT["TESTS"].values() for stem in stems}
    assert all((ROOT / "tests" / f"{stem}.py").exists() for stem in stems)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small checkout whose test finds faults of the first function only. The second one has types."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take a second of each run
    for name, text in {
        "pyproject.toml": '[tool.mypy]\nfiles = ["src"]\n',
        "src/small/__init__.py": "",
        "src/small/maths.py": "def one():\n    return 1\n\n\ndef two() -> int:\n    return 2\n",
        "tests/test_maths.py": "from small.maths import one, two\n\n\ndef test():\n    two()\n    assert one() == 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.slow("mypy starts for each survivor")
def test_killed_and_surviving_faults_are_reported(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = checkout / "results.json"
    arguments = ["--count", "9", "--jobs", "2", "--json", str(results)]
    assert SCRIPT["main"](arguments, checkout) == 1
    found = {(row["line"], row["kind"]): row["killed_by"] for row in json.loads(results.read_text())}
    test = "tests/test_maths.py::test"
    assert found == {
        (2, "returned None"): test, (2, "constant"): test, (6, "returned None"): "mypy", (6, "constant"): None,
    }  # fmt: skip
    output = capsys.readouterr().out
    assert "survived: src/small/maths.py:6: constant: 2 -> (2 + 1)" in output
    assert SCRIPT["main"]([*arguments, "--least", "0.5"], checkout) == 0
    assert (checkout / "src/small/maths.py").read_text().count("return") == 2, "faults are put into copies"
    (checkout / "tests" / "test_maths.py").write_text(
        "from small import maths\n\n\ndef test():\n    assert not maths\n"
    )
    assert SCRIPT["main"](arguments, checkout) == 2
    with pytest.raises(SystemExit, match=r"^2$"):
        SCRIPT["main"](["--modules", "nothing"], checkout)


def test_interrupted_run_keeps_its_results(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(done: Iterator[Any], *_: Any, **__: Any) -> Iterator[Any]:
        yield next(done)
        raise KeyboardInterrupt

    monkeypatch.setitem(SCRIPT["main"].__globals__, "track", interrupted)
    results = checkout / "results.json"
    assert SCRIPT["main"](["--count", "4", "--json", str(results)], checkout) == 130
    assert len(json.loads(results.read_text())) == 1
