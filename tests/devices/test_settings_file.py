"""The settings file: which file is read, files with a wrong name, its values, and errors with file and line."""

from __future__ import annotations

import re
from pathlib import Path

import hypothesis
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tridal.devices import settings, settings_file
from tridal.devices.settings import Settings, check_file, read_file, reload
from tridal.devices.yaml_file import parse_text
from tridal.errors import SettingsError


@pytest.fixture(autouse=True)
def project(no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the working folder `package`."""
    (no_settings / "package").mkdir()
    monkeypatch.chdir(no_settings / "package")
    settings_file._warn_once.cache_clear()
    return no_settings


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# -- choice of the file


def test_nearest_file_precedes_the_user_s_and_tridal_config_precedes_both(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.config_file() is None
    files = [
        write(project / "user" / "tridal" / "tridal.yaml", "device: user\nfallback: error\n"),
        write(project / "tridal.yaml", "device: outer\n"),
        write(Path("tridal.yaml"), "device: here\n"),
    ]
    for file in reversed(files):
        assert (settings.config_file(), reload().device) == (file, read_file(file).device)
        file.rename(file.with_name("moved"))
    for file in files:
        file.with_name("moved").rename(file)
        assert reload().sources["device"] == f"{file}:1"
    assert reload().fallback == "torch", "only one file is read"
    reason = "tridal.yaml takes its place, because only one settings file is read"
    assert list(settings_file.ignored()) == [(files[1], reason), (files[0], reason)]
    monkeypatch.setenv("HOME", str(project))
    monkeypatch.setenv("TRIDAL_CONFIG", "~/named.yaml")
    write(project / "named.yaml", "device: named\n")
    assert reload().sources["device"] == f"{project}/named.yaml:1"


RENAME = "only a file with the name tridal.yaml is read; rename it"
MOVE = "[tool.tridal] is not read; move the settings to tridal.yaml in the same folder"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("tridal.yml", "", RENAME),
        ("pyproject.toml", '[project]\nname = "x"\n\n[ tool . tridal ]\ndevice = "cpu"\n', MOVE),
        ("pyproject.toml", "[tool.tridalic]\n# [tool.tridal]\n", None),
    ],
)
def test_file_that_looks_like_settings_is_reported_once(
    project: Path, name: str, text: str, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    write(project / name, text)
    for _ in range(2):
        assert reload().device == "auto"
    assert caplog.messages == ([f"the settings in {project / name} are ignored: {reason}"] if reason else [])


def test_file_that_cannot_be_read_is_an_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tridal.yaml").symlink_to("tridal.yaml")
    with pytest.raises(SettingsError, match=r"^tridal\.yaml: cannot be read: .*symbolic links"):
        reload()
    monkeypatch.setenv("TRIDAL_CONFIG", str(project))
    with pytest.raises(SettingsError, match=rf"^environment TRIDAL_CONFIG: {project}: cannot be read: Is a directory"):
        reload()


# -- values


KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
# PyYAML reads and writes 1e3 as text.
TEXT = st.text(max_size=8).filter(lambda text: not re.match(r"[-+.0-9]+[eE.]", text))
VALUES = st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False), TEXT, st.lists(st.integers()))
SECTIONS = st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, min_size=1, max_size=3), max_size=3)
of_files = hypothesis.settings(
    deadline=None,  # these tests write files, which can be slow
    max_examples=50,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)


@of_files
@given(sections=SECTIONS, flow=st.booleans())
def test_file_written_by_yaml_gives_the_same_values_and_their_lines(sections: object, flow: bool) -> None:
    path = write(Path("x.yaml"), yaml.safe_dump({"device": "npu:3", "backends": sections}, default_flow_style=flow))
    result = read_file(path)
    assert (result.device, result.backends) == ("npu:3", sections)
    lines = path.read_text(encoding="utf-8").split("\n")
    for name, section in result.backends.items():
        for option, value in section.items():
            line = int(result.sources[f"backends.{name}.{option}"].removeprefix(f"{path}:"))
            assert option in lines[line - 1]
            if not isinstance(value, list):
                assert parse_text(yaml.safe_dump(value), scalar=True) == value


@of_files
@given(st.one_of(st.text(), st.binary(), st.text(alphabet="device:fallbck \n-[]{}&*!#'\"<~=0123456789|>%@\t")))
@example("&a {device: *a}")
@example("backends: &a {npu: *a}")
@example("backends: &a {npu: {x: 1}, <<: *a}")
@example("? [device]\n: auto")
@example("backends: {npu: {x: !!int abc, y: !!binary =, z: {[]: 1}}}")
@example("backends: {npu: {x: " + "9" * 5000 + "}}")
def test_file_with_any_content_is_read_or_raises_settings_error(text: str | bytes) -> None:
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    path = write(Path("fuzz.yaml"), content)
    for found in check_file(path):
        assert isinstance(found, Settings) or str(found).startswith("fuzz.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, int(text)) for text in ("0", "10", "-3", "+3")),
        *((text, float(text)) for text in ("1e3", "1.5E-3", "1.0e+3", "1.", ".5", "-0.5", "010.5", "2e03")),
        *((text, True) for text in ("yes", "On", "TRUE")),
        *((text, False) for text in ("no", "off", "False")),
        *((text, text) for text in ("010", "0o10", "0x10", "0b1", "1_000", "1_0.5", "1:30", "1:30.5", "1e", ".")),
        *((text, text) for text in ("2024-01-01", "y", "N", "=", "1 000", "1,000", "e3")),
        ("~", None),
    ],
)
def test_numbers_are_decimal_and_everything_else_is_text(text: str, expected: object) -> None:
    in_file = read_file(write(Path("x.yaml"), f"backends: {{npu: {{x: '', y: {text}}}}}\n".replace("1,000", "'1,000'")))
    for found in (in_file.backends["npu"]["y"], parse_text(text), parse_text(text, scalar=True)):
        assert (type(found), found) == (type(expected), expected)


# -- mistakes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- device\n", "1: expected a mapping such as 'device: auto', found ['device']"),
        ("fallback: torch\n\ndevcie: cpu\n", "3: no setting is called 'devcie'; did you mean 'device'? (known: device"),
        ("device: a\nfallback: torch\ndevice: b\n", "3: device: the key is on line 1 already; remove one"),
        ("backends:\n  npu: {a: 1}\n  cuda: {}\n  npu: {b: 1}\n", "4: backends.npu: the key is on line 2 already"),
        ("backends:\n\tnpu: {}\n", "2: not valid YAML: found character '\\t' that cannot start any token"),
        ("device: [cpu]\n", "1: device: expected 'auto', or a backend's name or a torch device, which can have an "),
        ("\nbackends:\n  npu: 32\n", "3: backends.npu: expected a mapping, found 32"),
        ("device: a: b\n", "1: not valid YAML: mapping values are not allowed here"),
        ("device: auto\n---\ndevice: cpu\n", "2: not valid YAML: but found another document"),
        ("device: !!python/object:os.system x\n", "1: not a valid value: could not determine a constructor for the "),
        ("\ndevice: !!bool maybe\n", "2: not a valid value: 'maybe'"),
        ("fallback: torch\ndevice: \0\n", " not valid YAML: unacceptable character #x0000"),
        (b"fallback: torch\ndevice: \xff\n", " not valid YAML: unacceptable character #x00ff: invalid start byte"),
    ],
)
def test_mistake_gives_file_line_key_expected_and_found(text: str | bytes, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_file(write(Path("bad.yaml"), text))
    assert str(raised.value).startswith(f"bad.yaml:{message}")


def test_check_file_yields_every_mistake_and_every_correct_setting() -> None:
    file = write(
        Path("bad.yaml"),
        "devcie: cpu\nfallback: never\ndevice: cpu\nfallback: error\n"
        "backends:\n  npu: 3\n  interpreter:\n    num_programs: 2\n    num_programs: 3\n",
    )
    found = list(check_file(file))
    mistakes = [str(item).partition(": ")[0] for item in found if isinstance(item, SettingsError)]
    assert mistakes == [f"bad.yaml:{line}" for line in (1, 2, 4, 6, 9)]
    correct = [item for item in found if isinstance(item, Settings)]
    assert [item.device for item in correct] == ["cpu", "auto"]
    assert correct[1].backends == {"interpreter": {"num_programs": 2}}
    (missing,) = check_file("none.yaml")
    assert str(missing) == "none.yaml: cannot be read: No such file or directory"
