"""A third-party plugin: the wheel of tests/plugin is installed, discovered and used without a change in tridal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend_helpers import PLUGIN, install_wheel, run_python
from tridal.devices import registry
from tridal.errors import UnknownDeviceError

pytestmark = pytest.mark.usefixtures("fresh_registry")


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel of tests/plugin."""
    return install_wheel(PLUGIN, tmp_path_factory.mktemp("third-party"), "tridal_toy-1.2.3")


USE_TOY = """
    import json, torch, tridal
    x = torch.randn(10, 33)
    with tridal.use(device="toy"):
        y = tridal.softmax(x)
        plan = tridal.plan(10, 33)
    (status,) = [s for s in tridal.backends() if s.name == "toy"]
    difference = (y - torch.softmax(x, -1)).abs().max().item()
    print(json.dumps([status.origin, status.available, status.device_type, plan.config.rows, plan.reason, difference]))
"""


def test_installed_wheel_is_discovered_plans_and_computes_softmax(site_folder):
    origin, available, device_type, rows, reason, difference = json.loads(run_python(USE_TOY, site_folder))
    assert (origin, available, device_type) == ("tridal-toy 1.2.3", True, "cpu")
    assert (rows, reason) == (1024, "a toy takes 1024 rows at a time")
    assert difference < 1e-6


def test_option_of_installed_plugin_is_read_from_the_environment(site_folder):
    assert json.loads(run_python(USE_TOY, site_folder, TRIDAL_TOY_ROWS="8"))[4] == "a toy takes 8 rows at a time"


def test_wrong_option_of_installed_plugin_raises_settings_error(site_folder):
    code = """
        import torch, tridal
        try:
            tridal.softmax(torch.randn(3))
        except tridal.errors.SettingsError as error:
            print(error)
    """
    output = run_python(code, site_folder, TRIDAL_TOY_ROWS="3")
    assert output == "environment TRIDAL_TOY_ROWS: backends.toy.rows: expected a power of two, found 3\n"


def test_toy_is_unknown_without_the_wheel():
    with pytest.raises(UnknownDeviceError, match="no device is called 'toy'"):
        registry.resolve("toy")
