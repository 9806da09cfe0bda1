"""Checks that a version can be released: `check_release.py VERSION`. Prints what is wrong, and exits with 1."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def faults(version: str, root: Path = ROOT) -> list[str]:
    """Returns why a version cannot be released from the files in `root`."""
    places = {
        "pyproject.toml": r'^version = "(.*)"$',
        "src/tridal/__init__.py": r'^__version__ = "(.*)"$',
        "CITATION.cff": r"^version: (.*)$",
    }
    found = []
    for place, pattern in places.items():
        match = re.search(pattern, (root / place).read_text(), re.MULTILINE)
        if match is None or match[1] != version:
            found.append(f"{place} has the version {match[1] if match else None}, not {version}")
    section = re.search(r"^## (.*)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    newest = section[1] if section else "nothing"
    if not re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", newest):
        found.append(f"CHANGELOG.md begins with {newest!r}: write '{version} - ' and the date of the release")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if wrong := faults(sys.argv[1]):
        sys.exit("\n".join(wrong))
    print(f"{sys.argv[1]} can be released")
