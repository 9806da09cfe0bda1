"""The content of a results.json: the results of runs have no fault, and each wrong or missing value is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tridal.benchmarks import results
from tridal.benchmarks.results_format import find_fault

PUBLISHED = sorted((Path(__file__).parents[2] / "docs" / "benchmarks").rglob("results.json"))
DOCUMENT: dict[str, Any] = json.loads(Path(__file__).parents[2].joinpath("docs/benchmarks/results.json").read_text())
DOCUMENT |= {"measurements": DOCUMENT["measurements"][:2], "host": DOCUMENT["host"][:1]}


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the keys and indices that lead to each value of a document, at every depth."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from paths(inner, (*path, key))


PATHS = [path for path in paths(DOCUMENT) if path != ("format",)]


def changed(path: tuple[Any, ...], *new: Any) -> tuple[Any, str]:
    """Returns the document with another value at a path, or without it, and the path as text."""
    document: Any = copy.deepcopy(DOCUMENT)
    owner = document
    for key in path[:-1]:
        owner = owner[key]
    if new:
        (owner[path[-1]],) = new
    else:
        del owner[path[-1]]
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return document, text.removeprefix(".")


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.parent.name)
def test_published_results_have_no_fault(file: Path) -> None:
    assert results.load(file)["measurements"]


@pytest.mark.parametrize(
    "wrong", [-1, float("nan"), 10**400, "\ud800", [0], {"": 0}], ids=lambda value: repr(value)[:9]
)
def test_wrong_value_at_any_depth_is_named(wrong: Any) -> None:
    for path in PATHS:
        document, name = changed(path, wrong)
        fault = find_fault(document)
        assert fault is not None, name
        assert fault.startswith(name), fault
        assert "expected" in fault or "missing" in fault
        assert "\n" not in fault


def test_missing_key_at_any_depth_is_named() -> None:
    kept = {"providers", "passes", "aims"}  # objects whose keys are not fixed
    for path in PATHS:
        if isinstance(path[-1], str) and (path[0] not in kept or len(path) == 1):
            document, name = changed(path)
            assert find_fault(document) == f"{name} is missing"


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("measurements", 0, "ms"), "fast", "measurements[0].ms: expected a positive number, or null, found 'fast'"),
        (("measurements", 1, "group"), "tall", "measurements[1].group: expected one of grid, rows, wide, odd, "),
        (("measurements", 1, "dtype"), "../x", "measurements[1].dtype: expected one of float16, bfloat16, "),
        (("measurements", 0, "provider"), "$x^", "measurements[0].provider: expected a name, found '$x^'"),
        (("op",), "a/b", "op: expected the name of an op, found 'a/b'"),
        (("machine", "name"), None, "machine.name: expected a name, found nothing"),
        (("host",), 3, "host: expected a list, found 3"),
        (("machine",), [], "machine: expected an object, found []"),
        (("providers", "x\n"), "1.0", "providers: expected a name as each key, found 'x\\n'"),
        (
            ("measurements", 1, "ms_20"),
            None,
            "measurements[1]: expected numbers for all of ms, ms_20, ms_80, gbps, or ",
        ),
        (("host", 0, "us"), None, "host[0]: expected numbers for all of us, us_20, us_80, or null for all of them"),
    ],
)
def test_fault_says_what_is_expected_and_found(path: tuple[Any, ...], value: Any, fault: str) -> None:
    assert (find_fault(changed(path, value)[0]) or "").startswith(fault)


def test_share_without_a_time_is_a_fault() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["measurements"][0] |= dict.fromkeys(("ms", "ms_20", "ms_80", "gbps"))
    fault = "measurements[0].share_of_copy: expected null, because there is no time"
    assert find_fault(document) == fault
    document["measurements"][0]["share_of_copy"] = None
    assert find_fault(document) is None


def test_document_without_a_measurement_is_a_fault() -> None:
    assert find_fault({**DOCUMENT, "measurements": [], "host": []}) == "it has no measurement"
    assert find_fault({**DOCUMENT, "measurements": []}) is None
