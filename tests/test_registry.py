"""The registry: plugins in isolation, names, choice among backends, options; a stranger's package, built and used."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tridal.devices import plugins, registry, settings
from tridal.devices.types import Backend, DeviceProperties, LaunchPlan, Option, Resources, Tile
from tridal.errors import DeviceUnavailableError, PluginError, SettingsError, TridalError, UnknownDeviceError

PLUGIN = Path(__file__).with_name("plugin")
BUNDLED = {point.name for point in metadata.distribution("tridal").entry_points.select(group=plugins.GROUP)}


def positive(value: object) -> bool:
    return value > 0  # type: ignore[operator]  # on purpose: raises for text


@dataclasses.dataclass(eq=False)
class Fake:
    """A backend of numbers alone."""

    name: str = "fake"
    device_type: str = "faketype"
    dtypes: frozenset[str] = frozenset({"float32"})
    algorithms: frozenset[str] = frozenset({"tile"})
    interpreted: bool = False
    options: Any = dataclasses.field(default_factory=lambda: {"size": Option(4, "a number above 0", positive)})
    install: str = "pip install fake"
    reason: str | None = None
    count: int = 2
    asked: int = 0

    def unavailable(self) -> str | None:
        self.asked += 1
        return self.reason

    def device_count(self) -> int:
        return self.count

    def properties(self, index: int) -> DeviceProperties:
        return DeviceProperties(name=self.name, arch="fake1", cores=1)

    def architectures(self) -> dict[str, DeviceProperties]:
        return {"fake1": self.properties(0)}

    def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
        return LaunchPlan(Tile("tile", 1, 1), 1, "because")

    def resources(self, asm: Any, shared_memory: int) -> Resources:
        return Resources(0, 0, 0)

    def stream(self, index: int) -> int:
        return 0

    def guard(self, index: int) -> Any:
        return nullcontext()


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Default settings, and a registry that is discovered anew before and after."""
    for name in [name for name in os.environ if name.startswith("TRIDAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings.reload()
    registry.clear()
    yield
    settings._base = None
    registry.clear()


@pytest.fixture
def alone(monkeypatch):
    """A registry that no installed plugin is in."""
    monkeypatch.setattr(plugins.metadata, "distributions", lambda: iter(()))
    registry.clear()


@pytest.fixture
def plug(monkeypatch, tmp_path):
    """Installs a plugin: a module, and a *.dist-info that names its entry points."""
    monkeypatch.syspath_prepend(tmp_path)
    added: list[str] = []

    def install(dist: str, entries: dict[str, str], module: str = "", version: str = "1.0") -> None:
        package = dist.replace("-", "_")
        info = tmp_path / f"{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        lines = "".join(f"{name} = {target}\n" for name, target in entries.items())
        (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{lines}")
        (tmp_path / f"{package}.py").write_text(textwrap.dedent(module))
        added.append(package)
        registry.clear()

    yield install
    for package in added:
        sys.modules.pop(package, None)


def toy(name: str, device_type: str = "faketype", change: str = "") -> str:
    """Source of a module whose `backend` is a toy of another name, with something changed."""
    source = (PLUGIN / "tridal_toy.py").read_text()
    source = source.replace('name = "toy"', f'name = "{name}"').replace(
        'device_type = "cpu"', f'device_type = "{device_type}"'
    )
    return f"{source}\n{change}\n"


def problem(name: str) -> str:
    """The recorded problem of a name; every other backend is untouched by it."""
    entries = {entry.name: entry for entry in registry.registered()}
    assert {n for n, entry in entries.items() if entry.backend is not None} >= BUNDLED
    assert entries[name].backend is None
    with pytest.raises(PluginError) as raised:
        registry.get(name)
    assert entries[name].problem is not None
    assert entries[name].problem in str(raised.value)
    assert entries[name].origin in str(raised.value)
    return entries[name].problem


def logged(caplog, origin: str) -> list[str]:
    """What was logged of a distribution."""
    return [record.getMessage() for record in caplog.records if origin in record.getMessage()]


# -- the bundled backends


def test_the_bundled_backends_are_found_through_entry_points_and_come_first(plug):
    plug("aaa", {"aaa": "aaa:backend"}, toy("aaa"))
    entries = registry.registered()
    names = [entry.name for entry in entries]
    assert names[:3] == sorted(BUNDLED)
    assert "aaa" in names[3:]
    for entry in entries[:3]:
        assert entry.problem is None, entry
        assert entry.origin.startswith("tridal ")
        assert isinstance(entry.backend, Backend)


def test_the_checked_members_are_the_protocols():
    assert {*plugins._DATA} == {*Backend.__annotations__}
    declared = {name for name in vars(Backend) if not name.startswith("_")}
    assert {*plugins._DATA, *plugins._METHODS} == declared | {*Backend.__annotations__}


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_a_bundled_backend_is_available_or_says_why_and_how(name):
    backend = registry.get(name)
    reason = registry.unavailable(backend)
    if reason is None:
        assert registry.available(name) is backend
        assert registry.resolve(name)[0] is backend
    else:
        with pytest.raises(DeviceUnavailableError) as raised:
            registry.available(name)
        assert reason in str(raised.value)
        assert backend.install in str(raised.value)


# -- plugins that are broken


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("raise RuntimeError('no luck')", ["could not be loaded", "RuntimeError: no luck"]),
        ("import no_such_module", ["could not be loaded", "No module named 'no_such_module'"]),
        ("raise SystemExit(3)", ["could not be loaded", "SystemExit: 3"]),
        ("class Odd(BaseException): pass\nraise Odd", ["could not be loaded: Odd"]),
        ("def backend(:", ["could not be loaded", "SyntaxError"]),
        ("", ["could not be loaded", "has no attribute 'backend'"]),
        ("backend = None", ["it lacks name, device_type", "guard"]),
        (toy("bad", change="backend = Toy"), ["expected an instance or a module", "class 'Toy'"]),
        (toy("bad", change="Toy.__hash__ = None"), ["cannot be a cache's key", "hashable"]),
        (toy("bad", change="del Toy.plan, Toy.guard"), ["it lacks plan, guard"]),
        (toy("bad", change="del Toy.install"), ["it lacks install"]),
        (toy("bad", change="Toy.dtypes = ['float32']"), ["dtypes: expected a Set, found ['float32']"]),
        (toy("bad", change="Toy.interpreted = 'no'"), ["interpreted: expected a bool, found 'no'"]),
        (toy("bad", change="Toy.device_type = None"), ["device_type: expected a str, found nothing"]),
        (toy("bad", change="Toy.stream = 0"), ["stream: expected a method, found 0"]),
        (toy("bad", change="Toy.options = {'rows': 4}"), ["options: rows: expected an Option, found 4"]),
        (toy("bad", change="Toy.options = {'Rows-': 4}"), ["options: expected a name of lower-case", "'Rows-'"]),
        (
            toy("bad", change="Toy.options = {'rows': Option(3, 'even', lambda value: value % 2 == 0)}"),
            ["options: rows: expected even, found its default 3"],
        ),
        (toy("good"), ["entry point is called 'bad'", "its name is 'good'"]),
        (toy("bad", change="Toy.name = property(lambda self: 1 / 0)"), ["could not be loaded", "ZeroDivisionError"]),
    ],
)
def test_a_broken_plugin_is_recorded_and_harms_nobody(plug, caplog, module, expected):
    plug("badly", {"bad": "badly:backend"}, module)
    with caplog.at_level(logging.WARNING, logger="tridal"):
        said = problem("bad")
        registry.registered()
    for part in expected:
        assert part in said
    assert logged(caplog, "badly 1.0") == [f"backend 'bad' of badly 1.0 cannot be used: {said}"]


@pytest.mark.parametrize("name", ["auto", "Bad", "bad_er", "1bad", "b-d"])
def test_a_name_that_settings_could_not_say_is_refused(plug, name):
    plug("badly", {name: "badly:backend"}, toy(name))
    assert "expected lower-case letters and digits, and not 'auto'" in problem(name)


def test_a_plugin_that_asks_for_backends_while_it_is_imported_is_the_broken_one(plug):
    plug("eager", {"eager": "eager:backend"}, "from tridal import registry\nregistry.registered()")
    assert "while it was being imported" in problem("eager")


def test_ctrl_c_while_loading_is_not_a_problem_of_the_plugin(plug):
    plug("slow", {"slow": "slow:backend"}, "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        registry.registered()
    with pytest.raises(KeyboardInterrupt):  # and the registry is not left half-made
        registry.registered()


def test_unreadable_entry_points_of_others_harm_nobody(plug, tmp_path):
    plug("fine", {"fine": "fine:backend"}, toy("fine"))
    plug("nonsense", {})
    (tmp_path / "nonsense-1.0.dist-info/entry_points.txt").write_text("[tridal.backends]\nno equals sign\n")
    plug("nameless", {"nameless": "fine:backend"})
    (tmp_path / "nameless-1.0.dist-info/METADATA").unlink()
    names = {entry.name for entry in registry.registered()}
    assert names >= BUNDLED | {"fine"}


# -- taken names


def test_a_bundled_name_cannot_be_taken(plug, caplog):
    plug("aardvark", {"npu": "aardvark:backend"}, "raise AssertionError('loaded')")
    entries = [entry for entry in registry.registered() if entry.name == "npu"]
    assert [entry.origin.split()[0] for entry in entries] == ["tridal", "aardvark"]
    assert entries[1].backend is None
    assert entries[1].problem == f"shadowed: {entries[0].origin} has a backend of that name"
    assert registry.get("npu") is entries[0].backend
    assert "'npu' of aardvark 1.0 cannot be used: shadowed" in caplog.text


def test_of_two_strangers_the_first_by_distribution_has_the_name(plug):
    plug("zebra", {"same": "zebra:backend"}, toy("same"))
    plug("Ape_Ling", {"same": "Ape_Ling:backend"}, toy("same"), version="2.5")
    entries = [entry for entry in registry.registered() if entry.name == "same"]
    assert [entry.origin for entry in entries] == ["ape-ling 2.5", "zebra 1.0"]
    assert registry.get("same") is entries[0].backend is sys.modules["Ape_Ling"].backend
    assert entries[1].problem == "shadowed: ape-ling 2.5 has a backend of that name"


def test_a_distribution_that_is_on_the_path_twice_counts_once(plug, tmp_path, monkeypatch):
    plug("twice", {"twice": "twice:backend"}, toy("twice"))
    again = tmp_path / "again"
    again.mkdir()
    (tmp_path / "twice-1.0.dist-info").rename(again / "twice-0.9.dist-info")
    plug("twice", {"twice": "twice:backend"}, toy("twice"))
    monkeypatch.syspath_prepend(again)
    assert [entry.name for entry in registry.registered()].count("twice") == 1


# -- names


def test_a_misspelt_name_is_told_with_the_nearest_and_all_known():
    with pytest.raises(UnknownDeviceError) as raised:
        registry.get("interpeter")
    assert "no device is called 'interpeter'; did you mean 'interpreter'?" in str(raised.value)
    assert "known: auto, cpu, cuda, interpreter, meta, npu" in str(raised.value)
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, TridalError)


def test_case_does_not_hide_the_nearest():
    with pytest.raises(UnknownDeviceError, match="did you mean 'interpreter'"):
        registry.resolve("INTERPRETER")


@pytest.mark.usefixtures("alone")
def test_a_backend_that_is_not_available_says_what_is_missing_and_how_to_get_it():
    registry.register(Fake(reason="no driver"))
    for attempt in (registry.available, registry.resolve):
        with pytest.raises(DeviceUnavailableError) as raised:
            attempt("fake")
        assert str(raised.value) == "'fake' is not available here: no driver. To get it: pip install fake"


@pytest.mark.usefixtures("alone")
def test_a_plugin_that_fails_to_tell_is_not_available():
    class Failing(Fake):
        def unavailable(self) -> str | None:
            raise OSError("driver is odd")

    registry.register(Failing())
    with pytest.raises(DeviceUnavailableError, match="its plugin failed to tell: OSError: driver is odd"):
        registry.available("fake")
    assert registry.serving("faketype") is None
    assert registry.resolve("auto") == (None, "cpu")


# -- made in code


@pytest.mark.usefixtures("alone")
def test_a_backend_made_in_code_comes_and_goes():
    fake = Fake()
    registry.register(fake)
    assert registry.registered() == (registry.Registered("fake", "registered in code", fake, None),)
    assert registry.serving("faketype") is fake
    registry.unregister("fake")
    assert registry.registered() == ()
    assert registry.serving("faketype") is None


@pytest.mark.usefixtures("alone")
def test_caches_hear_of_every_change(monkeypatch):
    changes: list[int] = []
    monkeypatch.setattr(registry, "_forgetters", [*registry._forgetters])
    registry.when_changed(lambda: changes.append(len(changes)))
    registry.registered()
    assert changes == []
    registry.register(Fake())
    registry.unregister("fake")
    registry.clear()
    assert changes == [0, 1, 2]


def test_what_cannot_be_registered_is_told_at_once():
    with pytest.raises(PluginError, match=r"'npu' cannot be registered: tridal .* has that name"):
        registry.register(Fake(name="npu"))
    with pytest.raises(PluginError, match=r"'fake' cannot be registered: dtypes: expected a Set, found 'float32'"):
        registry.register(Fake(dtypes="float32"))  # type: ignore[arg-type]
    with pytest.raises(PluginError, match=r"'None' cannot be registered: it lacks name"):
        registry.register(object())  # type: ignore[arg-type]
    with pytest.raises(PluginError, match=r"'auto' cannot be registered"):
        registry.register(Fake(name="auto"))
    with pytest.raises(UnknownDeviceError, match=r"no backend 'npu' was registered in code"):
        registry.unregister("npu")


# -- who serves what


@pytest.mark.usefixtures("alone")
def test_the_first_by_name_that_is_available_and_compiled_serves():
    down, interpreted = Fake("a", reason="down"), Fake("b", interpreted=True)
    first, second, other = Fake("c"), Fake("d"), Fake("e", device_type="othertype")
    for backend in (other, second, first, interpreted, down):
        registry.register(backend)
    assert registry.serving("faketype") is first
    assert registry.serving("othertype") is other
    assert registry.serving("nobodys") is None
    assert registry.resolve("auto") == (first, "faketype")


@pytest.mark.usefixtures("alone")
def test_the_settings_choose_among_backends_of_one_type():
    plain, interpreted, down = Fake("plain"), Fake("slow", interpreted=True), Fake("down", reason="no driver")
    for backend in (plain, interpreted, down):
        registry.register(backend)
    assert registry.serving("faketype") is plain
    with settings.use(device="slow:1"):
        assert registry.serving("faketype") is interpreted
        assert registry.serving("cpu") is None
    with settings.use(device="down"):
        assert registry.serving("cpu") is None  # tensors of other types are none of its business
        with pytest.raises(DeviceUnavailableError, match="no driver"):
            registry.serving("faketype")
    for device in ("cpu", "faketype:3"):
        with settings.use(device=device):
            assert registry.serving("faketype") is plain


def test_settings_can_be_handed_over():
    with settings.use(device="interpreter") as chosen:
        pass
    assert registry.serving("cpu") is None
    assert registry.serving("cpu", chosen) is registry.get("interpreter")


def test_a_misspelt_device_in_the_settings_is_never_passed_over(monkeypatch):
    monkeypatch.setenv("TRIDAL_DEVICE", "interpeter")
    settings.reload()
    for attempt in (lambda: registry.serving("cpu"), lambda: registry.check_device(settings.current())):
        with pytest.raises(UnknownDeviceError) as raised:
            attempt()
        assert "environment TRIDAL_DEVICE: device: no device is called 'interpeter'" in str(raised.value)
        assert "did you mean 'interpreter'" in str(raised.value)


def test_device_types_that_only_torch_knows_are_the_callers_to_know():
    with settings.use(device="xyz"):
        assert registry.serving("xyz") is None
        assert registry.serving("cpu", known_types=("xyz",)) is None
    assert registry.resolve("xyz:2", ("xyz",)) == (None, "xyz:2")
    with pytest.raises(UnknownDeviceError):
        registry.resolve("xyz")


@pytest.mark.usefixtures("alone")
def test_a_choice_is_made_once_for_the_settings():
    fake = Fake()
    registry.register(fake)
    for _ in range(100):
        registry.serving("faketype")
    assert fake.asked == 1
    for _ in range(100):
        with settings.use(fallback="error"):
            registry.serving("faketype")
    assert fake.asked == 2
    for number in range(1000):
        with settings.use(backends={"fake": {"size": number + 1}}):
            assert registry.serving("faketype") is fake
    assert len(registry._served) <= 256


@pytest.mark.usefixtures("alone")
def test_resolve_gives_backend_and_torch_device():
    fake, slow = Fake(), Fake("slow", device_type="cpu", interpreted=True, count=1)
    registry.register(slow)
    assert registry.resolve("auto") == (None, "cpu")
    registry.register(fake)
    assert registry.resolve("auto") == (fake, "faketype")
    assert registry.resolve("fake") == (fake, "faketype")
    assert registry.resolve("fake:1") == (fake, "faketype:1")
    assert registry.resolve("faketype:1") == (fake, "faketype:1")
    assert registry.resolve("slow") == (slow, "cpu")
    assert registry.resolve("cpu") == (None, "cpu")
    assert registry.resolve("meta") == (None, "meta")


@pytest.mark.usefixtures("alone")
def test_auto_takes_an_accelerator_before_a_backend_that_compiles_for_the_cpu():
    host, accelerator = Fake("a", device_type="cpu"), Fake("b")
    registry.register(host)
    assert registry.resolve("auto") == (host, "cpu")
    registry.register(accelerator)
    assert registry.resolve("auto") == (accelerator, "faketype")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("count", "expected"), [(0, "0 devices"), (1, "1 device,"), (2, "2 devices, counted from 0")])
def test_an_index_beyond_the_devices_says_how_many_there_are(count, expected):
    registry.register(Fake(count=count))
    for name in (f"fake:{count}", f"faketype:{count}", "fake:99999999999999999999"):
        with pytest.raises(DeviceUnavailableError) as raised:
            registry.resolve(name)
        assert f"{name!r} is not here: backend 'fake' has {expected}" in str(raised.value)


@pytest.mark.parametrize("name", ["", " ", "cpu:", "cpu:-1", "cpu:x", ":1", "c p u", "cpu\n"])
def test_what_is_not_even_a_device_is_told_so(name):
    with pytest.raises(UnknownDeviceError, match=r"is not a device: expected 'auto'"):
        registry.resolve(name)


@given(st.text())
@hypothesis.settings(deadline=None)
def test_resolve_knows_a_name_or_says_so(name):
    said = None
    try:
        backend, device = registry.resolve(name)
    except (UnknownDeviceError, DeviceUnavailableError) as error:
        said = str(error)
    if said is None:
        assert device.partition(":")[0] == ("cpu" if backend is None else backend.device_type)
    else:
        assert repr(name) in said or repr(name.partition(":")[0]) in said


# -- options


def test_options_are_defaults_overlaid_with_settings(monkeypatch):
    fake = Fake()
    assert registry.options(fake, settings.current()) == {"size": 4}
    with settings.use(backends={"fake": {"size": 9}, "other": {"size": 1}}) as chosen:
        assert registry.options(fake, chosen) == {"size": 9}
    monkeypatch.setenv("TRIDAL_FAKE_SIZE", "7")
    assert registry.options(fake, settings.reload()) == {"size": 7}


def test_bad_options_are_told_by_source_and_key(monkeypatch, tmp_path):
    fake = Fake()
    file = tmp_path / "some.yaml"
    file.write_text("backends:\n  fake:\n    size: many\n")
    with pytest.raises(SettingsError) as raised:
        registry.options(fake, settings.read_file(file))
    assert str(raised.value) == f"{file}:3: backends.fake.size: expected a number above 0, found 'many'"
    with settings.use(backends={"fake": {"szie": 1}}) as chosen, pytest.raises(SettingsError) as raised:
        registry.options(fake, chosen)
    assert str(raised.value) == (
        "tridal.use: backends.fake.szie: backend 'fake' has no such option; did you mean 'size'? (known: size)"
    )
    monkeypatch.setenv("TRIDAL_FAKE_SIZE", "-1")
    with pytest.raises(SettingsError, match=r"environment TRIDAL_FAKE_SIZE: backends\.fake\.size: expected .*found -1"):
        registry.options(fake, settings.reload())
    with pytest.raises(SettingsError, match=r"has no such option \(it has none\)"):
        registry.options(Fake(options={}), settings.current())


def test_every_default_of_every_backend_is_accepted_and_explained():
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
def test_a_misspelt_variable_is_never_passed_over(monkeypatch, variable, expected):
    monkeypatch.setenv(variable, "1")
    settings.reload()
    for attempt in (registry.serving, registry.serving, lambda _: registry.check(settings.current())):
        with pytest.raises(SettingsError) as raised:
            attempt("cpu")
        for part in expected:
            assert part in str(raised.value)


def test_a_section_of_a_backend_that_nobody_registered_is_told_with_its_line(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text("backends:\n  npuu:\n    num_programs: 1\n")
    with pytest.raises(SettingsError) as raised:
        registry.check_backends(settings.read_file(file))
    assert f"{file}:3: backends.npuu.num_programs: no backend is called 'npuu'; did you mean 'npu'" in str(raised.value)
    assert "known: cuda, interpreter, npu" in str(raised.value)


def test_a_use_with_bad_options_is_told_by_the_next_choice():
    registry.serving("cpu")
    with (
        settings.use(backends={"nobody": {"x": 1}}),
        pytest.raises(SettingsError, match="no backend is called 'nobody'"),
    ):
        registry.serving("cpu")
    assert registry.serving("cpu") is None


def test_the_section_of_a_broken_plugin_is_left_alone(plug):
    plug("badly", {"bad": "badly:backend"}, "raise RuntimeError")
    with settings.use(backends={"bad": {"x": 1}}):
        assert registry.serving("cpu") is None


# -- threads and imports


def test_threads_discover_once(plug, caplog):
    plug("badly", {"bad": "badly:backend"}, "import time\ntime.sleep(0.1)\nraise RuntimeError('x')")
    barrier = threading.Barrier(8)
    seen = []

    def work() -> None:
        barrier.wait(timeout=10)
        seen.append(registry.registered())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert all(entries is seen[0] for entries in seen)
    assert len(logged(caplog, "badly 1.0")) == 1


def python(code: str, *path: Path, **variables: str) -> str:
    """Runs a script in a process of its own, with folders on its path."""
    folders = os.pathsep.join([*map(str, path), *filter(None, sys.path)])
    environment = {**os.environ, **variables, "PYTHONPATH": folders}
    script = textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_tridal_loads_neither_a_backend_nor_a_vendors_module_nor_yaml():
    loaded = json.loads(python("import json, sys, torch, tridal; print(json.dumps(list(sys.modules)))"))
    unwanted = ("triton", "torch_npu", "tridal_", "tridal.kernels", "typer", "rich")
    assert [name for name in loaded if name.startswith(unwanted)] == []
    assert "tridal.devices.registry" in loaded


# -- a stranger's package


@pytest.fixture(scope="module")
def strangers(tmp_path_factory) -> Path:
    """A folder in which the wheel of tests/plugin is installed."""
    folder = tmp_path_factory.mktemp("stranger")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(PLUGIN)]
    subprocess.run(build, check=True, timeout=240)
    (wheel,) = folder.glob("tridal_toy-1.2.3-*.whl")
    site = folder / "site"
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)], check=True, timeout=240
    )
    return site


USE = """
    import json, torch, tridal
    x = torch.randn(10, 33)
    with tridal.use(device="toy"):
        y = tridal.softmax(x)
        plan = tridal.plan(10, 33)
    (status,) = [s for s in tridal.backends() if s.name == "toy"]
    difference = (y - torch.softmax(x, -1)).abs().max().item()
    print(json.dumps([status.origin, status.available, status.device_type, plan.tile.rows, plan.reason, difference]))
"""


def test_a_strangers_wheel_is_discovered_planned_with_and_used(strangers):
    origin, available, device_type, rows, reason, difference = json.loads(python(USE, strangers))
    assert (origin, available, device_type) == ("tridal-toy 1.2.3", True, "cpu")
    assert (rows, reason) == (1024, "a toy takes 1024 rows at a time")
    assert difference < 1e-6


def test_a_strangers_options_come_from_the_settings_and_are_checked(strangers):
    assert json.loads(python(USE, strangers, TRIDAL_TOY_ROWS="8"))[4] == "a toy takes 8 rows at a time"
    refused = """
        import torch, tridal
        try:
            tridal.softmax(torch.randn(3))
        except tridal.errors.SettingsError as error:
            print(error)
    """
    said = python(refused, strangers, TRIDAL_TOY_ROWS="3")
    assert said == "environment TRIDAL_TOY_ROWS: backends.toy.rows: expected a power of two, found 3\n"


def test_without_the_wheel_there_is_no_toy():
    with pytest.raises(UnknownDeviceError, match="no device is called 'toy'"):
        registry.resolve("toy")
