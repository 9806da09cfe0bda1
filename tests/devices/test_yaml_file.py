"""The settings file: its valid forms, and an error with file and line for everything else."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tridal.devices.settings import Settings, read_file, reload
from tridal.devices.yaml_file import entries, parse_text
from tridal.errors import SettingsError, TridalError

no_deadline = settings(deadline=None)  # these tests write files, which can be slow


@pytest.fixture(autouse=True)
def folder(no_settings):
    """The working folder, which is empty."""
    return no_settings


def write_file(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# -- valid files


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "{}", "backends:\n", "backends: {npu: }\n"])
def test_empty_file_gives_the_defaults(folder, text):
    result = read_file(write_file(folder / "x.yaml", text))
    assert (result.device, result.fallback, result.backends) == ("auto", "torch", {})


KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
# PyYAML reads and writes 1e3 as text.
TEXT = st.text(max_size=8).filter(lambda text: not re.match(r"[-+.0-9]+[eE.]", text))
VALUES = st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False), TEXT, st.lists(st.integers()))
SECTIONS = st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, min_size=1), max_size=3)


@no_deadline
@given(sections=SECTIONS, flow=st.booleans())
def test_file_written_by_yaml_gives_the_same_values_and_their_lines(tmp_path_factory, sections, flow):
    path = tmp_path_factory.mktemp("yaml") / "x.yaml"
    write_file(path, yaml.safe_dump({"device": "npu:3", "backends": sections}, default_flow_style=flow))
    result = read_file(path)
    assert result.device == "npu:3"
    assert result.backends == sections
    lines = path.read_text(encoding="utf-8").split("\n")
    for name, section in sections.items():
        for option in section:
            line = int(result.sources[f"backends.{name}.{option}"].removeprefix(f"{path}:"))
            assert option in lines[line - 1]


@no_deadline
@given(st.one_of(st.text(), st.binary(), st.text(alphabet="device:fallbck \n-[]{}&*!#'\"<~=0123456789|>%@\t")))
@example("&a {device: *a}")
@example("backends: &a {npu: *a}")
@example("backends: &a {npu: {x: 1}, <<: *a}")
@example("device: 2020-99-99")
@example("? [device]\n: auto")
@example("backends: {npu: {x: !!int abc}}")
@example("backends: {npu: {x: {[]: 1}}}")
@example("backends: {npu: {x: !!binary =}}")
@example("backends: {npu: {x: " + "9" * 5000 + "}}")
def test_file_with_any_content_is_read_or_raises_settings_error(tmp_path_factory, text):
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    path = write_file(tmp_path_factory.mktemp("fuzz") / "x.yaml", content)
    message = None
    try:
        result = read_file(path)
    except SettingsError as error:
        message = str(error)
    assert str(path) in message if message else isinstance(result, Settings)


@given(st.one_of(st.integers(), st.booleans(), TEXT, st.floats(allow_nan=False)))
def test_scalar_text_gives_the_value_that_yaml_wrote(value):
    assert parse_text(yaml.safe_dump(value), scalar=True) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, int(text)) for text in ("0", "10", "-3", "+3")),
        *((text, float(text)) for text in ("1e3", "1.5E-3", "1.0e+3", "1.", ".5", "-0.5", "010.5", "2e03")),
        *((text, True) for text in ("yes", "On", "TRUE")),
        *((text, False) for text in ("no", "off", "False")),
        *((text, text) for text in ("010", "08", "0o10", "0x10", "0b1", "1_000", "1_0.5", "1:30", "1:30.5", "1e", ".")),
        *((text, text) for text in ("2024-01-01", "2020-99-99", "y", "N", "=", "1 000", "1,000", "e3")),
        ("~", None),
    ],
)
def test_numbers_are_decimal_and_everything_else_is_text(folder, text, expected):
    ((_, _, in_file),) = entries(write_file(folder / "x.yaml", f"key: {text}\n"), lambda keys: not keys)
    for found in (in_file, parse_text(text), parse_text(text, scalar=True), parse_text(f"key: {text}")["key"]):
        assert (type(found), found) == (type(expected), expected)


# -- wrong files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- device\n", ["bad.yaml:1", "expected a mapping", "'device: auto'", "found ['device']"]),
        ("auto\n", ["bad.yaml:1", "expected a mapping", "found 'auto'"]),
        ("fallback: torch\n\ndevcie: cpu\n", ["bad.yaml:3", "no setting is called 'devcie'", "did you mean 'device'"]),
        (
            "on: cpu\n",
            [
                "bad.yaml:1",
                "no setting is called 'on'",
                "known: device, fallback, batch_invariant, dump, kernel_configs, plugins, backends",
            ],
        ),
        ("device: a\nfallback: torch\ndevice: b\n", ["bad.yaml:3", "device", "line 1 already", "remove one"]),
        (
            "backends:\n  npu: {a: 1}\n  cuda: {}\n  npu: {b: 1}\n",
            ["bad.yaml:4", "backends.npu:", "line 2 already"],
        ),
        ("backends:\n  npu:\n    a: 1\n    a: 1\n", ["bad.yaml:4", "backends.npu.a:", "line 3 already"]),
        ("backends:\n\tnpu: {}\n", ["bad.yaml:2", "not valid YAML", "use spaces, not tabs"]),
        ("device: [cpu]\n", ["bad.yaml:1", "device: expected", "found ['cpu']"]),
        ("device:\n", ["bad.yaml:1", "device: expected", "found nothing"]),
        ("backends: npu\n", ["bad.yaml:1", "backends: expected a mapping", "found 'npu'"]),
        ("\nbackends:\n  npu: 32\n", ["bad.yaml:3", "backends.npu: expected a mapping", "found 32"]),
        ("device: auto\nfallback: [\n", ["bad.yaml:3", "not valid YAML"]),
        ("device: auto\n\tfallback: torch\n", ["bad.yaml:2", "not valid YAML", "'\\t'"]),
        ("device: a: b\n", ["bad.yaml:1", "not valid YAML", "mapping values are not allowed here"]),
        ("device: auto\n---\ndevice: cpu\n", ["bad.yaml:2", "not valid YAML", "another document"]),
        ("device: !!python/object:os.system x\n", ["bad.yaml:1", "not valid YAML", "python/object"]),
        ("\n? {a: b}\n: c\n", ["bad.yaml:2", "expected a name as the key", "found a mapping"]),
        ("batch_invariant: 2020-99-99\n", ["bad.yaml:1: batch_invariant: expected true or false, found '2020-99-99'"]),
        ("\ndevice: !!bool maybe\n", ["bad.yaml:2", "not a valid value", "maybe"]),
        ("backends: {npu: {when: !!timestamp foo}}\n", ["bad.yaml:1", "not a valid value"]),
        ("fallback: torch\ndevice: \0\n", ["bad.yaml:2", "not allowed in YAML"]),
        (b"fallback: torch\ndevice: \xff\n", ["bad.yaml:2", "not UTF-8"]),
        ("[" * 5000, ["bad.yaml", "nested too deeply"]),
    ],
)
def test_wrong_file_gives_file_line_key_expected_and_found(folder, text, expected):
    with pytest.raises(SettingsError) as raised:
        read_file(write_file(folder / "bad.yaml", text))
    for part in expected:
        assert part in str(raised.value)


@pytest.mark.parametrize("tag", ["bool", "int", "float", "timestamp", "binary", "set", "omap", "pairs", "merge", "x"])
@pytest.mark.parametrize("value", ["maybe", "1", "''", "[1]", "{a: 1}"])
def test_value_with_any_tag_is_read_or_raises_settings_error_with_its_line(folder, tag, value):
    path = write_file(folder / "tagged.yaml", f"fallback: torch\ndevice: !!{tag} {value}\n")
    found: list[object] = []
    try:
        found += entries(path, lambda keys: not keys)
    except SettingsError as error:
        found = [error]
    else:
        assert (found[0], found[1][:2]) == ((("fallback",), f"{path}:1", "torch"), (("device",), f"{path}:2"))
        found = [value for _, _, value in found if isinstance(value, SettingsError)]
    assert all("tagged.yaml:2" in str(error) for error in found)
    parse_text(f"!!{tag} {value}", scalar=True)


def test_folder_and_link_to_itself_cannot_be_read(folder):
    with pytest.raises(SettingsError, match=rf"{re.escape(str(folder))}: cannot be read: Is a directory"):
        read_file(folder)
    (folder / "tridal.yaml").symlink_to("tridal.yaml")
    with pytest.raises(SettingsError, match=r"tridal\.yaml: cannot be read: .*symbolic links"):
        reload()


@pytest.mark.parametrize("kind", ["fifo", "device", "large file"])
def test_file_that_never_ends_cannot_be_read(folder, kind):
    path = folder / "x.yaml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.truncate(write_file(path, ""), 1 << 40)
    reason = "it has more than 1048576 bytes" if kind == "large file" else "it is not a regular file"
    with pytest.raises(SettingsError, match=rf"x\.yaml: cannot be read: {reason}"):
        read_file(path)


def test_file_without_read_permission_cannot_be_read(folder):
    path = write_file(folder / "tridal.yaml", "device: cpu\n")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # root can read every file
        os.seteuid(65534)
    try:
        with pytest.raises(SettingsError, match=r"tridal\.yaml: cannot be read: Permission denied"):
            read_file(path)
    finally:
        os.seteuid(user)


def test_settings_error_is_a_value_error_and_a_tridal_error(folder):
    with pytest.raises(ValueError, match="expected a mapping") as raised:
        read_file(write_file(folder / "x.yaml", "- 1\n"))
    assert isinstance(raised.value, TridalError)


def test_text_of_a_list_or_a_mapping_is_parsed_unless_a_scalar_is_wanted():
    assert [parse_text("[1, 2]"), parse_text("a: 1"), parse_text("32")] == [[1, 2], {"a": 1}, 32]
    assert [parse_text("[1, 2]", scalar=True), parse_text("a: 1", scalar=True)] == ["[1, 2]", "a: 1"]
