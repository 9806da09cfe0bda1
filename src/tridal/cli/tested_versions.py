"""The versions of torch and Triton that tridal is tested with."""

from __future__ import annotations

import re
from collections.abc import Mapping

PAIRS: tuple[tuple[str, str], ...] = (
    ("2.7", "3.3"), ("2.9", "3.5"), ("2.11", "3.6"), ("2.13", "3.7"), ("2.15", "3.9"),
)  # fmt: skip
"""The minor versions of torch and Triton with which all tests passed. pyproject.toml allows other versions."""
TESTED: Mapping[str, tuple[str, str]] = {
    package: (PAIRS[0][index], PAIRS[-1][index]) for index, package in enumerate(("torch", "triton"))
}
"""The oldest and the newest tested minor version of each package."""


def as_text() -> str:
    """The tested versions, such as "torch 2.7 with triton 3.3, torch 2.9 with triton 3.5"."""
    return ", ".join(f"torch {torch} with triton {triton}" for torch, triton in PAIRS)


def warnings(versions: Mapping[str, str | None]) -> list[str]:
    """Writes one line for each installed package whose version is outside the tested range. None: not installed."""
    lines = []
    for package, (oldest, newest) in TESTED.items():
        version = versions[package]
        if version is not None and not _minor(oldest) <= _minor(version) <= _minor(newest):
            age = "older" if _minor(version) < _minor(oldest) else "newer"
            found = f"{package} {version} is {age} than the versions that tridal is tested with ({oldest} to {newest})"
            lines.append(f"{found}. Run `tridal check --all` to test it on this device")
    return lines


def _minor(version: str) -> tuple[int, ...]:
    """The version as (major, minor)."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
