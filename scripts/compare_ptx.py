"""Compares the PTX of two commits: `compare_ptx.py BEFORE.jsonl AFTER.jsonl`. `dump_ptx.py` writes both files.

Prints the number of cases with each result. Lists the cases that differ, except cooperative plans with different PTX.
The exit code is 1 if a plan or an error differs.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def load(file: str) -> dict[str, dict[str, Any]]:
    """Returns the lines of a file, by case name."""
    return {line["case"]: line for line in map(json.loads, Path(file).read_text().splitlines())}


def main() -> None:
    """Compares the files and exits."""
    before, after = load(sys.argv[1]), load(sys.argv[2])
    verdicts: Counter[str] = Counter()
    for case in before.keys() & after.keys():
        old, new = before[case], after[case]
        if old.get("error") or new.get("error"):
            verdict = "same error" if old.get("error") == new.get("error") else "error"
        elif old["plan"] != new["plan"]:
            verdict = "plan differs"
        elif old["ptx"] == new["ptx"]:
            verdict = "same PTX"
        elif old["sass"] == new["sass"]:
            verdict = "same SASS"
        else:
            verdict = "cooperative, PTX differs" if old["plan"][4] > 1 else "PTX differs"
        verdicts[verdict] += 1
        if verdict not in ("same PTX", "same SASS", "cooperative, PTX differs"):
            print(f"{verdict}: {case} {old.get('plan')} {new.get('plan')} {new.get('error', '')}")
    for verdict, count in verdicts.most_common():
        print(f"{count:4d} {verdict}")
    print(f"{len(before.keys() ^ after.keys()):4d} in one file only")
    sys.exit(1 if verdicts["plan differs"] or verdicts["error"] else 0)


if __name__ == "__main__":
    main()
