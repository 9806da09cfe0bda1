"""Settings: precedence and sources, strict files, scopes, and an error message for everything that can be wrong."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from pathlib import Path

import hypothesis
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tridal.devices import settings
from tridal.devices.settings import Settings, current, read_file, reload, use
from tridal.errors import SettingsError, TridalError

unhurried = hypothesis.settings(deadline=None)  # files are written, on machines that do other things too


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """An empty working folder and user folder, and no variable set."""
    for name in [name for name in os.environ if name.startswith("TRIDAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    settings._base = None
    yield here
    settings._base = None


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def message(text: str | bytes, folder: Path) -> str:
    """What is said of a file with this content."""
    with pytest.raises(SettingsError) as raised:
        read_file(write(folder / "bad.yaml", text))
    return str(raised.value)


# -- values and sources


def test_defaults_say_so():
    assert current().device == "auto"
    assert current().fallback == "torch"
    assert current().backends == {}
    assert current().sources == {"device": "default", "fallback": "default", "batch_invariant": "default"}


def test_fields_settings_and_use_name_the_same_settings():
    named = {*settings.FIELDS, "backends"}
    assert {*Settings.__dataclass_fields__} == named | {"sources"}
    assert {*inspect.signature(use).parameters} == named


def test_every_default_is_accepted_and_explained():
    for key, option in settings.FIELDS.items():
        assert option.accepts(option.default), key
        assert option.expected, key
        assert option.help, key


def test_each_layer_wins_over_the_one_below(home, monkeypatch):
    assert current().fallback == "torch"
    write(home / "tridal.yaml", "device: aaa\nfallback: error\nbackends:\n  npu:\n    num_programs: 8\n    other: x\n")
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
            "backends.npu.num_programs": "environment TRIDAL_NPU_NUM_PROGRAMS",
            "backends.npu.other": "tridal.use",
        }
    assert current() is merged


DEVICES = st.one_of(st.none(), st.sampled_from(["cpu", "npu", "some:1", "auto"]))


@unhurried
@given(file=DEVICES, variable=DEVICES, argument=DEVICES)
def test_the_highest_layer_that_says_something_is_the_source(tmp_path_factory, file, variable, argument):
    folder = tmp_path_factory.mktemp("layers")
    path = write(folder / "x.yaml", f"\n\ndevice: {file}\n" if file else "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIDAL_CONFIG", str(path))
        if variable:
            patch.setenv("TRIDAL_DEVICE", variable)
        reload()
        with use(device=argument) as chosen:
            wanted = [
                (argument, "tridal.use"),
                (variable, "environment TRIDAL_DEVICE"),
                (file, f"{path}:3"),
                ("auto", "default"),
            ]
            assert (chosen.device, chosen.sources["device"]) == next(pair for pair in wanted if pair[0])


def test_settings_cannot_be_changed():
    with use(backends={"npu": {"num_programs": 1}}) as chosen:
        with pytest.raises(AttributeError):
            chosen.device = "cpu"
        with pytest.raises(TypeError):
            chosen.backends["npu"]["num_programs"] = 2
        with pytest.raises(TypeError):
            chosen.sources["device"] = "me"


# -- which file


def test_the_file_here_wins_over_the_users_and_the_named_one_over_both(home, tmp_path, monkeypatch):
    assert settings.config_file() is None
    users = write(tmp_path / "user/tridal/tridal.yaml", "device: users\nfallback: error\n")
    assert (reload().device, settings.config_file()) == ("users", users)
    write(home / "tridal.yaml", "device: here\n")
    assert (reload().device, reload().fallback) == ("here", "torch")  # one file, not a mixture
    named = write(tmp_path / "named.yaml", "device: named\n")
    monkeypatch.setenv("TRIDAL_CONFIG", str(named))
    assert (reload().device, reload().sources["device"]) == ("named", f"{named}:1")


def test_without_xdg_the_users_file_is_in_dot_config(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / ".config/tridal/tridal.yaml", "device: home\n")
    assert reload().device == "home"
    named = write(tmp_path / "named.yaml", "device: tilde\n")
    monkeypatch.setenv("TRIDAL_CONFIG", f"~/{named.name}")
    assert reload().device == "tilde"


def test_a_named_file_has_to_be_there(monkeypatch):
    monkeypatch.setenv("TRIDAL_CONFIG", "nowhere.yaml")
    with pytest.raises(SettingsError, match=r"nowhere\.yaml: cannot be read: No such file"):
        reload()


# -- what a file may hold


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "{}", "backends:\n", "backends: {npu: }\n"])
def test_an_empty_file_sets_nothing(home, text):
    chosen = read_file(write(home / "x.yaml", text))
    assert (chosen.device, chosen.fallback, chosen.backends) == ("auto", "torch", {})


KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
VALUES = st.one_of(
    st.integers(), st.booleans(), st.floats(allow_nan=False), st.text(max_size=8), st.lists(st.integers())
)
SECTIONS = st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, min_size=1), max_size=3)


@unhurried
@given(sections=SECTIONS, flow=st.booleans())
def test_a_file_gives_back_what_yaml_wrote(tmp_path_factory, sections, flow):
    path = tmp_path_factory.mktemp("yaml") / "x.yaml"
    write(path, yaml.safe_dump({"device": "npu:3", "backends": sections}, default_flow_style=flow))
    chosen = read_file(path)
    assert chosen.device == "npu:3"
    assert chosen.backends == sections
    lines = path.read_text(encoding="utf-8").split("\n")
    for name, section in sections.items():
        for option in section:
            line = int(chosen.sources[f"backends.{name}.{option}"].removeprefix(f"{path}:"))
            assert option in lines[line - 1]


@unhurried
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
def test_no_file_raises_anything_but_a_settings_error(tmp_path_factory, text):
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    path = write(tmp_path_factory.mktemp("fuzz") / "x.yaml", content)
    said = None
    try:
        chosen = read_file(path)
    except SettingsError as error:
        said = str(error)
    assert str(path) in said if said else isinstance(chosen, Settings)


@given(st.one_of(st.integers(), st.booleans(), st.text(), st.floats(allow_nan=False)))
def test_a_variable_is_read_as_a_file_would_be(value):
    from tridal.devices.yaml_file import scalar

    assert scalar(yaml.safe_dump(value)) == value


# -- bad files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- device\n", ["bad.yaml:1", "expected a mapping", "'device: auto'", "found ['device']"]),
        ("auto\n", ["bad.yaml:1", "expected a mapping", "found 'auto'"]),
        ("fallback: torch\n\ndevcie: cpu\n", ["bad.yaml:3", "no setting is called 'devcie'", "did you mean 'device'"]),
        (
            "on: cpu\n",
            ["bad.yaml:1", "no setting is called 'on'", "known: device, fallback, batch_invariant, backends"],
        ),
        ("device: a\nfallback: torch\ndevice: b\n", ["bad.yaml:3", "device", "line 1 already", "remove one"]),
        (
            "backends:\n  npu: {a: 1}\n  cuda: {}\n  npu: {b: 1}\n",
            ["bad.yaml:4", "backends.npu:", "line 2 already"],
        ),
        ("backends:\n  npu:\n    a: 1\n    a: 1\n", ["bad.yaml:4", "backends.npu.a:", "line 3 already"]),
        ("device: 3\n", ["bad.yaml:1", "device: expected 'auto', a backend's name", "found 3"]),
        ("device: [cpu]\n", ["bad.yaml:1", "device: expected", "found ['cpu']"]),
        ("device:\n", ["bad.yaml:1", "device: expected", "found nothing"]),
        ("device: 'cpu:x'\n", ["bad.yaml:1", "with or without an index (name:1)", "found 'cpu:x'"]),
        ("fallback: tourch\n", ["bad.yaml:1", "fallback: expected 'torch' or 'error'", "found 'tourch'"]),
        ("fallback: off\n", ["bad.yaml:1", "fallback: expected 'torch' or 'error'", "found False"]),
        ("backends: npu\n", ["bad.yaml:1", "backends: expected a mapping", "found 'npu'"]),
        ("\nbackends:\n  npu: 32\n", ["bad.yaml:3", "backends.npu: expected a mapping", "found 32"]),
        ("device: auto\nfallback: [\n", ["bad.yaml:3", "not valid YAML"]),
        ("device: auto\n\tfallback: torch\n", ["bad.yaml:2", "not valid YAML", "'\\t'"]),
        ("device: a: b\n", ["bad.yaml:1", "not valid YAML", "mapping values are not allowed here"]),
        ("device: auto\n---\ndevice: cpu\n", ["bad.yaml:2", "not valid YAML", "another document"]),
        ("device: !!python/object:os.system x\n", ["bad.yaml:1", "not valid YAML", "python/object"]),
        ("\n? {a: b}\n: c\n", ["bad.yaml:2", "expected a name as the key", "found a mapping"]),
        ("backends: {npu: {when: 2020-99-99}}\n", ["bad.yaml:1", "not a valid value", "month"]),
        ("fallback: torch\ndevice: \0\n", ["bad.yaml:2", "not allowed in YAML"]),
        (b"fallback: torch\ndevice: \xff\n", ["bad.yaml:2", "not UTF-8"]),
        ("[" * 5000, ["bad.yaml", "nested too deeply"]),
    ],
)
def test_a_bad_file_is_told_by_file_line_key_and_what_was_expected(home, text, expected):
    said = message(text, home)
    for part in expected:
        assert part in said


def test_a_folder_and_a_loop_of_links_cannot_be_read(home):
    with pytest.raises(SettingsError, match=r"here: cannot be read: Is a directory"):
        read_file(home)
    (home / "tridal.yaml").symlink_to("tridal.yaml")
    with pytest.raises(SettingsError, match=r"tridal\.yaml: cannot be read: .*symbolic links"):
        reload()


def test_a_file_without_permission_cannot_be_read(home):
    path = write(home / "tridal.yaml", "device: cpu\n")
    path.chmod(0)
    me = os.geteuid()
    if me == 0:  # root may read every file
        os.seteuid(65534)
    try:
        with pytest.raises(SettingsError, match=r"tridal\.yaml: cannot be read: Permission denied"):
            read_file(path)
    finally:
        os.seteuid(me)


def test_settings_errors_are_value_errors_and_tridals(home):
    with pytest.raises(ValueError, match="expected a mapping") as raised:
        read_file(write(home / "x.yaml", "- 1\n"))
    assert isinstance(raised.value, TridalError)


def test_an_error_leaves_nothing_half_applied_and_is_raised_again(home):
    assert current().device == "auto"
    write(home / "tridal.yaml", "device: cpu\nfallback: nonsense\n")
    for attempt in (reload, current, current):
        with pytest.raises(SettingsError, match="fallback"):
            attempt()
    write(home / "tridal.yaml", "device: cpu\n")
    assert current().device == "cpu"


# -- environment


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TRIDAL_DEVCE", "cpu", ["environment TRIDAL_DEVCE: no such setting", "did you mean 'TRIDAL_DEVICE'?"]),
        ("TRIDAL_", "cpu", ["environment TRIDAL_: no such setting", "TRIDAL_<BACKEND>_<OPTION>"]),
        ("TRIDAL__X", "cpu", ["environment TRIDAL__X: no such setting"]),
        ("TRIDAL_FALLBACK", "never", ["environment TRIDAL_FALLBACK: fallback: expected 'torch' or 'error'", "'never'"]),
        ("TRIDAL_DEVICE", "no such", ["environment TRIDAL_DEVICE: device: expected 'auto'", "found 'no such'"]),
        ("TRIDAL_DEVICE", "7", ["environment TRIDAL_DEVICE: device: expected", "found 7"]),
    ],
)
def test_a_bad_variable_is_told_by_name(monkeypatch, name, value, expected):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as raised:
        reload()
    for part in expected:
        assert part in str(raised.value)


def test_variables_of_backends_are_typed_like_yaml(monkeypatch):
    monkeypatch.setenv("TRIDAL_NPU_NUM_PROGRAMS", "32")
    monkeypatch.setenv("TRIDAL_NPU_CHECKED", "true")
    monkeypatch.setenv("TRIDAL_NPU_NAME", "'32'")
    monkeypatch.setenv("TRIDAL_NPU_LIST", "[1, 2")
    assert reload().backends == {"npu": {"num_programs": 32, "checked": True, "name": "32", "list": "[1, 2"}}
    assert current().sources["backends.npu.num_programs"] == "environment TRIDAL_NPU_NUM_PROGRAMS"


def test_an_empty_variable_is_as_good_as_none(monkeypatch):
    monkeypatch.setenv("TRIDAL_DEVICE", "")
    monkeypatch.setenv("TRIDAL_CONFIG", "")
    assert reload().sources["device"] == "default"


# -- use


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"device": 3}, ["tridal.use: device: expected", "found 3"]),
        ({"fallback": "x"}, ["tridal.use: fallback: expected 'torch' or 'error'"]),
        ({"backends": 5}, ["tridal.use: backends: expected a mapping, found 5"]),
        ({"backends": {"npu": 5}}, ["tridal.use: backends.npu: expected a mapping, found 5"]),
    ],
)
def test_use_refuses_at_once(given, expected):
    before = current()
    with pytest.raises(SettingsError) as raised:
        use(**given)
    for part in expected:
        assert part in str(raised.value)
    assert current() is before


def test_use_nests_and_leaves_when_the_block_raises():
    before = current()

    def fail() -> None:
        assert (current().device, current().fallback) == ("b", "error")
        raise RuntimeError("boom")

    with use(device="a"):
        with pytest.raises(RuntimeError, match="boom"), use(device="b", fallback="error"):
            fail()
        assert (current().device, current().fallback) == ("a", "torch")
    assert current() is before


def test_use_decorates_a_function_and_builds_on_where_it_is_called():
    @use(device="decorated")
    def inside() -> tuple[str, str]:
        return current().device, current().fallback

    assert inside() == ("decorated", "torch")
    with use(fallback="error"):
        assert inside() == ("decorated", "error")
    assert current().device == "auto"


def test_the_same_use_gives_the_same_object_so_caches_keyed_by_it_stay_small():
    def seen(**given: object) -> Settings:
        with use(**given):
            return current()

    assert seen(device="a") is seen(device="a")
    assert seen(backends={"npu": {"x": 1}}) is not seen(backends={"npu": {"x": True}})
    assert len({seen(device=f"d{i}") for i in range(500)}) == 500
    assert len(settings._overlays) <= 64


def test_reading_again_is_seen_at_once_but_not_inside_a_use(monkeypatch):
    with use(fallback="error"):
        monkeypatch.setenv("TRIDAL_DEVICE", "later")
        reload()
        assert current().device == "auto"
    assert current().device == "later"
    with use(fallback="error"):
        assert current().device == "later"


def test_threads_do_not_see_each_others_blocks():
    barrier = threading.Barrier(4)
    seen: dict[int, list[str]] = {}

    def work(number: int) -> None:
        before = current().device
        with use(device=f"d{number}"):
            barrier.wait(timeout=10)
            inside = current().device
            barrier.wait(timeout=10)
        seen[number] = [before, inside, current().device]

    with use(device="main"):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == {number: ["auto", f"d{number}", "auto"] for number in range(4)}


def test_first_use_from_many_threads_reads_once(home):
    write(home / "tridal.yaml", "device: once\n")
    barrier = threading.Barrier(8)
    seen: list[Settings] = []

    def work() -> None:
        barrier.wait(timeout=10)
        seen.append(current())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1
    assert seen[0].device == "once"


def test_async_tasks_do_not_see_each_others_blocks_but_inherit():
    async def task(name: str, ready: asyncio.Event, go: asyncio.Event) -> tuple[str, str]:
        outer = current().device
        with use(device=name):
            ready.set()
            await go.wait()
            return outer, current().device

    async def main() -> list[tuple[str, str]]:
        events = [asyncio.Event() for _ in range(3)]
        with use(device="outer"):
            first = asyncio.create_task(task("a", events[0], events[2]))
            second = asyncio.create_task(task("b", events[1], events[2]))
        await events[0].wait()
        await events[1].wait()
        assert current().device == "auto"
        events[2].set()
        return [await first, await second]

    assert asyncio.run(main()) == [("outer", "a"), ("outer", "b")]
