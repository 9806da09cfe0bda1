"""The registry: lookup by name, registration in code, the choice of a backend, and resolution of device names."""

from __future__ import annotations

import pytest

from backend_helpers import FakeBackend
from tridal.devices import registry, settings
from tridal.devices.registry import IN_CODE
from tridal.errors import DeviceUnavailableError, PluginError, TridalError, UnknownDeviceError

pytestmark = pytest.mark.usefixtures("fresh_registry")


# -- lookup by name


@pytest.mark.parametrize("look_up", [registry.get, registry.resolve])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("interpeter", "; did you mean 'interpreter'?"),
        ("INTERPRETER", "; did you mean 'interpreter'?"),
        ("FAKE1", "; it is an architecture of the device 'fake'"),
        *((word, "; did you mean {}?") for word in ("gpu", "GPU", "accelerator")),
    ],
)
def test_unknown_name_suggests_similar_and_lists_known_names(look_up, name, hint):
    class Failing(FakeBackend):
        def architectures(self):
            raise OSError("driver is odd")

    for backend in (Failing("broken"), FakeBackend(), FakeBackend("slow", interpreted=True)):
        registry.register(backend)
    accelerators = [b.name for b in registry.loaded() if b.device_type != "cpu" and not b.interpreted]
    assert {"broken", "fake"} <= {*accelerators}
    with pytest.raises(UnknownDeviceError) as raised:
        look_up(name)
    suggested = hint.format(" or ".join(map(repr, accelerators)))
    assert str(raised.value).startswith(f"no device is called {name!r}{suggested} (known: auto, broken, cpu, cuda,")
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, TridalError)


# -- registration in code


@pytest.mark.usefixtures("no_plugins")
def test_register_adds_and_unregister_removes_a_backend():
    fake = FakeBackend()
    registry.register(fake)
    (entry,) = registry.registered()
    assert (entry.name, entry.origin, entry.fault) == ("fake", IN_CODE, None)
    assert registry.serving("faketype").plugin is fake
    registry.unregister("fake")
    assert registry.registered() == ()
    assert registry.serving("faketype") is None


def test_register_and_unregister_refuse_wrong_backends_and_names():
    with pytest.raises(PluginError, match=r"'npu' cannot be registered: tridal .* already uses this name"):
        registry.register(FakeBackend(name="npu"))
    with pytest.raises(PluginError, match=r"'fake' cannot be registered: dtypes: expected a Set, found 'float32'"):
        registry.register(FakeBackend(dtypes="float32"))  # type: ignore[arg-type]
    with pytest.raises(PluginError, match=r"'None' cannot be registered: it lacks protocol, name"):
        registry.register(object())  # type: ignore[arg-type]
    with pytest.raises(PluginError, match=r"'auto' cannot be registered"):
        registry.register(FakeBackend(name="auto"))
    with pytest.raises(UnknownDeviceError, match=r"no backend 'npu' was registered in code"):
        registry.unregister("npu")


# -- choice of a backend


@pytest.mark.usefixtures("no_plugins")
def test_first_available_compiled_backend_in_name_order_serves():
    down, interpreted = FakeBackend("a", reason="down"), FakeBackend("b", interpreted=True)
    first, second, other = FakeBackend("c"), FakeBackend("d"), FakeBackend("e", device_type="othertype")
    for backend in (other, second, first, interpreted, down):
        registry.register(backend)
    assert registry.serving("faketype").plugin is first
    assert registry.serving("othertype").plugin is other
    assert registry.serving("nobodys") is None
    assert registry.resolve("auto") == (registry.get(first.name), "faketype")


@pytest.mark.usefixtures("no_plugins")
def test_setting_device_chooses_among_backends_of_one_type():
    plain, interpreted = FakeBackend("plain"), FakeBackend("slow", interpreted=True)
    down = FakeBackend("down", reason="no driver")
    for backend in (plain, interpreted, down):
        registry.register(backend)
    assert registry.serving("faketype").plugin is plain
    with settings.use(device="slow:1"):
        assert registry.serving("faketype").plugin is interpreted
        assert registry.serving("cpu") is None
    with settings.use(device="down"):
        assert registry.serving("cpu") is None  # the setting does not affect other types
        with pytest.raises(DeviceUnavailableError, match="no driver"):
            registry.serving("faketype")
    for device in ("cpu", "faketype:3"):
        with settings.use(device=device):
            assert registry.serving("faketype").plugin is plain


@pytest.mark.usefixtures("no_plugins")
def test_serving_is_cached_by_settings_and_the_cache_is_bounded():
    fake = FakeBackend()
    registry.register(fake)
    for _ in range(100):
        registry.serving("faketype")
    assert fake.unavailable_calls == 1
    for _ in range(100):
        with settings.use(fallback="error"):
            registry.serving("faketype")
    assert fake.unavailable_calls == 1
    for number in range(1000):
        with settings.use(backends={"fake": {"size": number + 1}}):
            assert registry.serving("faketype").plugin is fake
    assert len(registry._serving_cache) <= 256


@pytest.mark.usefixtures("no_plugins")
def test_resolve_returns_backend_and_torch_device_string():
    fake, slow = FakeBackend(), FakeBackend("slow", device_type="cpu", interpreted=True, count=1)
    registry.register(slow)
    assert registry.resolve("auto") == (None, "cpu")
    registry.register(fake)
    assert registry.resolve("auto") == (registry.get(fake.name), "faketype")
    assert registry.resolve("fake") == (registry.get(fake.name), "faketype")
    assert registry.resolve("fake:1") == (registry.get(fake.name), "faketype:1")
    assert registry.resolve("faketype:1") == (registry.get(fake.name), "faketype:1")
    assert registry.resolve("slow") == (registry.get(slow.name), "cpu")
    assert registry.resolve("cpu") == (None, "cpu")
    assert registry.resolve("meta") == (None, "meta")
