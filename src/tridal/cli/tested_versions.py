"""The versions of torch and Triton that tridal is tested with."""

from __future__ import annotations

import re
from collections.abc import Mapping

TESTED: Mapping[str, tuple[str, str]] = {"torch": ("2.13", "2.15"), "triton": ("3.5", "3.9")}
"""The oldest and the newest tested minor version of each package. pyproject.toml allows older ones."""


def as_text() -> str:
    """Returns the tested versions of all packages as text."""
    return ", ".join(f"{package} {oldest} to {newest}" for package, (oldest, newest) in TESTED.items())


def warnings(versions: Mapping[str, str | None]) -> list[str]:
    """Returns one line for each installed package whose version is outside the tested range. None: not installed."""
    lines = []
    for package, (oldest, newest) in TESTED.items():
        version = versions[package]
        if version is None or _minor(oldest) <= _minor(version) <= _minor(newest):
            continue
        age = "older" if _minor(version) < _minor(oldest) else "newer"
        lines.append(
            f"{package} {version} is {age} than the versions that tridal is tested with ({oldest} to {newest}). "
            "Run `tridal check --all` to test it on this device"
        )
    return lines


def _minor(version: str) -> tuple[int, ...]:
    """Returns (major, minor)."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
