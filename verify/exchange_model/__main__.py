"""Explores the exchange between programs: `python -m exchange_model [--long] [--json]`.

Prints the states of each launch that is explored completely, the steps of each launch that runs in random order, and
the seeded faults with the steps that lead to them. The exit code is 1 if a launch has a fault or a seeded fault is not
found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from exchange_model.explore import Result, explore, run
from exchange_model.faults import FAULTS
from exchange_model.launches import LONG, MANY, SHORT


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="exchange_model", description="Explores the exchange between programs.")
    parser.add_argument("--long", action="store_true", help="also explore launches that take up to a minute each")
    parser.add_argument("--seeds", type=int, default=4, metavar="N", help="random runs of each large launch")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args()
    failed = False

    def report(kind: str, name: str, result: Result, seconds: float, ok: bool) -> None:
        nonlocal failed
        failed |= not ok
        fault = None if result.fault is None else result.fault.message
        line: dict[str, Any] = {"kind": kind, "name": name, "states": result.states, "steps": result.steps}
        line |= {"seconds": round(seconds, 2), "ok": ok, "fault": fault}
        trace = [] if result.fault is None else list(result.fault.trace)
        if options.json:
            print(json.dumps(line | {"trace": trace}), flush=True)
            return
        counts = f"{result.states:8d} states {result.steps:8d} steps {seconds:6.1f} s"
        print(f"{'ok  ' if ok else 'FAIL'} {counts}  {kind}: {name}", flush=True)
        if fault is not None:
            print("".join(f"         {step}\n" for step in trace[-30:]) + f"         => {fault}", flush=True)

    for launch in SHORT + LONG if options.long else SHORT:
        start = time.perf_counter()
        result = explore(launch)
        report("all interleavings", str(launch), result, time.perf_counter() - start, result.fault is None)
    for launch in MANY:
        for seed in range(options.seeds):
            start = time.perf_counter()
            result = run(launch, seed)
            report("random order", f"{launch}, seed {seed}", result, time.perf_counter() - start, result.fault is None)
    for seeded in FAULTS:
        start = time.perf_counter()
        result = explore(seeded.launch, seeded.edits)
        found = result.fault is not None and seeded.found in result.fault.message
        report("seeded fault", seeded.name, result, time.perf_counter() - start, found)
    sys.exit(failed)


if __name__ == "__main__":
    main()
