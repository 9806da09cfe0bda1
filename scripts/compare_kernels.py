"""Compares the kernels of two commits: `compare_kernels.py BEFORE AFTER`, with two files of `dump_kernels.py`.

Lists the kernels that differ, and prints the number of kernels with each result. The exit code is 1 if a kernel differs
in more than the names, the labels and the parameters that the normalized code ignores.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

SAME = ("same code", "same SASS", "same error")


def load(file: str) -> tuple[str, dict[tuple[str, int], dict[str, Any]]]:
    """Returns the versions of Triton in a file, and its kernels by case and number."""
    entries = list(map(json.loads, Path(file).read_text().splitlines()))
    triton = {entry["triton"] for entry in entries if "case" not in entry}
    return " and ".join(sorted(triton)), {(e["case"], e["kernel"]): e for e in entries if "case" in e}


def verdict(old: dict[str, Any] | None, new: dict[str, Any] | None) -> str:
    """Returns the result of the comparison of two entries of a kernel."""
    if old is None or new is None:
        return "in one file only"
    if "error" in old or "error" in new:
        return "same error" if old.get("error") == new.get("error") else "another error"
    if old["plan"] != new["plan"]:
        return "plan differs"
    for same, key in (("same code", "code"), ("same SASS", "sass"), ("same operations, other code", "operations")):
        if key in old and old[key] == new[key]:
            return same
    return "code differs"


def main() -> None:
    """Compares the files and exits."""
    (triton, before), (triton_after, after) = load(sys.argv[1]), load(sys.argv[2])
    if triton != triton_after:
        sys.exit(f"the first file was made with Triton {triton}, the second one with {triton_after}: use the same")
    verdicts: Counter[str] = Counter()
    for key in before | after:
        old, new = before.get(key), after.get(key)
        found = verdict(old, new)
        verdicts[found] += 1
        if found not in SAME:
            details = [(entry or {}).get("error") or (entry or {}).get("plan") for entry in (old, new)]
            print(f"{found}: kernel {key[1]} of {key[0]}\n    {details[0]}\n    {details[1]}")
    for found, count in verdicts.most_common():
        print(f"{count:5d} {found}")
    sys.exit(any(found not in SAME for found in verdicts))


if __name__ == "__main__":
    main()
