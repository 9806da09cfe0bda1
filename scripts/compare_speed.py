"""Measures two versions of tridal on a GPU in one run: `compare_speed.py BEFORE AFTER [FILE]`, two checkouts.

Each version runs in a process of its own, and they are measured in turns. Prints the time of each workload before and
after, in microseconds, and their ratio; then the host time of small calls. FILE gets the same as JSON. Workloads are
those whose kernels changed: rows that several programs compute together, and a few others as a control.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROUNDS, HOST_CALLS, COMPILERS = 3, 500, 7
SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((2048, 65_536), 1), ((8, 50_257), 1), ((64, 128_256), 1), ((4096, 16_384), 1), ((4096, 50_257), 1),
    ((1, 131_072), 1), ((512, 300_000), 1), ((128, 128_256), 1), ((50_257, 512), 0), ((32, 1000, 1001), 1),
    ((1, 50_257, 1024), 1), ((16, 4097, 512), 1), ((4096, 12_672), 1), ((4096, 1024), 1),
]  # fmt: skip


def workloads() -> list[dict[str, Any]]:
    """What is measured."""
    found = []
    for shape, dim in SHAPES:
        for dtype in ("float32", "bfloat16"):
            for op in ("softmax", "log_softmax"):
                for direction in ("forward", "backward"):
                    if op == "softmax" or dtype == "bfloat16":
                        found.append({"op": op, "direction": direction, "dtype": dtype, "shape": shape, "dim": dim})
    masked = {"scale": 0.125, "causal": True, "masked_rows": "zero"}
    wide = {"op": "softmax", "direction": "forward", "dtype": "float64", "dim": 3, "keywords": masked}
    return [*found, {**wide, "shape": (2, 4, 256, 20_000)}, {**wide, "shape": (1, 1, 64, 300_000)}]


def work() -> None:
    """A worker: reads workloads as lines of JSON, and answers with a time in microseconds."""
    import torch

    import tridal
    from tridal.benchmarks.measuring import timer

    def call(load: dict[str, Any]) -> Any:
        x = torch.randn(load["shape"], device="cuda", dtype=getattr(torch, load["dtype"]))
        function = getattr(tridal, load["op"])
        if load["direction"] == "forward":
            return lambda: function(x, load["dim"], **load.get("keywords", {}))
        x.requires_grad_()
        y, g = function(x, load["dim"]), torch.randn_like(x)
        return lambda: torch.autograd.grad(y, x, g, retain_graph=True)

    torch.autograd.set_multithreading_enabled(False)
    known: dict[str, Any] = {}
    for line in sys.stdin:
        load = json.loads(line)
        if load.get("compile"):
            call(load)()
            print(0.0, flush=True)
        elif load.get("host"):
            x = torch.randn(8, 128, device="cuda", requires_grad=load["grad"])
            function = getattr(tridal, load["op"])
            times = []
            for _ in range(20):
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(HOST_CALLS):
                    function(x)
                times.append((time.perf_counter() - start) / HOST_CALLS * 1e6)
            print(min(times), flush=True)
        else:
            key = json.dumps({k: v for k, v in load.items() if k != "round"})
            if known.get("key") != key:
                known = {"key": key, "call": call(load)}
            print(timer(torch.device("cuda", 0))(known["call"]).median * 1e3, flush=True)


class Worker:
    """A process that runs one version."""

    def __init__(self, checkout: str) -> None:
        path = os.pathsep.join([f"{checkout}/src", f"{checkout}/backends", os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, __file__, "--work"]
        environment = {**os.environ, "PYTHONPATH": path}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, load: dict[str, Any]) -> None:
        """Sends a workload."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(load) + "\n")
        self.process.stdin.flush()

    def answer(self) -> float:
        """The time, in microseconds."""
        assert self.process.stdout is not None
        return float(self.process.stdout.readline())


def main() -> None:
    """Compiles all kernels in parallel, then measures."""
    before, after = sys.argv[1:3]
    loads = workloads()
    compilers = [Worker(checkout) for checkout in (before, after) for _ in range(COMPILERS)]
    for number, load in enumerate(loads):
        for offset in (0, COMPILERS):
            compilers[offset + number % COMPILERS].ask({**load, "compile": True})
    for worker in compilers:
        assert worker.process.stdin is not None
        worker.process.stdin.close()
    for worker in compilers:
        worker.process.wait()
    workers = [Worker(before), Worker(after)]
    results = []
    for load in loads:
        times: list[list[float]] = [[], []]
        for turn in range(ROUNDS):
            for index in (0, 1) if turn % 2 else (1, 0):
                workers[index].ask(load)
                times[index].append(workers[index].answer())
        old, new = (statistics.median(found) for found in times)
        results.append({**load, "before_us": old, "after_us": new, "ratio": new / old})
        name = f"{load['op']} {load['direction']} {load['dtype']} {'x'.join(map(str, load['shape']))} dim {load['dim']}"
        print(f"{name:58s} {old:9.1f} {new:9.1f} {new / old:6.3f}", flush=True)
    ratios = [result["ratio"] for result in results]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"{len(ratios)} workloads: geometric mean {mean:.3f}, least {min(ratios):.3f}, most {max(ratios):.3f}")
    for op in ("softmax", "log_softmax"):
        for grad in (False, True):
            times = [[], []]
            for turn in range(ROUNDS):
                for index in (0, 1) if turn % 2 else (1, 0):
                    workers[index].ask({"host": True, "op": op, "grad": grad})
                    times[index].append(workers[index].answer())
            old, new = (min(found) for found in times)
            results.append({"host": op, "grad": grad, "before_us": old, "after_us": new, "ratio": new / old})
            print(f"host {op} grad={grad}: {old:.2f} {new:.2f} {new / old:.3f}", flush=True)
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--work"] else main()
