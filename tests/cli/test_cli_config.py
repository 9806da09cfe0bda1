"""Tests `tridal config`: its output, its error messages, and the settings files in configs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli_helpers import run, run_json
from tridal.cli.config import effective
from tridal.devices import registry, setting_table, settings
from tridal.errors import TridalError

CONFIGS = Path(__file__).parents[2] / "configs"
NAMES = ["cuda", "default", "interpreter", "npu", "rocm", "xpu"]


@pytest.fixture(autouse=True)
def home(no_settings):
    """The working folder."""
    settings._base = None
    return no_settings


def printed(*arguments: str) -> str:
    return run("config", *arguments).stdout


def error_message(*arguments: str) -> str:
    """Returns what the command prints on stderr, without the name of the program."""
    return run("config", *arguments, code=1).stderr.replace("tridal: ", "").rstrip("\n")


def test_json_has_every_value_with_its_source(home, monkeypatch):
    (home / "tridal.yaml").write_text("fallback: error\n")
    monkeypatch.setenv("TRIDAL_DEVICE", "cpu")
    monkeypatch.setenv("TRIDAL_INTERPRETER_NUM_PROGRAMS", "2")
    report = run_json("config")
    assert report.keys() == {"file", "ignored", "settings"}
    assert report["file"] == "tridal.yaml"
    assert report["settings"]["device"] == {"value": "cpu", "source": "environment TRIDAL_DEVICE"}
    assert report["settings"]["fallback"] == {"value": "error", "source": "tridal.yaml:1"}
    assert report["settings"]["backends.interpreter.num_programs"] == {
        "value": 2,
        "source": "environment TRIDAL_INTERPRETER_NUM_PROGRAMS",
    }


@pytest.mark.parametrize("name", NAMES)
def test_check_accepts_the_files_in_configs(name):
    file = str(CONFIGS / f"{name}.yaml")
    first, *notes = printed("--check", file).splitlines()
    assert first == f"{file}: ok"
    unavailable = name in {*NAMES} - {"default"} and registry.get(name).unavailable()
    assert len(notes) == bool(unavailable)
    assert all(note.startswith(f"note: {file}:2: device: {name!r} is not available") for note in notes)
    report = run_json("config", "--check", file)
    assert (report["file"], report["ok"]) == (file, True)
    assert report["settings"]["device"]["value"] == {"default": "auto"}.get(name, name)


def test_default_file_has_the_defaults_of_the_code():
    in_file = effective(settings.read_file(CONFIGS / "default.yaml"))
    bundled = set(setting_table.FIELDS) | {
        f"backends.{entry.name}.{option}"
        for entry in registry.registered()
        if entry.origin.startswith("tridal ") and entry.backend is not None
        for option in entry.backend.options
    }
    assert {key for key, row in in_file.items() if row["source"] != "default"} == bundled
    in_code = effective(settings.current())
    assert {key: in_file[key]["value"] for key in bundled} == {key: in_code[key]["value"] for key in bundled}


def test_check_reports_all_mistakes_in_the_order_of_their_lines(home):
    (home / "bad.yaml").write_text(
        "device: inter\nfallback: never\nbackends:\n  npu:\n    num: 3\n  nothing:\n    x: 1\n"
    )
    expected = [
        "1: device: no device is",
        "2: fallback: expected",
        "5: backends.npu.num: backend",
        "7: backends.nothing.x: no",
    ]
    lines = error_message("--check", "bad.yaml").splitlines()
    assert [line.startswith(f"bad.yaml:{start}") for line, start in zip(lines, expected, strict=True)] == [True] * 4
    assert run_json("config", "--check", "bad.yaml", code=1)["errors"] == lines


def test_ignored_and_replaced_files_are_shown(home):
    (home / "tridal.yaml").write_text("device: cpu\n")
    (home / ".tridal.yaml").write_text("device: cpu\n")
    user = home / "user" / "tridal" / "tridal.yaml"
    user.parent.mkdir(parents=True)
    user.write_text("fallback: error\n")
    output = printed()
    assert "ignored .tridal.yaml: only a file with the name tridal.yaml is read; rename it" in output
    assert f"ignored {user}: tridal.yaml takes its place, because only one settings file is read" in output
    assert [Path(row["file"]) for row in run_json("config")["ignored"]] == [Path(".tridal.yaml"), user]


def test_documentation_has_every_setting_and_variable():
    text = (CONFIGS.parent / "docs/configuration.md").read_text()
    bundled = [entry for entry in registry.registered() if entry.origin.startswith("tridal ")]
    rows = [(key, setting_table.variable(key), option) for key, option in setting_table.FIELDS.items()]
    for entry in bundled:
        for name, option in registry.get(entry.name).options.items():
            rows.append((f"backends.{entry.name}.{name}", setting_table.variable(entry.name, name), option))
    for key, variable, option in rows:
        assert f"| `{key}` | `{variable}` | `{option.default}` |" in text
    for variable in setting_table.VARIABLES:
        assert f"| `{variable}` |" in text


def use_settings():
    registry.check_backends(settings.current())
    registry.resolve_chosen(settings.current())


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("devcie: cpu\n", {}),
        ("device: cpu\n\n\ndevice: cpu\n", {}),
        ("device: cpu\nfallback: tourch\n", {}),
        ("device: cpu\n\nfallback: x: y\n", {}),
        ("kernel_configs: [{kernel: softmax, dtype: float32, cols: 8, config: {schedule: whole_row, warps: 2}}]\n", {}),
        ("", {"TRIDAL_CONFIG": "/no/tridal.yaml"}),
        ("", {"TRIDAL_INTERPRETER_NUM_PROGRAMS": "010"}),
        ("", {"TRIDAL_DEVCE": "cpu"}),
        ("", {"TRIDAL_KERNELIZE": "7"}),
        ("", {"TRIDAL_PLUGINS": "cud"}),
        ("", {"TRIDAL_NPU_NUM_PROGRAM": "3"}),
        ("", {"TRIDAL_DEVICE": "interpeter"}),
        ("", {"TRIDAL_DEVICE": "gpu"}),
        ("", {"TRIDAL_DEVICE": "cpu:3"}),
    ],
    ids=lambda value: str(value).strip().splitlines()[-1] if value else None,
)
@pytest.mark.usefixtures("fresh_registry")
def test_documentation_shows_the_messages(home, monkeypatch, text, variables):
    (home / "tridal.yaml").write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings._base = None
    with pytest.raises(TridalError) as raised:
        use_settings()
    text = (CONFIGS.parent / "docs/configuration.md").read_text()
    assert f" {raised.value} " in " ".join(text.split()), "the page wraps its lines"


def test_page_of_environment_variables_has_every_variable_in_the_code():
    root = CONFIGS.parent
    text = (root / "docs/environment-variables.md").read_text()
    first_cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("|")]
    in_tables = {name for cell in first_cells for name in re.findall(r"`([A-Z_<>]+)`", cell)}
    bundled = [registry.get(entry.name) for entry in registry.registered() if entry.origin.startswith("tridal ")]
    options = {setting_table.variable(backend.name, option) for backend in bundled for option in backend.options}
    of_fields = map(setting_table.variable, setting_table.FIELDS)
    expected = {*setting_table.VARIABLES, *of_fields, *options, "TRIDAL_<BACKEND>_<OPTION>"}
    assert {name for name in in_tables if name.startswith(setting_table.PREFIX)} == expected
    files = [file for folder in ("src", "backends") for file in (root / folder).rglob("*.py")]
    sources = [source for source in map(Path.read_text, files) if re.search(r"\benviron\b|\bgetenv\b", source)]
    # A colon follows the names of variables that a child process gets.
    constants = {name for source in sources for name in re.findall(r'"([A-Z][A-Z_]{4,}[A-Z])"(?!:)', source)}
    assert len(sources) >= 4
    assert constants <= in_tables
