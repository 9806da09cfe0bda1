"""Settings in the environment and in files: TRITON_INTERPRET, booleans, device names, and all mistakes of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

import tridal
from backend_helpers import FakeBackend
from tridal.devices import registry, setting_layers, settings
from tridal.devices.types import Option
from tridal.errors import DeviceUnavailableError, SettingsError, UnknownDeviceError

pytestmark = pytest.mark.usefixtures("fresh_registry")


# -- TRITON_INTERPRET


@pytest.mark.parametrize(
    ("value", "device"), [("1", "interpreter"), ("True", "interpreter"), ("0", "auto"), ("", "auto"), ("no", "auto")]
)
def test_triton_interpret_selects_the_interpreter(monkeypatch: pytest.MonkeyPatch, value: str, device: str) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", value)
    chosen = settings.reload()
    assert chosen.device == device
    assert chosen.sources["device"] == ("default" if device == "auto" else "environment TRITON_INTERPRET")


def test_name_of_the_interpreter_is_that_of_a_bundled_backend() -> None:
    assert registry.get(setting_layers.INTERPRETER).interpreted


def test_every_setting_precedes_triton_interpret(monkeypatch: pytest.MonkeyPatch, no_settings: Path) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with settings.use(device="meta"):
        assert settings.current().device == "meta"
    (no_settings / "tridal.yaml").write_text("device: cpu\n")
    assert settings.reload().sources["device"] == "tridal.yaml:1"
    monkeypatch.setenv("TRIDAL_DEVICE", "meta")
    assert settings.reload().device == "meta"


# -- booleans


@pytest.mark.parametrize(("text", "value"), [("1", True), ("0", False), ("true", True), ("no", False), ("on", True)])
def test_boolean_variable_takes_1_and_0(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("TRIDAL_BATCH_INVARIANT", text)
    assert settings.reload().batch_invariant is value


@pytest.mark.parametrize("text", ["2", "-1", "maybe", "1.0"])
def test_other_value_of_a_boolean_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TRIDAL_BATCH_INVARIANT", text)
    with pytest.raises(
        SettingsError, match="environment TRIDAL_BATCH_INVARIANT: batch_invariant: expected true or fal"
    ):
        settings.reload()


def test_boolean_option_of_a_backend_takes_1_and_0(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = Option(False, "true or false", lambda value: isinstance(value, bool))
    fake = FakeBackend(options={"fast": flag, "size": Option(4, "an integer", lambda value: type(value) is int)})
    registry.register(fake)
    monkeypatch.setenv("TRIDAL_FAKE_FAST", "1")
    monkeypatch.setenv("TRIDAL_FAKE_SIZE", "1")
    assert registry.options(fake, settings.reload()) == {"fast": True, "size": 1}
    assert registry.options(fake, settings.current())["fast"] is True


def test_flag_reads_variables_that_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("1", "YES", " on ", "true"):
        monkeypatch.setenv("TRIDAL_LOG_CALLS", value)
        assert settings.flag("TRIDAL_LOG_CALLS")
    for value in ("", "0", "off"):
        monkeypatch.setenv("TRIDAL_LOG_CALLS", value)
        assert not settings.flag("TRIDAL_LOG_CALLS")
    monkeypatch.setenv("TRIDAL_LOG_CALLS", "all")
    with pytest.raises(SettingsError, match="environment TRIDAL_LOG_CALLS: expected 1 or 0, found 'all'"):
        settings.flag("TRIDAL_LOG_CALLS")


# -- device names and their source


def test_auto_with_an_index_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownDeviceError, match="'auto:0' is not a device"):
        tridal.device("auto:0")
    with pytest.raises(SettingsError, match=r"tridal\.use: device: expected 'auto', or"):
        settings.use(device="auto:0")
    monkeypatch.setenv("TRIDAL_DEVICE", "auto:0")
    with pytest.raises(SettingsError, match="environment TRIDAL_DEVICE: device: expected 'auto', or"):
        settings.reload()


def test_error_for_an_unavailable_device_names_its_source(monkeypatch: pytest.MonkeyPatch, no_settings: Path) -> None:
    registry.register(FakeBackend(reason="no driver"))
    message = (
        "device: 'fake' is not available here: no driver. To get it: pip install fake. "
        "To use the first available device: 'auto'"
    )

    def error() -> str:
        with pytest.raises(DeviceUnavailableError) as raised:
            tridal.device()
        with pytest.raises(DeviceUnavailableError) as from_serving:
            registry.serving("faketype")
        assert str(raised.value) == str(from_serving.value)
        return str(raised.value)

    (no_settings / "tridal.yaml").write_text("\ndevice: fake\n")
    settings.reload()
    assert error() == f"tridal.yaml:2: {message}"
    monkeypatch.setenv("TRIDAL_DEVICE", "fake")
    settings.reload()
    assert error() == f"environment TRIDAL_DEVICE: {message}"
    with settings.use(device="fake"):
        assert error() == f"tridal.use: {message}"


def test_error_for_an_index_out_of_range_names_its_source() -> None:
    registry.register(FakeBackend())
    with settings.use(device="fake:7"), pytest.raises(DeviceUnavailableError) as raised:
        tridal.device()
    assert str(raised.value).startswith("tridal.use: device: 'fake:7' is not here")


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
        "4: not a valid value: ",
        "5: fallback: the key is on line 2 already; remove one",
        "7: backends.npu: expected a mapping, found 3",
    ]
    assert len(mistakes) == len(expected)
    assert all(message.startswith(start) for message, start in zip(mistakes, expected, strict=True)), mistakes
    correct = [item for item in found if isinstance(item, settings.Settings)]
    assert [item.device for item in correct] == ["cpu", "auto"]
    assert correct[1].backends == {"interpreter": {"num_programs": 2}}


def test_check_file_yields_the_error_of_a_file_that_cannot_be_read(no_settings: Path) -> None:
    (found,) = settings.check_file(no_settings / "none.yaml")
    assert "cannot be read" in str(found)
