"""A third-party plugin: the wheel of tests/plugin is installed, discovered and used without a change in tridal."""

from __future__ import annotations

import json
from pathlib import Path

from backend_helpers import PLUGIN, install, run_python

USE_TOY = """
    import json, os, torch, tridal
    x = torch.randn(10, 33)
    with tridal.use(device="toy"):
        y = tridal.softmax(x)
        plan = tridal.plan(10, 33)
    (status,) = [s for s in tridal.backends() if s.name == "toy"]
    difference = (y - torch.softmax(x, -1)).abs().max().item()
    found = [status.origin, status.available, status.device_type, plan.reason, difference < 1e-6]
    os.environ["TRIDAL_TOY_ROWS"] = "3"
    tridal.settings.reload()
    try:
        tridal.softmax(x)
    except tridal.errors.SettingsError as error:
        found.append(str(error))
    print(json.dumps(found))
"""


def test_installed_wheel_computes_softmax_with_its_option_of_the_environment(tmp_path: Path) -> None:
    assert json.loads(run_python(USE_TOY, install(tmp_path, PLUGIN), TRIDAL_TOY_ROWS="8")) == [
        "tridal-toy 1.2.3",
        True,
        "cpu",
        "a toy takes 8 rows at a time",
        True,
        "environment TRIDAL_TOY_ROWS: backends.toy.rows: expected a power of two, found 3",
    ]
