"""Settings in `tridal.use`, the environment and files: values, precedence, and errors with their source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend_helpers import FakeBackend
from tridal.devices import registry, setting_table, settings
from tridal.devices.settings import Settings
from tridal.devices.types import Option
from tridal.errors import SettingsError

pytestmark = pytest.mark.usefixtures("fresh_registry")

FLAG = Option(False, "true or false", lambda value: isinstance(value, bool))
FAKE = FakeBackend(options={"size": FakeBackend().options["size"], "fast": FLAG})


class Source:
    """A source of settings. Keys are dotted."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self.name, self._monkeypatch, self._stack = name, monkeypatch, stack

    def location(self, key: str) -> str:
        """The start of an error for a key."""
        variable = setting_table.variable(*key.removeprefix("backends.").split("."))
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


SOURCES = ["tridal.use", "environment", "file"]


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    with ExitStack() as stack:
        yield Source(request.param, monkeypatch, stack)


# -- values


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
    assert (type(getattr(found, key)), getattr(found, key)) == (type(expected), expected)
    assert found.sources[key] == source.location(key)


@pytest.mark.parametrize(("option", "value", "expected"), [("size", 7, 7), ("fast", 1, True), ("size", 1, 1)])
def test_option_of_a_backend(source: Source, option: str, value: object, expected: object) -> None:
    assert registry.options(FAKE, settings.current()) == {"size": 4, "fast": False}
    found = registry.options(FAKE, source.put(f"backends.fake.{option}", value))
    assert found == {"size": 4, "fast": False, option: expected}
    assert type(found[option]) is type(expected)


def test_use_precedes_environment_which_precedes_file_and_other_options_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        use, environment, file = (Source(name, monkeypatch, stack) for name in SOURCES)
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        assert settings.reload().sources["device"] == "environment TRITON_INTERPRET"
        for source, device in ((file, "a"), (environment, "b"), (use, "c")):
            found = source.put("device", device)
            assert (found.device, found.sources["device"]) == (device, source.location("device"))
        Path("tridal.yaml").write_text("fallback: error\nbackends: {npu: {num_programs: 8, other: x, third: z}}\n")
        environment.put("backends.npu.num_programs", "cores")
    with settings.use(backends={"npu": {"other": "y"}}) as found:
        assert (found.device, found.fallback) == ("b", "error")
        assert found.backends == {"npu": {"num_programs": "cores", "other": "y", "third": "z"}}
        changed = {key: source for key, source in found.sources.items() if source != "default"}
        assert changed == {
            "device": "environment TRIDAL_DEVICE",
            "fallback": "tridal.yaml:1",
            "backends.npu.num_programs": "environment TRIDAL_NPU_NUM_PROGRAMS",
            "backends.npu.other": "tridal.use",
            "backends.npu.third": "tridal.yaml:2",
        }


# -- errors


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        *(("device", value, "'auto', or a backend's name or a torch device, which can have an index (name:1)")
          for value in (3, "no such", "auto:0", "cpu:x", False)),
        *(("fallback", value, "'torch' or 'error'") for value in ("never", False)),
        *(("batch_invariant", value, "true or false") for value in (2, "maybe", 1.0)),
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
    else:
        with pytest.raises(SettingsError):
            settings.current()


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("size", "many", "expected a number above 0, found 'many'"),
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


def test_section_of_an_unknown_backend_raises_at_each_lookup_with_a_suggestion(source: Source) -> None:
    registry.serving("cpu")
    key = "backends.npuu.num_programs"
    source.put(key, 1)
    near = "'TRIDAL_NPU_NUM_PROGRAMS'" if source.name == "environment" else "'npu'"
    for _ in range(2):
        with pytest.raises(SettingsError) as raised:
            registry.serving("cpu")
        message = f"{source.location(key)}: {key}: no backend is called 'npuu'; did you mean {near}"
        assert str(raised.value).startswith(message)


# -- environment variables


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TRIDAL_DEVCE", "cpu", "no such setting; did you mean 'TRIDAL_DEVICE'? (known: TRIDAL_CONFIG, TRIDAL_"),
        ("TRIDAL_device", "cpu", "no such setting; did you mean 'TRIDAL_DEVICE'? (known: "),
        ("TRIDAL_config", "x", "no such setting; did you mean 'TRIDAL_CONFIG'? (known: "),
        ("TRIDAL_Fake_Size", "1", "no such setting (known: "),
        ("TRIDAL_", "cpu", "no such setting (known: "),
        ("TRIDAL__X", "cpu", "no such setting (known: "),
        ("TRIDAL_KERNELIZE", "7", "expected 1 or 0, found '7'"),
    ],
)
def test_wrong_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as raised:
        settings.reload()
    assert str(raised.value).startswith(f"environment {name}: {message}")
