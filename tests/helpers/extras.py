"""Skips tests whose packages are optional, with one message that says how to install them."""

from __future__ import annotations

from typing import Any

import pytest


def of_trainers(package: str) -> Any:
    """Returns a package of the extra `trainers`. Skips the test without it."""
    return pytest.importorskip(package, reason=f"{package} is not installed: pip install 'tridal[trainers]'")
