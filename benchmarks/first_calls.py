"""Measures the first call of a width with empty caches, and in a second process that finds kernels on disk.

    python benchmarks/first_calls.py [--ops NAME...] [--columns NUMBER...] [--backward] [--json FILE]

A process first computes a small tensor of another dtype, so that imports and the driver are not measured. Then it
measures one call of 1,024 rows in bfloat16, planning and compilation included. Each width has its own empty cache.
Prints a table: seconds and compiled kernels with an empty cache, and seconds in a second process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import tridal
from tridal.runtime import compiler

ROWS = 1024
COLUMNS = (1000, 3000, 9000, 20_000, 60_000, 140_000)
OPS = ("softmax", "rms_norm", "layer_norm", "cross_entropy")


def compute(op: str, cols: int, dtype: torch.dtype, backward: bool) -> None:
    """Computes an op for a tensor of `ROWS` rows and `cols` columns, and its gradients if they are asked for."""
    device = tridal.device()
    x = torch.randn(ROWS, cols, device=device, dtype=dtype, requires_grad=backward)
    parameters = [torch.ones(cols, device=device, dtype=dtype, requires_grad=backward) for _ in range(2)]
    wait(device)
    if op == "softmax":
        y = tridal.softmax(x, -1)
    elif op == "cross_entropy":
        y = tridal.cross_entropy(x, torch.zeros(ROWS, dtype=torch.int64, device=device))
    else:
        y = getattr(tridal, op)(x, (cols,), *parameters[: 1 if op == "rms_norm" else 2])
    if backward:
        y.backward(torch.ones_like(y))
    wait(device)


def wait(device: torch.device) -> None:
    """Waits until an accelerator has computed everything."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def measure(op: str, cols: int, backward: bool) -> tuple[float, int]:
    """Returns the seconds of the first call of a width, and the number of kernels that were compiled or loaded."""
    compute(op, 64, torch.float32, backward)
    before, start = compiler.compile_kernel.cache_info().misses, time.perf_counter()
    compute(op, cols, torch.bfloat16, backward)
    return time.perf_counter() - start, compiler.compile_kernel.cache_info().misses - before


def in_new_process(op: str, cols: int, backward: bool, cache: str) -> tuple[float, int]:
    """Returns what `measure` returns in a process with a folder for its caches."""
    command = [sys.executable, __file__, "--measure", op, str(cols), *["--backward"] * backward]
    environment = {**os.environ, "TRITON_CACHE_DIR": cache}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    seconds, kernels = json.loads(output.splitlines()[-1])
    return seconds, kernels


def main() -> None:
    """Measures each op and width in two processes, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", choices=OPS, default=OPS)
    parser.add_argument("--columns", nargs="+", type=int, default=COLUMNS, metavar="NUMBER")
    parser.add_argument("--backward", action="store_true", help="compute gradients, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to a file")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], int(options.measure[1]), options.backward)))
        return
    results = []
    print(f"{'op':<14}{'columns':>9}{'first s':>9}{'kernels':>9}{'second process s':>18}")
    for op in options.ops:
        for cols in options.columns:
            with tempfile.TemporaryDirectory(prefix="first-calls-") as cache:
                (first, kernels), (second, _) = (in_new_process(op, cols, options.backward, cache) for _ in range(2))
            print(f"{op:<14}{cols:>9,}{first:>9.2f}{kernels:>9}{second:>18.3f}", flush=True)
            results.append({"op": op, "cols": cols, "first": first, "kernels": kernels, "second": second})
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
