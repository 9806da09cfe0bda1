"""The setting `kernel_configs`: which calls have its configuration, and errors that name the setting."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tridal
from cli_helpers import run
from torch_versions import skip_unless_compiled
from tridal.devices import settings
from tridal.devices.types import LaunchPlan
from tridal.errors import PlanError, SettingsError

pytestmark = pytest.mark.usefixtures("no_settings")
LOOP = {"schedule": "column_loop", "rows": 1, "cols": 256}
ROWS = {"schedule": "whole_row", "rows": 2, "cols": 1024, "num_warps": 8}


def entry(config: dict[str, Any], cols: Any = 1000, kernel: str = "softmax", dtype: str = "float32") -> dict[str, Any]:
    return {"kernel": kernel, "dtype": dtype, "cols": cols, "config": config}


def planned(*entries: dict[str, Any], cols: int = 1000, **question: Any) -> LaunchPlan:
    with tridal.use(kernel_configs=entries):
        return tridal.plan(4096, cols, **{"device": "interpreter", **question})


# -- which calls have the configuration


@pytest.mark.parametrize("arch", ["h100", "sm_80", "gfx942", "ascend910b", "interpreter"])
def test_plan_of_every_backend_has_the_configuration_and_names_the_setting(arch: str) -> None:
    pytest.importorskip("triton")
    if arch == "gfx942":
        skip_unless_compiled("rocm")
    found = planned(entry(LOOP), device=None, arch=arch)
    for name, value in LOOP.items():
        assert getattr(found.config, name) == value
    assert found.config != tridal.plan(4096, 1000, arch=arch).config
    assert found.reason.startswith("tridal.use: kernel_configs[0] sets the configuration; ")


@pytest.mark.parametrize(
    ("cols", "question", "applies"),
    [
        *((cols, {}, 900 <= cols <= 1024) for cols in (899, 900, 1024, 1025)),
        (1000, {"dtype": "bfloat16"}, False),
        (1000, {"op": "log_softmax"}, False),
        (1000, {"op": "softmax_backward"}, False),
    ],
)
def test_setting_applies_to_its_kernel_dtype_and_columns(cols: int, question: dict[str, Any], applies: bool) -> None:
    found = planned(entry(LOOP, [900, 1024], dtype="fp32"), cols=cols, **question)
    assert ("kernel_configs" in found.reason) == applies == (found.config.schedule == "column_loop")


def test_first_entry_that_applies_is_used() -> None:
    entries = entry(ROWS, 999), entry(LOOP, [1, 2000]), entry(ROWS)
    assert planned(*entries).reason.startswith("tridal.use: kernel_configs[1] ")


# -- errors


@pytest.mark.parametrize(
    ("config", "question", "message"),
    [
        ({**ROWS, "cols": 512}, {}, "config: cols = 512, expected at least 1000, because a tile holds whole rows"),
        ({**ROWS, "reload": True}, {"arch": "ascend910b"}, "config: reload = True, expected False, because the"),
        ({**ROWS, "lanes": 2}, {}, 'config: lanes = 2, expected 1, because only "column_loop" splits a row into lanes'),
        ({**ROWS, "peel": True}, {"arch": "h100", "cols": 1008}, "config: peel = True, but backend 'cuda' (tridal"),
        ({**ROWS, "rows": 64, "num_warps": 1}, {"arch": "ascend910b"}, "backend 'npu' (tridal"),
        (
            {"schedule": "cooperative", "rows": 1, "cols": 1, "num_warps": 32}, {"arch": "h100"},
            "backend 'cuda' (tridal",
        ),
    ],
)  # fmt: skip
def test_impossible_configuration_names_the_setting_and_the_field(
    config: dict[str, Any], question: dict[str, Any], message: str
) -> None:
    pytest.importorskip("triton")
    with pytest.raises(PlanError) as raised:
        planned(entry(config, [1000, 1008]), **({"device": None, **question} if question else {}))
    assert str(raised.value).startswith(f"tridal.use: kernel_configs[0]: {message}")


def test_example_of_the_documentation_is_valid_and_applies(no_settings: Path) -> None:
    pytest.importorskip("triton")
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    (example,) = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "kernel_configs" in text]
    (no_settings / "tridal.yaml").write_text(example)
    settings.reload()
    for index, op, cols, dtype in ((0, "softmax_backward", 12_672, "bfloat16"), (1, "softmax", 128_256, "bfloat16")):
        found = tridal.plan(4096, cols, op=op, dtype=dtype, arch="h100")
        assert found.reason.startswith(f"tridal.yaml:1: kernel_configs[{index}] sets the configuration; ")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kernel": "softmax"}, ": expected a list of mappings with the keys kernel, dtype, cols and config, found "),
        ([5], "[0]: expected a mapping with the keys kernel, dtype, cols, config, found 5"),
        ([entry(ROWS), {"kernel": "softmax", "cols": 8}], "[1]: dtype, config: missing"),
        ([entry(ROWS, dtype="bf61")], "[0]: dtype: expected one of float16, bfloat16, float32, float64, found 'bf61'"),
        *(
            ([entry(ROWS, cols)], "[0]: cols: expected a positive integer or [first, last], found ")
            for cols in (0, "8", [9, 8], True)
        ),
        ([entry({**ROWS, "warps": 4})], "[0]: config: no key is called 'warps'; did you mean 'num_warps'? (known: "),
        ([entry({**ROWS, "schedule": "loop"})], "[0]: config: no schedule is called 'loop'"),
        ([entry({**ROWS, "num_warps": 3})], "[0]: config: num_warps: expected a power of two, found 3"),
    ],
    ids=str,
)
def test_wrong_value_names_the_source_the_entry_and_the_field(
    value: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIDAL_KERNEL_CONFIGS", json.dumps(value))
    for start, attempt in (
        ("tridal.use", lambda: tridal.use(kernel_configs=value)),
        ("environment TRIDAL_KERNEL_CONFIGS", settings.reload),
    ):
        with pytest.raises(SettingsError) as raised:
            attempt()
        assert str(raised.value).startswith(f"{start}: kernel_configs{message}")


def test_unknown_kernel_names_the_setting_in_plans_and_the_check_of_a_file(no_settings: Path) -> None:
    message = "kernel_configs[0]: kernel: unknown op 'sofmax'; did you mean 'softmax'"
    with pytest.raises(SettingsError) as raised:
        planned(entry(ROWS, kernel="sofmax"))
    assert str(raised.value).startswith(f"tridal.use: {message}")
    (no_settings / "tridal.yaml").write_text(f"kernel_configs: [{entry(ROWS, kernel='sofmax')}]\n")
    assert message in " ".join(run("config", "--check", "tridal.yaml", code=1).output.split())
