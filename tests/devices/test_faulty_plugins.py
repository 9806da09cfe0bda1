"""Faults that are found when a plugin is loaded: each is recorded and logged once, and other backends work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from backend_helpers import assert_others_work, faulty, toy_source
from tridal.devices import registry
from tridal.errors import PluginError

pytestmark = pytest.mark.usefixtures("fresh_registry")


LOADING = {
    "raise RuntimeError('no luck')": "it could not be loaded: RuntimeError: no luck",
    "raise RuntimeError('x' * 9999)": " ... xxx",
    "class Odd(Exception):\n    def __str__(self): return 1 / 0\nraise Odd": "it could not be loaded: Odd",
    "raise SystemExit(3)": "it could not be loaded: SystemExit: 3",
    "import no_such_module": "No module named 'no_such_module'",
    "from tridal.types import with_row_range": "tridal.types has no with_row_range, which belongs to protocol 1",
    "": "it could not be loaded: AttributeError: module 'badly' has no attribute 'backend'",
    "backend = None": "it lacks protocol, name, device_type, dtypes",
}  # fmt: skip
"""Sources of plugins, and a part of the fault that is recorded."""
MEMBERS = {
    "backend = Toy": "expected an instance or a module, found the class 'Toy'",
    "Toy.guard = property(lambda self: self.missing)": "it lacks guard",
    "del Toy.protocol": "it lacks protocol",
    "Toy.protocol = 0": "protocol: it uses version 0 of the protocol, and this tridal version 2: upgrade the plugin",
    "Toy.protocol = 1": "version 1 of the protocol, and this tridal version 2: upgrade the plugin (plans state in "
        "`programs` the largest number of programs if persistent, else None; remove with_row_range, row_range,",
    "Toy.protocol = 3": "protocol: it uses version 3 of the protocol, and this tridal version 2: upgrade tridal",
    "Toy.protocol = '1'": "protocol: expected an integer, found '1'",
    "Toy.plan = lambda self, problem, device, probe: None":
        "plan: expected the parameters (problem, device, probe, options), found (problem, device, probe)",
    "Toy.stream = 0": "stream: expected a method, found 0",
    "Toy.dtypes = ['float32']": "dtypes: expected a Set, found ['float32']",
    "Toy.dtypes = {'float23'}": "dtypes: unknown 'float23'; did you mean 'float32'",
    "Toy.schedules = {'whole_row', 'column_lop'}":
        "schedules: unknown 'column_lop'; did you mean 'column_loop'? (known: whole_row, cooperative, column_loop)",
    "Toy.schedules = set()": "schedules: expected at least one of whole_row",
    "Toy.features = {'relod'}":
        "features: unknown 'relod'; did you mean 'reload'? (known: peel, reload, lanes, rest_cols, scale_mask)",
    "Toy.interpreted = 'no'": "interpreted: expected a bool, found 'no'",
    "Toy.device_type = None": "device_type: expected a str, found nothing",
    "Toy.options = {'rows': 4}": "options: rows: expected an Option, found 4",
    "Toy.options = {'Rows-': 4}": "options: expected a name of lower-case",
    "Toy.options = {'rows': Option(3, 'even', lambda value: value % 2 == 0)}":
        "options: rows.default: expected even, found 3",
    "Toy.device_type = 'cpu:0'": "device_type: expected a torch.device.type without an index, other than 'meta',",
    "Toy.name = 'good'": "its entry point is called 'bad', but its name is 'good'",
    "Toy.name = property(lambda self: 1 / 0)": "ZeroDivisionError: division",
}  # fmt: skip
"""Code that breaks the class `Toy` of a plugin, and a part of the fault that is recorded."""


@pytest.mark.parametrize(
    ("source", "expected"), [*LOADING.items(), *((faulty(fault), expected) for fault, expected in MEMBERS.items())],
    ids=[*LOADING, *MEMBERS],
)  # fmt: skip
def test_fault_at_loading_is_recorded_and_logged_once(
    install_plugin: Callable[..., None], caplog: Any, source: str, expected: str
) -> None:
    install_plugin("badly", {"bad": "badly:backend"}, source)
    with caplog.at_level(logging.WARNING, logger="tridal"):
        (entry,) = [entry for entry in registry.registered() if entry.name == "bad"]
        registry.registered()
    assert entry.backend is None
    assert expected in entry.fault
    logged = [record.getMessage() for record in caplog.records if "badly" in record.getMessage()]
    assert logged == [f"backend 'bad' of badly 1.0 cannot be used: {entry.fault}"]
    with pytest.raises(PluginError) as raised:
        registry.get("bad")
    assert str(raised.value) == logged[0]
    assert_others_work()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("auto", "name: 'auto' is reserved"),
        ("mps", "name: 'mps' is a device type of torch, so a backend with device_type 'faketype' cannot have it"),
        ("Bad", "name: expected lower-case letters and digits, found 'Bad'"),
        ("b-d", "name: expected lower-case letters and digits, found 'b-d'"),
    ],
)
def test_reserved_or_invalid_name_is_refused(install_plugin: Callable[..., None], name: str, expected: str) -> None:
    install_plugin("badly", {name: "badly:backend"}, toy_source(name))
    (entry,) = [entry for entry in registry.registered() if entry.name == name]
    assert entry.fault == expected
    assert_others_work()


def test_device_type_of_torch_is_a_valid_name_for_its_backend(install_plugin: Callable[..., None]) -> None:
    install_plugin("good", {"mps": "good:backend"}, toy_source("mps", device_type="mps"))
    assert registry.get("mps").device_type == "mps"
