"""Plugins: discovery through entry points, and names that several plugins use."""

from __future__ import annotations

import sys

import pytest

from backend_helpers import BUNDLED, at_the_same_time, toy_source
from tridal.devices import registry, settings
from tridal.errors import PluginError, SettingsError

pytestmark = pytest.mark.usefixtures("fresh_registry")


def problem_of(name: str) -> str:
    """Returns the recorded problem of a broken plugin. Checks that the bundled backends are usable."""
    entries = {entry.name: entry for entry in registry.registered()}
    assert {key for key, entry in entries.items() if entry.backend is not None} >= BUNDLED
    assert entries[name].backend is None
    with pytest.raises(PluginError) as raised:
        registry.get(name)
    assert entries[name].fault is not None
    assert entries[name].fault in str(raised.value)
    assert entries[name].origin in str(raised.value)
    return entries[name].fault


def messages_about(caplog, origin: str) -> list[str]:
    """Returns the log messages that name a distribution."""
    return [record.getMessage() for record in caplog.records if origin in record.getMessage()]


# -- discovery


def test_threads_discover_plugins_only_once(install_plugin, caplog):
    install_plugin("badly", {"bad": "badly:backend"}, "import time\ntime.sleep(0.1)\nraise RuntimeError('x')")
    results = at_the_same_time(*[registry.registered] * 8)
    assert all(entries is results[0] for entries in results)
    assert len(messages_about(caplog, "badly 1.0")) == 1


# -- broken plugins


def test_plugin_that_calls_the_registry_during_its_import_is_broken(install_plugin):
    install_plugin("eager", {"eager": "eager:backend"}, "from tridal import registry\nregistry.registered()")
    assert "called the registry while it was being imported" in problem_of("eager")


# -- names that are already in use


def test_plugin_with_a_bundled_name_is_shadowed_and_not_loaded(install_plugin, caplog):
    install_plugin("aardvark", {"npu": "aardvark:backend"}, "raise AssertionError('loaded')")
    entries = [entry for entry in registry.registered() if entry.name == "npu"]
    assert [entry.origin.split()[0] for entry in entries] == ["tridal", "aardvark"]
    assert entries[1].backend is None
    assert entries[1].fault == f"shadowed: {entries[0].origin} already uses this name"
    assert registry.get("npu") is entries[0].backend
    assert "'npu' of aardvark 1.0 cannot be used: shadowed" in caplog.text


# -- the setting `plugins`


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("all", BUNDLED | {"toya", "toyb"}),
        ("interpreter", {"interpreter"}),
        ("interpreter, toya", {"interpreter", "toya"}),
        ("-toya", BUNDLED | {"toyb"}),
        ("-toya,-toyb,-npu", BUNDLED - {"npu"}),
    ],
)
def test_setting_plugins_allows_or_blocks_backends_by_name(install_plugin, monkeypatch, caplog, rule, expected):
    install_plugin("first", {"toya": "first:backend"}, toy_source("toya"))
    install_plugin("second", {"toyb": "second:backend"}, toy_source("toyb"))
    monkeypatch.setenv("TRIDAL_PLUGINS", rule)
    settings.reload()
    entries = {entry.name: entry for entry in registry.registered()}
    assert {name for name, entry in entries.items() if entry.backend is not None} == expected
    for name in entries.keys() - expected:
        assert entries[name].fault == f"it is blocked by environment TRIDAL_PLUGINS: plugins: {rule}"
        with pytest.raises(PluginError, match="cannot be used: it is blocked by environment TRIDAL_PLUGINS"):
            registry.get(name)
    assert {"first", "second"} & sys.modules.keys() == {
        module for module, name in (("first", "toya"), ("second", "toyb")) if name in expected
    }
    assert caplog.messages == []


@pytest.mark.parametrize("rule", ["toy", "-toy", "interpreter,toy", "-all"])
def test_unknown_name_in_plugins_raises_settings_error_with_a_suggestion(install_plugin, monkeypatch, rule):
    install_plugin("first", {"toya": "first:backend"}, toy_source("toya"))
    monkeypatch.setenv("TRIDAL_PLUGINS", rule)
    settings.reload()
    unknown, near = ("all", "") if rule == "-all" else ("toy", "; did you mean 'toya'?")
    message = f"environment TRIDAL_PLUGINS: plugins: no backend is called '{unknown}'{near} (known: "
    for _ in range(2):
        with pytest.raises(SettingsError) as raised:
            registry.serving("cpu")
        assert str(raised.value) == message + ", ".join(sorted({*BUNDLED, "toya"})) + ")"
    assert "first" not in sys.modules
    monkeypatch.setenv("TRIDAL_PLUGINS", "toya")
    settings.reload()
    registry.serving("cpu")
    assert {backend.name for backend in registry.loaded()} == {"toya"}
