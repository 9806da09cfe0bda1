"""The tested versions: the warnings of `tridal doctor`, and the pages and requirements that state the same versions."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from tridal.cli import tested_versions

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_versions_outside_the_tested_range_give_a_warning(package: str) -> None:
    oldest, newest = tested_versions.TESTED[package]
    inside, later = dict.fromkeys(tested_versions.TESTED), int(newest.split(".")[0]) + 1
    for version in (oldest, newest, f"{newest}.7+cu132"):
        assert tested_versions.warnings(inside | {package: version}) == []
    for version, age in (("1.9", "older"), (f"{later}.0", "newer"), (f"{later}.1.0a0+git1234567", "newer")):
        (line,) = tested_versions.warnings(inside | {package: version})
        assert line.startswith(f"{package} {version} is {age} than the versions that tridal is tested with ({oldest} ")


def test_readme_states_the_tested_versions() -> None:
    (row,) = re.findall(r"^\| torch and Triton.*$", README.read_text(), re.MULTILINE)
    assert tuple(re.findall(r"(\d\.\d+) and (\d\.\d+)", row)) == tested_versions.PAIRS


def test_requirements_allow_all_tested_versions() -> None:
    requirements = metadata.requires("tridal") or []
    for package, (oldest, _) in tested_versions.TESTED.items():
        (least,) = {found[1] for line in requirements if (found := re.match(rf"{package}>=([\d.]+)(;|$)", line))}
        assert [int(part) for part in least.split(".")] <= [int(part) for part in oldest.split(".")]
        assert not any(re.match(rf"{package}\b.*<", line) for line in requirements), "pip would replace torch"
