"""Settings in `tridal.use`, the environment and files: values, and errors with the source, for settings and options."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import tridal
from backend_helpers import FakeBackend
from tridal.devices import registry, setting_layers, settings
from tridal.devices.settings import Settings
from tridal.devices.types import Option
from tridal.errors import DeviceUnavailableError, SettingsError, UnknownDeviceError

pytestmark = pytest.mark.usefixtures("fresh_registry")

FLAG = Option(False, "true or false", lambda value: isinstance(value, bool))
FAKE = FakeBackend(options={"size": FakeBackend().options["size"], "fast": FLAG})


class Source:
    """A source of settings. Keys are dotted."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self.name, self._monkeypatch, self._stack = name, monkeypatch, stack

    def location(self, key: str) -> str:
        """The start of an error for a key."""
        variable = setting_layers.variable(*key.removeprefix("backends.").split("."))
        line = len(key.split("."))
        return {"file": f"tridal.yaml:{line}", "environment": f"environment {variable}"}.get(self.name, self.name)

    def put(self, key: str, value: object) -> Settings:
        """Sets a value, and returns the current settings."""
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        if self.name == "tridal.use":
            return self._stack.enter_context(settings.use(**nested))
        if self.name == "file":
            Path("tridal.yaml").write_text(yaml.safe_dump(nested))
        else:
            self._monkeypatch.setenv(self.location(key).partition(" ")[2], json.dumps(value))
        return settings.reload()


@pytest.fixture(params=["tridal.use", "environment", "file"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    with ExitStack() as stack:
        yield Source(request.param, monkeypatch, stack)


# -- settings


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("device", "fake:1", "fake:1"),
        ("fallback", "error", "error"),
        ("batch_invariant", True, True),
        ("batch_invariant", 1, True),
        ("batch_invariant", 0, False),
    ],
)
def test_value_and_its_source(source: Source, key: str, value: object, expected: object) -> None:
    found = source.put(key, value)
    assert getattr(found, key) == expected
    assert found.sources[key] == source.location(key)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        *(("device", value, "'auto', or a backend's name or a torch device, which can have an index (name:1)")
          for value in (3, "no such", "auto:0", "cpu:x", False)),
        *(("fallback", value, "'torch' or 'error'") for value in ("never", False, 1)),
        *(("batch_invariant", value, "true or false") for value in (2, -1, "maybe", 1.0)),
    ],
)  # fmt: skip
def test_wrong_value_gives_source_key_expected_and_found(
    source: Source, key: str, value: object, expected: str
) -> None:
    before = settings.current()
    with pytest.raises(SettingsError) as raised:
        source.put(key, value)
    assert str(raised.value) == f"{source.location(key)}: {key}: expected {expected}, found {value!r}"
    if source.name == "tridal.use":
        assert settings.current() is before


def test_error_for_an_unavailable_device_names_its_source(source: Source) -> None:
    registry.register(FakeBackend(reason="no driver"))
    source.put("device", "fake")
    message = (
        f"{source.location('device')}: device: 'fake' is not available here: no driver. To get it: pip install fake. "
        "To use the first available device: 'auto'"
    )
    for attempt in (tridal.device, lambda: registry.serving("faketype")):
        with pytest.raises(DeviceUnavailableError) as raised:
            attempt()
        assert str(raised.value) == message


@pytest.mark.parametrize("device", ["fake:7", "interpeter", "gpu"])
def test_error_for_an_unknown_device_or_index_names_its_source(source: Source, device: str) -> None:
    registry.register(FakeBackend())
    source.put("device", device)
    with pytest.raises((DeviceUnavailableError, UnknownDeviceError)) as raised:
        tridal.device()
    missing = "'fake:7' is not here: backend 'fake' has 2 dev" if ":" in device else f"no device is called {device!r}"
    assert str(raised.value).startswith(f"{source.location('device')}: device: {missing}")


def test_device_with_the_name_auto_has_no_index() -> None:
    with pytest.raises(UnknownDeviceError, match="'auto:0' is not a device"):
        tridal.device("auto:0")


# -- options of backends


@pytest.mark.parametrize(("option", "value", "expected"), [("size", 7, 7), ("fast", 1, True), ("size", 1, 1)])
def test_option_of_a_backend(source: Source, option: str, value: object, expected: object) -> None:
    assert registry.options(FAKE, settings.current()) == {"size": 4, "fast": False}
    found = registry.options(FAKE, source.put(f"backends.fake.{option}", value))
    assert found == {"size": 4, "fast": False, option: expected}
    assert type(found[option]) is type(expected)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("size", "many", "expected a number above 0, found 'many'"),
        ("size", -1, "expected a number above 0, found -1"),
        ("szie", 1, "backend 'fake' has no such option; did you mean 'size'? (known: fast, size)"),
    ],
)
def test_wrong_option_gives_source_key_expected_and_found(
    source: Source, key: str, value: object, expected: str
) -> None:
    key = f"backends.fake.{key}"
    with pytest.raises(SettingsError) as raised:
        registry.options(FAKE, source.put(key, value))
    assert str(raised.value) == f"{source.location(key)}: {key}: {expected}"


def test_option_of_a_backend_without_options_says_that_it_has_none(source: Source) -> None:
    with pytest.raises(SettingsError, match=r"backend 'fake' has no such option \(it has none\)"):
        registry.options(FakeBackend(options={}), source.put("backends.fake.size", 1))


def test_section_of_an_unknown_backend_raises_at_each_lookup_with_a_suggestion(source: Source) -> None:
    registry.serving("cpu")
    key = "backends.npuu.num_programs"
    chosen = source.put(key, 1)
    near = "'TRIDAL_NPU_NUM_PROGRAMS'" if source.name == "environment" else "'npu'"
    for attempt in (registry.serving, registry.serving, lambda _: registry.check(chosen)):
        with pytest.raises(SettingsError) as raised:
            attempt("cpu")
        message = f"{source.location(key)}: {key}: no backend is called 'npuu'; did you mean {near}"
        assert str(raised.value).startswith(message)
        assert "known: cuda, interpreter, npu, rocm" in str(raised.value)


@pytest.mark.parametrize(
    ("variable", "suggested"), [("TRIDAL_FALL_BACK", "TRIDAL_FALLBACK"), ("TRIDAL_NPU_NUM_PROGRAM", "num_programs")]
)
def test_misspelt_variable_raises_in_every_call_and_suggests_similar(
    monkeypatch: pytest.MonkeyPatch, variable: str, suggested: str
) -> None:
    monkeypatch.setenv(variable, "1")
    settings.reload()
    for _ in range(2):
        with pytest.raises(SettingsError, match=f"environment {variable}: .*did you mean '{suggested}'"):
            registry.serving("cpu")


def test_every_option_of_installed_backends_has_valid_default_and_help() -> None:
    for backend in registry.loaded():
        assert registry.options(backend, settings.current()).keys() == backend.options.keys()
        assert all(option.expected and option.help for option in backend.options.values())


def test_options_of_a_broken_plugin_are_not_checked(install_plugin: Any) -> None:
    install_plugin("badly", {"bad": "badly:backend"}, "raise RuntimeError")
    with settings.use(backends={"bad": {"x": 1}}):
        assert registry.serving("cpu") is None


# -- variables that are not settings


@pytest.mark.parametrize(
    ("value", "device"), [("1", "interpreter"), ("True", "interpreter"), ("0", "auto"), ("", "auto"), ("no", "auto")]
)
def test_triton_interpret_selects_the_interpreter(monkeypatch: pytest.MonkeyPatch, value: str, device: str) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", value)
    chosen = settings.reload()
    assert chosen.device == device
    assert chosen.sources["device"] == ("default" if device == "auto" else "environment TRITON_INTERPRET")
    assert registry.get(setting_layers.INTERPRETER).interpreted


def test_every_setting_precedes_triton_interpret(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    settings.reload()
    assert source.put("device", "meta").sources["device"] == source.location("device")


def test_flag_reads_variables_that_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("1", "YES", " on ", "true", "", "0", "off"):
        monkeypatch.setenv("TRIDAL_LOG_CALLS", value)
        assert settings.flag("TRIDAL_LOG_CALLS") == (value not in ("", "0", "off"))
    monkeypatch.setenv("TRIDAL_LOG_CALLS", "all")
    with pytest.raises(SettingsError, match="environment TRIDAL_LOG_CALLS: expected 1 or 0, found 'all'"):
        settings.flag("TRIDAL_LOG_CALLS")


@pytest.mark.parametrize("name", ["TRIDAL_device", "TRIDAL_Fake_Size", "TRIDAL_config", "TRIDAL_log_calls"])
@pytest.mark.parametrize("beside", [False, True])
def test_variable_in_lower_case_is_an_error_that_suggests_the_right_name(
    monkeypatch: pytest.MonkeyPatch, name: str, beside: bool
) -> None:
    monkeypatch.setenv(name, "1")
    if beside and "config" not in name:
        monkeypatch.setenv(name.upper(), "cpu" if "device" in name else "1")
    near = "" if "Fake" in name else f"; did you mean '{name.upper()}'?"
    with pytest.raises(SettingsError, match=rf"environment {name}: no such setting{re.escape(near)}"):
        settings.reload()


@pytest.mark.parametrize("number", ["010", "1_000", "0x10", "1:30"])
def test_number_that_is_not_decimal_is_an_error_in_every_source(
    no_settings: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    registry.register(FAKE)
    Path("tridal.yaml").write_text(f"backends: {{fake: {{size: {number}}}}}")
    monkeypatch.setenv("TRIDAL_FAKE_SIZE", number)
    for source in ("environment TRIDAL_FAKE_SIZE", "tridal.yaml:1"):
        with pytest.raises(SettingsError) as raised:
            registry.options(FAKE, settings.reload())
        assert str(raised.value) == f"{source}: backends.fake.size: expected a number above 0, found {number!r}"
        monkeypatch.delenv("TRIDAL_FAKE_SIZE", raising=False)


# -- all mistakes of a file


def test_check_file_yields_every_mistake_and_every_correct_setting(no_settings: Path) -> None:
    file = no_settings / "bad.yaml"
    file.write_text(
        "devcie: cpu\nfallback: never\ndevice: cpu\nbatch_invariant: 2020-99-99\nfallback: error\n"
        "backends:\n  npu: 3\n  interpreter:\n    num_programs: 2\n    num_programs: 3\n"
    )
    found = list(settings.check_file(file))
    mistakes = sorted(str(item).removeprefix(f"{file}:") for item in found if isinstance(item, SettingsError))
    expected = [
        "10: backends.interpreter.num_programs: the key is on line 9 already; remove one",
        "1: no setting is called 'devcie'; did you mean 'device'?",
        "2: fallback: expected 'torch' or 'error', found 'never'",
        "4: batch_invariant: expected true or false, found '2020-99-99'",
        "5: fallback: the key is on line 2 already; remove one",
        "7: backends.npu: expected a mapping, found 3",
    ]
    assert len(mistakes) == len(expected)
    assert all(message.startswith(start) for message, start in zip(mistakes, expected, strict=True)), mistakes
    correct = [item for item in found if isinstance(item, settings.Settings)]
    assert [item.device for item in correct] == ["cpu", "auto"]
    assert correct[1].backends == {"interpreter": {"num_programs": 2}}
    (missing,) = settings.check_file(no_settings / "none.yaml")
    assert "cannot be read" in str(missing)
