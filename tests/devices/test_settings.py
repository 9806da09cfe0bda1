"""Settings: sources and their precedence, which file is read, and environment variables."""

from __future__ import annotations

import inspect
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tridal.devices import setting_layers, settings
from tridal.devices.settings import Settings, current, reload, use
from tridal.errors import SettingsError


@pytest.fixture(autouse=True)
def folder(no_settings):
    """The working folder, which is empty."""
    return no_settings


def write_file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# -- values and sources


def test_defaults_have_the_source_default():
    assert current().device == "auto"
    assert current().fallback == "torch"
    assert current().backends == {}
    assert current().sources == dict.fromkeys(setting_layers.FIELDS, "default")


def test_fields_settings_and_use_have_the_same_names():
    named = {*setting_layers.FIELDS, "backends"}
    assert {*Settings.__dataclass_fields__} == named | {"sources", "layer"}
    assert {*inspect.signature(use).parameters} == named - {"plugins"}  # plugins are loaded once in a process


def test_every_setting_has_valid_default_and_help():
    for key, option in setting_layers.FIELDS.items():
        assert option.accepts(option.default), key
        assert option.expected, key
        assert option.help, key


def test_use_overrides_environment_which_overrides_file(folder, monkeypatch):
    assert current().fallback == "torch"
    write_file(
        folder / "tridal.yaml", "device: aaa\nfallback: error\nbackends:\n  npu:\n    num_programs: 8\n    other: x\n"
    )
    assert reload().device == "aaa"
    monkeypatch.setenv("TRIDAL_DEVICE", "bbb")
    monkeypatch.setenv("TRIDAL_NPU_NUM_PROGRAMS", "cores")
    merged = reload()
    assert (merged.device, merged.fallback) == ("bbb", "error")
    assert merged.backends == {"npu": {"num_programs": "cores", "other": "x"}}
    with use(device="ccc", backends={"npu": {"other": "y"}}) as inside:
        assert inside is current()
        assert inside.backends == {"npu": {"num_programs": "cores", "other": "y"}}
        assert inside.sources == {
            "device": "tridal.use",
            "fallback": "tridal.yaml:2",
            "batch_invariant": "default",
            "dump": "default",
            "kernel_configs": "default",
            "plugins": "default",
            "backends.npu.num_programs": "environment TRIDAL_NPU_NUM_PROGRAMS",
            "backends.npu.other": "tridal.use",
        }
    assert current() is merged


DEVICES = st.one_of(st.none(), st.sampled_from(["cpu", "npu", "some:1", "auto"]))


@hypothesis.settings(deadline=None)  # this test writes files, which can be slow
@given(file=DEVICES, variable=DEVICES, argument=DEVICES)
def test_source_is_the_first_layer_that_has_the_setting(tmp_path_factory, file, variable, argument):
    path = write_file(tmp_path_factory.mktemp("layers") / "x.yaml", f"\n\ndevice: {file}\n" if file else "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIDAL_CONFIG", str(path))
        if variable:
            patch.setenv("TRIDAL_DEVICE", variable)
        reload()
        with use(device=argument) as changed:
            by_precedence = [
                (argument, "tridal.use"),
                (variable, "environment TRIDAL_DEVICE"),
                (file, f"{path}:3"),
                ("auto", "default"),
            ]
            assert (changed.device, changed.sources["device"]) == next(pair for pair in by_precedence if pair[0])


def test_settings_are_immutable():
    with use(backends={"npu": {"num_programs": 1}}) as changed:
        with pytest.raises(AttributeError):
            changed.device = "cpu"
        with pytest.raises(TypeError):
            changed.backends["npu"]["num_programs"] = 2
        with pytest.raises(TypeError):
            changed.sources["device"] = "me"


# -- choice of the file


def test_tridal_config_precedes_working_folder_which_precedes_user_folder(folder, monkeypatch):
    assert settings.config_file() is None
    users = write_file(folder / "user/tridal/tridal.yaml", "device: users\nfallback: error\n")
    assert (reload().device, settings.config_file()) == ("users", users)
    write_file(folder / "tridal.yaml", "device: here\n")
    assert (reload().device, reload().fallback) == ("here", "torch")  # only one file is read
    named = write_file(folder / "named.yaml", "device: named\n")
    monkeypatch.setenv("TRIDAL_CONFIG", str(named))
    assert (reload().device, reload().sources["device"]) == ("named", f"{named}:1")


def test_user_folder_is_dot_config_without_xdg_config_home(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    write_file(tmp_path / ".config/tridal/tridal.yaml", "device: home\n")
    assert reload().device == "home"
    named = write_file(tmp_path / "named.yaml", "device: tilde\n")
    monkeypatch.setenv("TRIDAL_CONFIG", f"~/{named.name}")
    assert reload().device == "tilde"


def test_missing_file_in_tridal_config_raises(monkeypatch):
    monkeypatch.setenv("TRIDAL_CONFIG", "nowhere.yaml")
    with pytest.raises(SettingsError, match=r"nowhere\.yaml: cannot be read: No such file"):
        reload()


# -- environment variables


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TRIDAL_DEVCE", "cpu", ["environment TRIDAL_DEVCE: no such setting", "did you mean 'TRIDAL_DEVICE'?"]),
        ("TRIDAL_", "cpu", ["environment TRIDAL_: no such setting", "TRIDAL_<BACKEND>_<OPTION>"]),
        ("TRIDAL__X", "cpu", ["environment TRIDAL__X: no such setting"]),
        ("TRIDAL_KERNELIZE", "7", ["environment TRIDAL_KERNELIZE: expected 1 or 0, found '7'"]),
        ("TRIDAL_LOG_CALLS", "all", ["environment TRIDAL_LOG_CALLS: expected 1 or 0, found 'all'"]),
    ],
)
def test_wrong_variable_gives_its_name_expected_and_found(monkeypatch, name, value, expected):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as raised:
        reload()
    for part in expected:
        assert part in str(raised.value)


def test_variables_of_backends_are_parsed_as_yaml_scalars(monkeypatch):
    monkeypatch.setenv("TRIDAL_NPU_NUM_PROGRAMS", "32")
    monkeypatch.setenv("TRIDAL_NPU_CHECKED", "true")
    monkeypatch.setenv("TRIDAL_NPU_NAME", "'32'")
    monkeypatch.setenv("TRIDAL_NPU_LIST", "[1, 2")
    assert reload().backends == {"npu": {"num_programs": 32, "checked": True, "name": "32", "list": "[1, 2"}}
    assert current().sources["backends.npu.num_programs"] == "environment TRIDAL_NPU_NUM_PROGRAMS"


def test_empty_variable_is_ignored(monkeypatch):
    monkeypatch.setenv("TRIDAL_DEVICE", "")
    monkeypatch.setenv("TRIDAL_CONFIG", "")
    assert reload().sources["device"] == "default"


# -- reading


def test_wrong_file_changes_no_setting_and_raises_again(folder):
    assert current().device == "auto"
    write_file(folder / "tridal.yaml", "device: cpu\nfallback: nonsense\n")
    for attempt in (reload, current, current):
        with pytest.raises(SettingsError, match="fallback"):
            attempt()
    write_file(folder / "tridal.yaml", "device: cpu\n")
    assert current().device == "cpu"


def test_text_of_settings_has_no_layers():
    assert "layer" not in repr(current())
