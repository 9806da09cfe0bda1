"""The store of plans on disk: what is stored, files that cannot be used, and the setting."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

import tridal
from backend_helpers import at_the_same_time, run_python
from call_helpers import kernel_call
from cli_helpers import run_json, words
from tridal import testing
from tridal.devices import registry, settings
from tridal.devices.types import LaunchPlan
from tridal.runtime import compiler, launch, plan_store
from tridal.runtime.specialization import KernelCall

CUDA = registry.get("cuda")
H100 = CUDA.architectures()["sm_90"]
CALL = kernel_call((4096, 640))
EXCHANGING = kernel_call((8, 16_384), dtypes="bfloat16")
BLOCKS = kernel_call((6, 300, 64), dim=1)
_files = plan_store._files  # conftest.py replaces it


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the store, in which nothing is stored."""
    monkeypatch.setattr(plan_store, "FOLDER", str(tmp_path / "tridal"))
    monkeypatch.setattr(plan_store, "_files", _files)
    return tmp_path / "tridal"


def plan(call: KernelCall = CALL, backend: Any = CUDA, store: bool = True, **options: Any) -> LaunchPlan:
    return launch.plan(call, backend, H100, options, store)


def same(found: LaunchPlan, expected: LaunchPlan) -> bool:
    """Whether plans are equal but for the reason, which says that a plan was stored."""
    return replace(found, reason="") == replace(expected, reason="")


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that makes each further compilation an error."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError("a stored plan compiles nothing")

    def forbid() -> None:
        monkeypatch.setattr(compiler, "resources", refuse)
        monkeypatch.setattr(compiler, "compile_kernel", refuse)

    return forbid


@pytest.mark.parametrize("call", [CALL, EXCHANGING, BLOCKS], ids=["whole_row", "cooperative", "inner dim"])
def test_a_stored_plan_is_the_plan_and_compiles_nothing(call: KernelCall, nothing_compiled: Callable[[], None]) -> None:
    expected = plan(call)
    assert expected.compilations >= 1
    nothing_compiled()
    found = plan(call)
    assert same(found, expected)
    assert found.compilations == 0
    assert found.reason == f"{expected.reason} (stored)"


@pytest.mark.parametrize("others", [[(4095, 640), (3841, 640)], [(4000, 640)]], ids=["ends", "middle"])
def test_one_stored_plan_serves_its_bucket_of_rows(
    others: list[tuple[int, int]], folder: Path, nothing_compiled: Callable[[], None]
) -> None:
    made = plan()
    nothing_compiled()
    found = [plan(kernel_call(shape)) for shape in others]
    assert all(same(other, made) for other in found)
    assert [other.reason for other in found] == [
        f"planned for 4,096 rows, the bucket of {rows:,}; {made.reason} (stored)" for rows, _ in others
    ]
    assert len([*folder.iterdir()]) == 1


def test_each_bucket_of_rows_has_a_file(folder: Path, nothing_compiled: Callable[[], None]) -> None:
    calls = [kernel_call((rows, 16_384), dtypes="bfloat16") for rows in (8, 64, 4096)]
    expected = [plan(call) for call in calls]
    assert len([*folder.iterdir()]) == 3
    nothing_compiled()
    assert all(same(plan(call), made) for call, made in zip(calls, expected, strict=True))


def test_a_plan_replaces_that_of_the_same_bucket(folder: Path) -> None:
    file, made = plan_store.PlanFile(CALL, CUDA, H100, {}), plan(store=False)
    for _ in range(2):
        file.keep(made)
    (stored,) = folder.iterdir()
    assert json.loads(stored.read_text().partition("\n")[2])["config"] == asdict(made.config)


def test_another_process_compiles_nothing_and_makes_the_same_plan(folder: Path) -> None:
    code = f"""
        import json, sys
        from tridal.devices import registry
        from tridal.ops import planning
        from tridal.runtime import compiler, launch, plan_store
        plan_store.FOLDER = {str(folder)!r}
        backend = registry.get("cuda")
        call = planning.matrix_call(8, 16_384, "bfloat16", "softmax")
        plan = launch.plan(call, backend, backend.architectures()["sm_90"], {{}}, store=True)
        print(json.dumps([plan.as_dict(), plan.compilations, compiler.compile_kernel.cache_info().misses]))
    """
    first, compiled, misses = json.loads(run_python(code))
    assert compiled == misses >= 1
    second, compiled, misses = json.loads(run_python(code))
    assert (compiled, misses) == (0, 0)
    assert {**second, "reason": ""} == {**first, "reason": "", "compilations": 0}


def test_processes_and_threads_store_the_same_plan_at_the_same_time(folder: Path) -> None:
    made = plan()
    file = plan_store.PlanFile(CALL, CUDA, H100, {})

    def keep_all() -> list[bool]:
        for number in range(1, 40):
            file.keep(replace(made, occupancy=number))
            (path,) = (path for path in folder.iterdir() if path.suffix == ".json")
            assert file.find(lambda *_: None) is not None, path.read_text()
        return []

    at_the_same_time(keep_all, keep_all, keep_all)
    assert [path.suffix for path in folder.iterdir()] == [".json"]
    stored = file.find(lambda *_: None)
    assert stored is not None
    assert same(replace(stored, occupancy=0, compilations=0), replace(made, occupancy=0, compilations=0))


def test_a_plan_without_compilations_is_not_stored(folder: Path) -> None:
    npu = registry.get("npu")
    launch.plan(CALL, npu, npu.architectures()["ascend910b"], {"num_programs": 32}, store=True)
    assert not any(folder.glob("*"))


def test_the_check_of_the_runtime_neither_uses_nor_stores_plans(folder: Path) -> None:
    assert [testing.check_runtime(CUDA), testing.check_runtime(CUDA)] == [(), ()]
    assert not folder.exists()


# -- files that cannot be used


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{}", b"[]\n[]", b"0" * 64 + b"\n[]"])
def test_a_damaged_file_is_ignored_and_replaced(
    content: bytes, folder: Path, caplog: pytest.LogCaptureFixture, nothing_compiled: Callable[[], None]
) -> None:
    expected = plan()
    (file,) = folder.iterdir()
    file.write_bytes(content)
    with caplog.at_level(logging.DEBUG, "tridal"):
        assert plan() == expected
    assert f"a stored plan is ignored: {file.name}" in caplog.text
    nothing_compiled()
    assert same(plan(), expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.pop("programs"),
        lambda fields: fields.update(unknown=1),
        lambda fields: fields["config"].update(programs_per_row=2),
        lambda fields: fields.update(resources=None),
        lambda fields: fields["config"].update(cols=512),
        lambda fields: fields["config"].update(cols="1024"),
    ],
    ids=["no programs", "unknown field", "two programs", "resources", "narrow tile", "text"],
)
def test_a_wrong_plan_is_ignored(
    change: Callable[[dict[str, Any]], Any], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = plan()
    (file,) = folder.iterdir()
    fields = json.loads(file.read_text().partition("\n")[2])
    change(fields)
    text = json.dumps(fields)
    file.write_text(f"{plan_store._digest(text)}\n{text}")
    with caplog.at_level(logging.DEBUG, "tridal"):
        assert plan() == expected
    assert f"a stored plan is ignored: {file.name}" in caplog.text


def test_more_programs_than_are_resident_are_not_launched_from_a_file(folder: Path) -> None:
    expected = plan(EXCHANGING)
    (file,) = folder.iterdir()
    fields = json.loads(file.read_text().partition("\n")[2])
    fields["occupancy"] = 1
    fields["config"] |= {"cols": 16, "programs_per_row": 1024}
    text = json.dumps(fields)
    file.write_text(f"{plan_store._digest(text)}\n{text}")
    assert plan(EXCHANGING) == expected


def test_a_folder_that_cannot_be_written_is_no_error(
    folder: Path, caplog: pytest.LogCaptureFixture, nothing_compiled: Callable[[], None]
) -> None:
    folder.write_text("a file, in which no folder can be")
    with caplog.at_level(logging.DEBUG, "tridal"):
        assert plan() == plan(store=False)
    assert "a plan is not stored" in caplog.text


# -- the setting, and the commands


def test_the_setting_turns_the_store_off(no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    make_plan = launch.plan
    monkeypatch.setattr(launch, "plan", lambda *arguments: asked.append(arguments[4]) or make_plan(*arguments))

    def compute() -> bool:
        registry.invalidate()
        with tridal.use(device="interpreter"):
            tridal.softmax(torch.ones(3, 5))
        return asked[-1]

    assert compute()
    with tridal.use(plan_store=False):
        assert not compute()
    monkeypatch.setenv("TRIDAL_PLAN_STORE", "0")
    settings.reload()
    assert not compute()
    monkeypatch.delenv("TRIDAL_PLAN_STORE")
    (no_settings / "tridal.yaml").write_text("plan_store: false\n")
    settings.reload()
    assert not compute()


def test_nothing_is_stored_without_the_store(folder: Path) -> None:
    plan(store=False)
    assert not folder.exists()


def test_doctor_shows_the_folder_and_its_files(no_settings: Path, folder: Path) -> None:
    plan()
    assert run_json("doctor")["plan_store"] == {"on": True, "folder": str(folder), "files": 1, "problem": None}
    with tridal.use(plan_store=False):
        assert f"stored plans off; 1 file in {folder}" in words("doctor")


def test_doctor_shows_why_the_store_cannot_be_used(no_settings: Path, folder: Path) -> None:
    folder.write_text("a file")
    expected = f"Triton's cache folder '{folder}' cannot be written (File exists); set TRITON_CACHE_DIR to a folder"
    assert run_json("doctor")["plan_store"]["problem"].startswith(expected)


def test_plan_shows_how_many_candidates_were_compiled() -> None:
    made = tridal.plan(4096, 640, arch="sm_90")
    assert made.compilations >= 1
    assert f"candidates {made.compilations} compiled" in words("plan", "4096", "640", "--arch", "sm_90")
