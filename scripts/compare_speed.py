"""Compares the speed of two checkouts of tridal on one GPU.

    python scripts/compare_speed.py BEFORE AFTER [--ops rms_norm layer_norm] [--workloads FILE] [--json FILE]

BEFORE and AFTER are folders with an unpacked wheel (`python -m zipfile -e FILE.whl BEFORE`), or checkouts if tridal is
installed: backends are found by the entry points of an installation. Each has its own process. The two are measured
alternately. Prints the two times of each workload, in microseconds, and their ratio. By default, most workloads of the
softmax ops are rows that several programs compute together, and those of the norms have a residual in every second
line. `tridal bench --host` measures host times.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS, COMPILERS = 3, 7
SOFTMAXES, NORMS, LOSSES = ("softmax", "log_softmax"), ("rms_norm", "layer_norm"), ("cross_entropy", "log_probs")
GLU, ROTARY = ("swiglu", "geglu"), "rotary_embedding"
SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((2048, 65_536), 1), ((8, 50_257), 1), ((64, 128_256), 1), ((4096, 16_384), 1), ((4096, 50_257), 1),
    ((1, 131_072), 1), ((512, 300_000), 1), ((128, 128_256), 1), ((50_257, 512), 0), ((32, 1000, 1001), 1),
    ((1, 50_257, 1024), 1), ((16, 4097, 512), 1), ((4096, 12_672), 1), ((4096, 1024), 1),
]  # fmt: skip
NORM_SHAPES = ((1_048_576, 128), (131_072, 1024), (131_072, 4096), (65_536, 781), (4096, 16_384), (2048, 65_536))
GLU_SHAPES = ((8192, 14_336), (4096, 4096), (4096, 8191), (64, 4096))
ROTARY_SHAPES = ((4, 32, 2048, 64), (2, 32, 4096, 128), (1, 8, 128, 128))
LOSS_SHAPES = ((32_768, 1024), (8192, 32_000), (4096, 50_257), (4096, 128_256))


def workloads(ops: list[str]) -> list[dict[str, Any]]:
    """Returns the calls to measure."""
    found: list[dict[str, Any]] = []
    both = ("forward", "backward")
    for shape, dim in SHAPES:
        for dtype in ("float32", "bfloat16"):
            for op in SOFTMAXES:
                for direction in both:
                    if op == "softmax" or dtype == "bfloat16":
                        found.append({"op": op, "direction": direction, "dtype": dtype, "shape": shape, "dim": dim})
    masked = {"scale": 0.125, "causal": True, "masked_rows": "zero"}
    wide = {"op": "softmax", "direction": "forward", "dtype": "float64", "dim": 3, "keywords": masked}
    found += [{**wide, "shape": (2, 4, 256, 20_000)}, {**wide, "shape": (1, 1, 64, 300_000)}]
    for op, shapes in [*((op, NORM_SHAPES) for op in NORMS), *((op, LOSS_SHAPES) for op in LOSSES)]:
        for shape in shapes:
            for direction in both:
                for residual in (False, True) if op in NORMS else (False,):
                    one = {"op": op, "direction": direction, "dtype": "bfloat16", "shape": shape, "dim": -1}
                    found.append({**one, "residual": residual})
    for op, shapes in [*((op, GLU_SHAPES) for op in GLU), (ROTARY, ROTARY_SHAPES)]:
        for shape in shapes:
            for direction in both:
                found.append({"op": op, "direction": direction, "dtype": "bfloat16", "shape": shape, "dim": -1})
    return [workload for workload in found if workload["op"] in ops]


def make_call(workload: dict[str, Any]) -> Callable[[], Any]:
    """Returns the function that a workload measures, with its tensors."""
    import torch

    import tridal

    function, dim = getattr(tridal, workload["op"]), workload["dim"]
    x = torch.randn(workload["shape"], device="cuda", dtype=getattr(torch, workload["dtype"]))
    inputs, keywords = [x], dict(workload.get("keywords", {}))
    arguments: tuple[Any, ...] = (dim,)
    if workload["op"] in LOSSES:
        arguments = (torch.randint(x.shape[dim], (x.shape[0],), device=x.device),)
    if workload["op"] in NORMS:
        inputs += [torch.rand_like(x[0]) + 0.5 for _ in range(1 + (workload["op"] == "layer_norm"))]
        arguments = (x.shape[-1:], *inputs[1:])
    if workload["op"] in GLU:
        inputs.append(torch.randn_like(x))
        arguments = (inputs[1],)
    if workload["op"] == ROTARY:  # four query heads share a key head
        inputs.append(torch.randn_like(x[:, ::4]))
        cos_and_sin = (torch.rand((1, *x.shape[2:]), device=x.device, dtype=x.dtype) for _ in range(2))
        arguments = (inputs[1], *cos_and_sin)
    if workload.get("residual"):
        keywords["residual"] = torch.randn_like(x)
        inputs.append(keywords["residual"])
    for tensor in inputs:
        tensor.requires_grad_(workload["direction"] == "backward")
    if workload["direction"] == "forward":
        return lambda: function(x, *arguments, **keywords)
    results = function(x, *arguments, **keywords)
    results = results if isinstance(results, tuple) else (results,)
    grads = [torch.randn_like(result) for result in results]
    return lambda: torch.autograd.grad(results, inputs, grads, retain_graph=True)


def run_worker() -> None:
    """Runs a worker: reads one workload per line from stdin, as JSON, and prints its time in microseconds."""
    import torch

    import tridal
    from tridal.benchmarks.measuring import timer

    torch.autograd.set_multithreading_enabled(False)
    known: dict[str, Any] = {}
    for line in sys.stdin:
        workload = json.loads(line)
        if known.get("line") != line:
            with tridal.record_calls() as calls:
                known = {"line": line, "call": make_call(workload)}
                known["call"]()
            if by_torch := [call for call in calls if call.reason is not None]:
                raise SystemExit(f"torch computes a workload, so there is nothing to compare: {by_torch[0]}")
        if workload.get("compile"):
            print(0.0, flush=True)
        else:
            print(timer(torch.device("cuda", 0))(known["call"]).median * 1e3, flush=True)


class Worker:
    """A process that runs the workloads of one checkout."""

    def __init__(self, checkout: str) -> None:
        folders = f"{checkout}/src", f"{checkout}/backends", checkout, os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(folders)
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
        """Waits for the next result, and returns its time in microseconds. Ends if the process has ended."""
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise SystemExit(1)  # the process has said why
        return float(line)


def parse() -> argparse.Namespace:
    """Returns the arguments of the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", help="a folder with tridal")
    parser.add_argument("after", help="a folder with another version")
    parser.add_argument("--ops", nargs="+", choices=(*SOFTMAXES, *NORMS, *LOSSES, *GLU, ROTARY), help="default: all")
    parser.add_argument(
        "--workloads", type=Path,
        help="a JSON list of the calls to measure, with the keys op, direction, dtype, shape, dim and, for norms, "
        "residual",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="the file for all results")
    arguments = parser.parse_args()
    arguments.ops = arguments.ops or [*SOFTMAXES, *NORMS, *LOSSES, *GLU, ROTARY]
    return arguments


def measure(workers: list[Worker], workload: dict[str, Any]) -> list[list[float]]:
    """Returns the times of a workload in microseconds, for each worker. The workers take turns."""
    times: list[list[float]] = [[] for _ in workers]
    for turn in range(ROUNDS):
        for index in (0, 1) if turn % 2 else (1, 0):
            workers[index].ask(workload)
            times[index].append(workers[index].answer())
    return times


def main() -> None:
    """Compiles the kernels of all workloads in parallel, then measures them."""
    given = parse()
    checkouts = given.before, given.after
    all_workloads = json.loads(given.workloads.read_text()) if given.workloads else workloads(given.ops)
    compilers = [Worker(checkout) for checkout in checkouts for _ in range(COMPILERS)]
    for number, workload in enumerate(all_workloads):
        for offset in (0, COMPILERS):
            compilers[offset + number % COMPILERS].ask({**workload, "compile": True})
    for worker in compilers:
        assert worker.process.stdin is not None
        worker.process.stdin.close()
    for worker in compilers:
        worker.process.wait()
    workers = [Worker(checkout) for checkout in checkouts]
    results = []
    for workload in all_workloads:
        old, new = (statistics.median(found) for found in measure(workers, workload))
        results.append({**workload, "before_us": old, "after_us": new, "ratio": new / old})
        op, direction, dtype, shape, dim = (workload[key] for key in ("op", "direction", "dtype", "shape", "dim"))
        name = f"{op}{' residual' * workload.get('residual', False)} {direction} {dtype} {'x'.join(map(str, shape))}"
        print(f"{name:58s} dim {dim:2d} {old:9.1f} {new:9.1f} {new / old:6.3f}", flush=True)
    ratios = [result["ratio"] for result in results]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"{len(ratios)} workloads: geometric mean {mean:.3f}, least {min(ratios):.3f}, most {max(ratios):.3f}")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    run_worker() if sys.argv[1:] == ["--work"] else main()
