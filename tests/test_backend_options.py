"""Options of backends: defaults, settings, and errors for wrong options and unknown backends."""

from __future__ import annotations

import pytest

from backend_helpers import FakeBackend
from tridal.devices import registry, settings
from tridal.errors import SettingsError

pytestmark = pytest.mark.usefixtures("fresh_registry")


def test_settings_and_environment_override_option_defaults(monkeypatch):
    fake = FakeBackend()
    assert registry.options(fake, settings.current()) == {"size": 4}
    with settings.use(backends={"fake": {"size": 9}, "other": {"size": 1}}) as changed:
        assert registry.options(fake, changed) == {"size": 9}
    monkeypatch.setenv("TRIDAL_FAKE_SIZE", "7")
    assert registry.options(fake, settings.reload()) == {"size": 7}


def test_wrong_option_in_a_file_gives_line_key_expected_and_found(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text("backends:\n  fake:\n    size: many\n")
    with pytest.raises(SettingsError) as raised:
        registry.options(FakeBackend(), settings.read_file(file))
    assert str(raised.value) == f"{file}:3: backends.fake.size: expected a number above 0, found 'many'"


def test_wrong_option_in_the_environment_gives_variable_key_expected_and_found(monkeypatch):
    monkeypatch.setenv("TRIDAL_FAKE_SIZE", "-1")
    with pytest.raises(SettingsError, match=r"environment TRIDAL_FAKE_SIZE: backends\.fake\.size: expected .*found -1"):
        registry.options(FakeBackend(), settings.reload())


def test_unknown_option_suggests_similar_and_lists_known_options():
    with settings.use(backends={"fake": {"szie": 1}}) as changed, pytest.raises(SettingsError) as raised:
        registry.options(FakeBackend(), changed)
    assert str(raised.value) == (
        "tridal.use: backends.fake.szie: backend 'fake' has no such option; did you mean 'size'? (known: size)"
    )


def test_unknown_option_of_a_backend_without_options_says_that_it_has_none(monkeypatch):
    monkeypatch.setenv("TRIDAL_FAKE_SIZE", "-1")
    with pytest.raises(SettingsError, match=r"has no such option \(it has none\)"):
        registry.options(FakeBackend(options={}), settings.reload())


def test_every_option_of_installed_backends_has_valid_default_and_help():
    for entry in registry.registered():
        if entry.backend is not None:
            assert registry.options(entry.backend, settings.current()).keys() == entry.backend.options.keys()
            for key, option in entry.backend.options.items():
                assert option.expected, key
                assert option.help, key


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("TRIDAL_NUP_NUM_PROGRAMS", ["no backend is called 'nup'; did you mean 'TRIDAL_NPU_NUM_PROGRAMS'"]),
        ("TRIDAL_FALL_BACK", ["environment TRIDAL_FALL_BACK", "did you mean 'TRIDAL_FALLBACK'?"]),
        ("TRIDAL_NPU_NUM_PROGRAM", ["environment TRIDAL_NPU_NUM_PROGRAM", "did you mean 'num_programs'"]),
    ],
)
def test_misspelt_variable_raises_in_every_call_and_suggests_similar(monkeypatch, variable, expected):
    monkeypatch.setenv(variable, "1")
    settings.reload()
    for attempt in (registry.serving, registry.serving, lambda _: registry.check(settings.current())):
        with pytest.raises(SettingsError) as raised:
            attempt("cpu")
        for part in expected:
            assert part in str(raised.value)


def test_section_of_unknown_backend_gives_line_suggestion_and_known_backends(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text("backends:\n  npuu:\n    num_programs: 1\n")
    with pytest.raises(SettingsError) as raised:
        registry.check_backends(settings.read_file(file))
    assert f"{file}:3: backends.npuu.num_programs: no backend is called 'npuu'; did you mean 'npu'" in str(raised.value)
    assert "known: cuda, interpreter, npu, rocm" in str(raised.value)


def test_unknown_backend_in_use_raises_at_the_next_lookup():
    registry.serving("cpu")
    with (
        settings.use(backends={"nobody": {"x": 1}}),
        pytest.raises(SettingsError, match="no backend is called 'nobody'"),
    ):
        registry.serving("cpu")
    assert registry.serving("cpu") is None


def test_options_of_a_broken_plugin_are_not_checked(install_plugin):
    install_plugin("badly", {"bad": "badly:backend"}, "raise RuntimeError")
    with settings.use(backends={"bad": {"x": 1}}):
        assert registry.serving("cpu") is None
