"""Compares the speed of two checkouts of tridal on one GPU: `compare_speed.py BEFORE AFTER [FILE [WORKLOADS]]`.

Each checkout has its own process. The two are measured alternately. Prints the two times of each workload, in
microseconds, and their ratio. Then prints the host time of small calls. Writes all results to FILE as JSON.
WORKLOADS is a JSON list of the calls to measure, with the keys op, direction, dtype, shape and dim. By default, most
workloads are rows that several programs compute together. A few others are a control.
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
    """Returns the calls to measure."""
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


def run_worker() -> None:
    """Runs a worker: reads one workload per line from stdin, as JSON, and prints its time in microseconds."""
    import torch

    import tridal
    from tridal.benchmarks.measuring import timer

    def call(workload: dict[str, Any]) -> Any:
        x = torch.randn(workload["shape"], device="cuda", dtype=getattr(torch, workload["dtype"]))
        function = getattr(tridal, workload["op"])
        if workload["direction"] == "forward":
            return lambda: function(x, workload["dim"], **workload.get("keywords", {}))
        x.requires_grad_()
        y, g = function(x, workload["dim"]), torch.randn_like(x)
        return lambda: torch.autograd.grad(y, x, g, retain_graph=True)

    torch.autograd.set_multithreading_enabled(False)
    known: dict[str, Any] = {}
    for line in sys.stdin:
        workload = json.loads(line)
        if workload.get("compile"):
            call(workload)()
            print(0.0, flush=True)
        elif workload.get("host"):
            x = torch.randn(8, 128, device="cuda", requires_grad=workload["grad"])
            function = getattr(tridal, workload["op"])
            times = []
            for _ in range(20):
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(HOST_CALLS):
                    function(x)
                times.append((time.perf_counter() - start) / HOST_CALLS * 1e6)
            print(min(times), flush=True)
        else:
            key = json.dumps({k: v for k, v in workload.items() if k != "round"})
            if known.get("key") != key:
                known = {"key": key, "call": call(workload)}
            print(timer(torch.device("cuda", 0))(known["call"]).median * 1e3, flush=True)


class Worker:
    """A process that runs the workloads of one checkout."""

    def __init__(self, checkout: str) -> None:
        path = os.pathsep.join([f"{checkout}/src", f"{checkout}/backends", os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, __file__, "--work"]
        environment = {**os.environ, "PYTHONPATH": path}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, workload: dict[str, Any]) -> None:
        """Sends a workload to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(workload) + "\n")
        self.process.stdin.flush()

    def answer(self) -> float:
        """Waits for the next result, and returns its time in microseconds."""
        assert self.process.stdout is not None
        return float(self.process.stdout.readline())


def main() -> None:
    """Compiles the kernels of all workloads in parallel, then measures them."""
    before, after = sys.argv[1:3]
    all_workloads = json.loads(Path(sys.argv[4]).read_text()) if len(sys.argv) > 4 else workloads()
    compilers = [Worker(checkout) for checkout in (before, after) for _ in range(COMPILERS)]
    for number, workload in enumerate(all_workloads):
        for offset in (0, COMPILERS):
            compilers[offset + number % COMPILERS].ask({**workload, "compile": True})
    for worker in compilers:
        assert worker.process.stdin is not None
        worker.process.stdin.close()
    for worker in compilers:
        worker.process.wait()
    workers = [Worker(before), Worker(after)]
    results = []
    for workload in all_workloads:
        times: list[list[float]] = [[], []]
        for turn in range(ROUNDS):
            for index in (0, 1) if turn % 2 else (1, 0):
                workers[index].ask(workload)
                times[index].append(workers[index].answer())
        old, new = (statistics.median(found) for found in times)
        results.append({**workload, "before_us": old, "after_us": new, "ratio": new / old})
        op, direction, dtype, shape, dim = (workload[key] for key in ("op", "direction", "dtype", "shape", "dim"))
        name = f"{op} {direction} {dtype} {'x'.join(map(str, shape))} dim {dim}"
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
    run_worker() if sys.argv[1:] == ["--work"] else main()
