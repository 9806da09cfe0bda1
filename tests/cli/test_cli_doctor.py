"""Tests `tridal doctor`: its report of versions, backends, devices, settings and fallbacks, and its exit code."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from backend_helpers import FakeBackend, run_python
from cli_helpers import run, run_json
from tridal import library
from tridal.cli import doctor
from tridal.devices import registry, settings
from tridal.devices.checked_backend import CheckedBackend
from tridal.devices.types import Backend
from tridal.ops import table

pytestmark = pytest.mark.usefixtures("no_settings")


def report(*, code: int = 0) -> Any:
    return run_json("doctor", code=code)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[registry.Registered], None]:
    """Returns a function that adds a backend to those that are registered."""
    entries = registry.registered()
    return lambda entry: monkeypatch.setattr(registry, "registered", lambda: (*entries, entry))


def test_report_has_the_versions() -> None:
    versions = report()["versions"]
    assert versions["torch"] == torch.__version__ or versions["torch"] in torch.__version__
    assert versions["python"].startswith("3.")
    assert versions["tridal"]


def test_report_has_every_backend_with_a_reason_if_unavailable() -> None:
    backends = {backend["name"]: backend for backend in report()["backends"]}
    for entry in registry.registered():
        backend = backends[entry.name]
        assert backend["origin"] == entry.origin
        assert backend["available"] == (backend["reason"] is None)
        if not backend["available"] and entry.backend is not None:
            assert backend["install"] == entry.backend.install


def test_report_has_every_op_of_the_table() -> None:
    ops = {op["name"]: op for op in report()["ops"] if op["usable"]}
    assert set(ops) == set(table.ops())
    assert ops["softmax"] == {"name": "softmax", "origin": table.registered()[0].origin, "usable": True, "reason": None}


BROKEN_OPS = """
    import dataclasses
    from tridal.library.softmax.softmax import SOFTMAX

    def renamed(name, **changes):
        kernels = tuple(
            dataclasses.replace(kernel, name=kernel.name.replace("softmax", name)) for kernel in SOFTMAX.kernels
        )
        return dataclasses.replace(SOFTMAX, name=name, **{"kernels": kernels, **changes})

    fine = renamed("fine")
    no_reference = renamed("no_reference", reference=None)
    statistics = SOFTMAX.forward.statistics
    unknown = dataclasses.replace(statistics[0], reduce="median")
    forward, backward = renamed("no_reduce").kernels
    forward = dataclasses.replace(forward, statistics=(unknown, *statistics[1:]))
    no_reduce = renamed("no_reduce", kernels=(forward, backward))
    taken = renamed("softmax")
"""


def test_broken_op_is_reported_and_does_not_affect_other_ops(tmp_path: Path) -> None:
    (tmp_path / "vendor_ops.py").write_text(textwrap.dedent(BROKEN_OPS))
    info = tmp_path / "vendor_ops-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor-ops\nVersion: 1.0\n")
    names = {"fine": "fine", "no_reference": "no_reference", "no_reduce": "no_reduce", "softmax": "taken"}
    points = "".join(f"{name} = vendor_ops:{target}\n" for name, target in names.items())
    (info / "entry_points.txt").write_text(f"[tridal.ops]\n{points}no_module = vendor_nowhere:op\n")
    code = """
        import sys
        from tridal.cli import main
        sys.argv = ["tridal", "doctor", "--json"]
        main()
    """
    ops = json.loads(run_python(code, tmp_path, TRIDAL_DEVICE="cpu"))["ops"]
    usable = {op["name"]: op["origin"] for op in ops if op["usable"]}
    built_in = library.OPS
    assert usable == {op.name: "tridal" for op in built_in} | {"fine": "vendor-ops 1.0"}
    reasons = {op["name"]: op["reason"] for op in ops if not op["usable"]}
    assert "it has no reference" in reasons["no_reference"]
    assert "median" in reasons["no_reduce"]
    assert "No module named 'vendor_nowhere'" in reasons["no_module"]
    assert "its name is taken" in reasons["softmax"]


def test_text_output_has_every_backend_and_op_with_its_fault(
    monkeypatch: pytest.MonkeyPatch, register: Callable[[registry.Registered], None]
) -> None:
    broken = table.RegisteredOp("broken_op", "vendor 1.0", None, "it has no [reference]")
    monkeypatch.setattr(table, "_entries", (*table.registered(), broken))
    register(registry.Registered("broken", "vendor 1.0", None, "it could not be loaded: SyntaxError: [oops]"))
    output = run("doctor").output
    lines = [line.split() for line in output.splitlines()]
    assert ["softmax", "yes", table.registered()[0].origin] in lines
    assert ["broken_op", "no", "vendor", "1.0", "it", "has", "no", "[reference]"] in lines
    assert "it could not be loaded: SyntaxError: [oops]" in output
    assert all(entry.name in output for entry in registry.registered())
    assert "computes its tensors" in output
    if registry.get("npu").unavailable() is not None:
        assert "tridal[npu]" in output, "brackets must not be read as markup"


def test_report_has_the_devices_of_an_available_backend(backend: Backend) -> None:
    devices = [device for device in report()["devices"] if device["backend"] == backend.name]
    assert len(devices) == backend.device_count()
    assert devices[0]["name"] == backend.properties(0).name
    assert devices[0]["cores"] >= 1


def test_line_of_a_device_has_its_memory_and_bandwidth_if_they_are_known() -> None:
    h200 = asdict(registry.get("cuda").architectures()["h200"]) | {"index": 0}
    assert doctor._device_line(h200) == (
        "0: NVIDIA H200 SXM (h200), 132 SMs, 65,536 registers per SM, 227 KiB on-chip memory per SM, 60 MiB L2, "
        "141 GiB memory, 4,917 GB/s"
    )
    assert doctor._device_line({**h200, "memory": None, "bandwidth": None}).endswith("60 MiB L2")


def test_report_has_the_source_of_each_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDAL_FALLBACK", "error")
    settings.reload()
    result = report(code=1)  # with fallback=error, a device without a backend (here the CPU) cannot be used
    assert result["settings"]["values"]["fallback"] == {"value": "error", "source": "environment TRIDAL_FALLBACK"}


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the settings choose an accelerator here")
def test_fallbacks_name_the_tensors_that_torch_computes() -> None:
    result = report()
    assert result["device"]["device"] == "cpu"
    assert result["device"]["backend"] is None
    assert any(line.startswith("torch computes cpu tensors; set TRIDAL_DEVICE=") for line in result["fallbacks"])


def test_fallbacks_name_the_dtypes_that_a_backend_does_not_support(monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow:
        name, device_type, dtypes, interpreted = "narrow", "cpu", frozenset({"float32"}), False

        def unavailable(self) -> str | None:
            return None

    narrow: Any = Narrow()
    monkeypatch.setattr(registry, "registered", lambda: (registry.Registered("narrow", "in a test", narrow),))
    monkeypatch.setattr(registry, "serving", lambda kind, chosen: narrow)
    assert doctor._fallbacks() == [
        "torch computes bfloat16, float16, float64 tensors on cpu: backend 'narrow' does not support them"
    ]


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TRIDAL_DEVICE", "interpretr", "did you mean 'interpreter'"),
        ("TRIDAL_DEVICE", "cpu:x", "environment TRIDAL_DEVICE: device: expected 'auto'"),
        ("TRIDAL_FALLBAK", "torch", "TRIDAL_FALLBAK"),
        ("TRIDAL_OVERRIDE_TORCH", "maybe", "environment TRIDAL_OVERRIDE_TORCH: expected 1 or 0, found 'maybe'"),
    ],
)
def test_bad_setting_is_reported_and_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    settings._base = None
    output = report(code=1)
    assert message in "\n".join([*output["problems"], output["device"]["problem"]])
    assert output["device"]["usable"] is False


@pytest.mark.usefixtures("fresh_registry")
def test_unknown_name_in_plugins_is_reported_and_bundled_backends_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDAL_PLUGINS", "cud")
    settings.reload()
    output = report(code=1)
    assert (
        "environment TRIDAL_PLUGINS: plugins: no backend is called 'cud'; did you mean" in output["device"]["problem"]
    )
    bundled = {each["name"]: each["reason"] for each in output["backends"] if each["origin"].startswith("tridal ")}
    assert {"cuda", "interpreter"} <= bundled.keys()
    assert not any("blocked" in (reason or "") for reason in bundled.values())


def test_absent_device_is_reported_with_its_source_and_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = next((e.backend for e in registry.registered() if e.backend and e.backend.unavailable()), None)
    if absent is None:
        pytest.skip("every backend is available here")
    monkeypatch.setenv("TRIDAL_DEVICE", absent.name)
    settings.reload()
    device = report(code=1)["device"]
    assert device["asked"] == absent.name
    assert f"environment TRIDAL_DEVICE: device: {absent.name!r} is not available here" in device["problem"]
    assert absent.install in device["problem"]
    assert "'auto'" in device["problem"]


class Faulty(FakeBackend):
    """A backend without architectures, whose properties are a function."""

    def __init__(self, properties: Callable[[int], Any]) -> None:
        super().__init__("faulty", device_type="faulty", interpreted=True)
        self.properties = properties  # type: ignore[method-assign]

    def architectures(self) -> dict[str, Any]:
        return {}


def test_exception_of_a_plugin_and_its_slow_import_are_reported(
    register: Callable[[registry.Registered], None],
) -> None:
    def properties(index: int) -> Any:
        raise RuntimeError("the driver went away")

    backend = CheckedBackend(Faulty(properties), "vendor 1.0")
    register(registry.Registered("faulty", "vendor 1.0", backend, seconds=2.5))
    result = report()
    problem = "backend 'faulty' (vendor 1.0): properties(0) raised RuntimeError: the driver went away"
    assert problem in result["problems"]
    assert [each["name"] for each in result["backends"]] == [entry.name for entry in registry.registered()]
    assert result["backends"][-1]["seconds"]["import"] == 2.5
    assert "slow: import 2.5 s" in run("doctor").output


BROKEN_METADATA = {
    "line": ("Name: line", "[tridal.backends]\nno equals sign", ""),
    "bytes": ("Name: bytes", b"[tridal.ops]\nx=y:\xff", "UnicodeDecodeError: 'utf-8' codec"),
    "name": ("Version: 1.0", "[tridal.ops]\nx=y:z", "ValueError: the file METADATA is missing or has no name"),
    "text": (b"Name: \xff", "[tridal.ops]\nx=y:z", "UnicodeDecodeError: 'utf-8' codec"),
}


def test_plugins_with_broken_metadata_are_problems_and_those_of_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, (metadata, points, _) in {**BROKEN_METADATA, "other": ("", "[console_scripts]\nx", "")}.items():
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "RECORD").write_text(f"{name}.py,,\n")
        for file, content in (("METADATA", metadata), ("entry_points.txt", points)):
            (info / file).write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
    problems = [problem for problem in report()["problems"] if str(tmp_path) in problem]
    assert len(problems) == len(BROKEN_METADATA)
    for name, (*_, reason) in BROKEN_METADATA.items():
        start = f"the plugins in {tmp_path}/{name}-1.0.dist-info cannot be found: {reason}"
        assert any(problem.startswith(start) for problem in problems), problems


def test_time_of_a_slow_member_is_shown(
    monkeypatch: pytest.MonkeyPatch, register: Callable[[registry.Registered], None]
) -> None:
    clock = [0.0]

    def properties(index: int) -> Any:
        clock[0] += 1.5
        return FakeBackend("any").properties(index)

    register(registry.Registered("faulty", "vendor 1.0", CheckedBackend(Faulty(properties), "vendor 1.0")))
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert "slow: properties 1.5 s" in run("doctor").output


def test_two_triton_distributions_are_reported_as_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_distributions", lambda package: {"triton": "3.7.1", "triton-ascend": "3.2.0"})
    problems = report()["problems"]
    assert any("triton and triton-ascend are installed together" in problem for problem in problems)


def notes() -> list[str]:
    """The notes of the report, without that about the installed versions."""
    return [note for note in report()["notes"] if "not tested together" not in note]


def test_triton_interpret_selects_the_interpreter_and_beside_a_device_is_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    settings.reload()
    device = report()["device"]
    assert (device["source"], device["backend"], notes()) == ("environment TRITON_INTERPRET", "interpreter", [])
    monkeypatch.setenv("TRIDAL_DEVICE", "cpu")
    settings.reload()
    (note,) = notes()
    assert note.startswith("TRITON_INTERPRET is set, but environment TRIDAL_DEVICE selects the device. Unset ")


def test_ignored_settings_file_is_a_note(no_settings: Path) -> None:
    (no_settings / "tridal.yml").write_text("device: cpu\n")
    (note,) = notes()
    assert note.startswith("the settings in tridal.yml are ignored: only a file with the name tridal.yaml is read")
    assert note in run("doctor").output


def test_ops_that_cannot_be_listed_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def registered() -> None:
        raise RuntimeError("no table today")

    monkeypatch.setattr(table, "registered", registered)
    found = report(code=1)
    assert found["ops"] == []
    assert any("the ops cannot be listed" in line and "no table today" in line for line in found["problems"])
