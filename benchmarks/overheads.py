"""Measures tridal's costs outside its kernels: import time, host time of a call, and memory allocated by a call.

    python benchmarks/overheads.py [--json FILE] [--against FILE]

Prints a table. `--json` also writes it to a file. To compare two commits, measure both on the same machine, one after
the other, with PYTHONPATH=src:backends in each checkout, and give the file of the first one to `--against`. Times of
imports are medians over processes, times of calls with new numbers of rows are medians over calls, and all other times
are minima over rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "scripts"))

import torch

import record_kernels
import tridal
from tridal.library.losses import cross_entropy as loss_kernels
from tridal.runtime import launch
from tridal.testing.cases import TUTORIAL_SHAPE

SHAPE = (8, 128)
PLANS = ("interpreter", "sm_90")
"""The plans of calls whose launches are removed: those of the interpreter, and those of an architecture."""


def import_milliseconds() -> float:
    """Returns the time of `import tridal` after `import torch`, as the median over new processes."""
    code = "import time, torch; start = time.perf_counter(); import tridal; print(time.perf_counter() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(9)]
    return statistics.median(float(run.stdout) for run in runs) * 1e3


def call_microseconds(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> float:
    """Returns the host time of a call."""
    best = float("inf")
    for _ in range(300):
        start = time.perf_counter()
        for _ in range(100):
            function(x)
        best = min(best, (time.perf_counter() - start) / 100)
        if x.device.type != "cpu":
            torch.accelerator.synchronize()
    return best * 1e6


def functions_of(module: Any, shape: Sequence[int], device: torch.device) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Returns the functions that tridal and torch.nn.functional have, with their other tensors."""
    learned = [torch.randn(shape[1:], device=device, requires_grad=True) for _ in range(2)]
    frozen, target = [parameter.detach() for parameter in learned], torch.arange(shape[0], device=device)

    def parameters(x: torch.Tensor) -> list[torch.Tensor]:
        return learned if x.requires_grad else frozen

    return {
        "softmax": lambda x: module.softmax(x, -1),
        "rms_norm": lambda x: module.rms_norm(x, shape[1:], parameters(x)[0], 1e-5),
        "layer_norm": lambda x: module.layer_norm(x, shape[1:], *parameters(x)),
        "cross_entropy": lambda x: module.cross_entropy(x, target),
    }


def with_backward(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    """Returns a function that also computes all gradients."""

    def call(x: torch.Tensor) -> None:
        function(x).sum().backward()

    return call


def of_recorded_loss(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    """Returns a function that computes the gradients of a loss. Its first call records the loss."""
    losses: list[torch.Tensor] = []

    def call(x: torch.Tensor) -> None:
        if not losses:
            losses.append(function(x).sum())
        losses[0].backward(retain_graph=True)

    return call


MODES: dict[str, Callable[[Callable[[torch.Tensor], Any]], Callable[[torch.Tensor], Any]]] = {
    "forward": lambda function: function,
    "forward and backward": with_backward,
    "backward of a loss recorded once": of_recorded_loss,
}


@contextmanager
def without_launches(plans: str) -> Iterator[None]:
    """Computes CPU tensors with the given plans, but without the launches of kernels. Nothing is prepared yet."""
    if plans != "interpreter":
        with record_kernels.recording(plans) as recorder, tridal.use(device=recorder.name):
            yield
        return
    prepare, check = launch.prepare, loss_kernels.check_range
    launch.prepare = lambda *args: prepare(*args)._replace(launch=lambda *_: None)
    loss_kernels.check_range = lambda *_: None  # only the interpreter checks targets
    tridal.registry.clear()
    try:
        with tridal.use(device="interpreter"):
            yield
    finally:
        launch.prepare, loss_kernels.check_range = prepare, check
        tridal.registry.clear()


def served_call_microseconds(name: str, mode: str, plans: str) -> float:
    """Returns the host time of a call that a backend serves, without its launches."""
    x = torch.randn(SHAPE, requires_grad=mode != "forward")
    with without_launches(plans):
        return call_microseconds(MODES[mode](functions_of(tridal, SHAPE, x.device)[name]), x)


def new_rows_microseconds(name: str, mode: str, plans: str) -> list[float]:
    """Returns the host time of a call with a number of rows that was never seen, of the second and of the third one.

    Each number of rows is used once, then each a second time, then a third time. The last result is the time of calls
    with one number of rows. The first third of the numbers is a warm-up, in which most kernels are compiled. The times
    are those of the processor, because other processes would interrupt many of the slow calls.
    """

    def microseconds(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> float:
        start = time.thread_time()
        call(x)
        return (time.thread_time() - start) * 1e6

    numbers = sorted(range(8, 308), key=lambda rows: rows % 3)
    inputs = [torch.randn(rows, SHAPE[1], requires_grad=mode != "forward") for rows in numbers]
    calls = [(MODES[mode](functions_of(tridal, tuple(x.shape), x.device)[name]), x) for x in inputs]
    with without_launches(plans):
        passes = [[microseconds(*call) for call in calls][len(calls) // 3 :] for _ in range(3)]
        passes.append([microseconds(*calls[-1]) for _ in range(1000)])
    clock = statistics.median(microseconds(lambda x: None, inputs[0]) for _ in range(1000))
    return [statistics.median(times) - clock for times in passes]


def interpreted_seconds() -> float:
    """Returns the time of a softmax in the interpreter, on the shape of Triton's softmax tutorial, after warm-up."""
    x = torch.randn(TUTORIAL_SHAPE)
    with tridal.use(device="interpreter"):
        tridal.softmax(x)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            tridal.softmax(x)
            times.append(time.perf_counter() - start)
    return min(times)


def peak_allocation(device: torch.device, shape: tuple[int, ...]) -> float:
    """Returns the peak bytes that a call without a gradient allocates, divided by the bytes of its output."""
    module = torch.get_device_module(device.type)
    x = torch.randn(shape, device=device)
    tridal.softmax(x)
    module.synchronize()
    module.reset_peak_memory_stats()
    before = module.memory_allocated()
    y = tridal.softmax(x)
    return float((module.max_memory_allocated() - before) / (y.numel() * y.element_size()))


Rows = dict[str, tuple[str, list[float]]]
"""The format and the numbers of each row of the table."""


def device_rows(device: torch.device) -> Rows:
    """Returns the rows for the calls on an accelerator."""
    rows: Rows = {}
    for mode in MODES:
        x = torch.randn(8, 4096, device=device, requires_grad=mode != "forward")
        theirs = functions_of(torch.nn.functional, x.shape, device)
        for name, function in functions_of(tridal, x.shape, device).items():
            times = [call_microseconds(MODES[mode](f), x) for f in (function, theirs[name])]
            rows[f"{name} of 8x4096 on {device.type}, {mode}"] = "{:.2f} us, torch {:.2f} us", times
    for shape in ((4096, 4096), (512, 262_144), (64, 4096, 256)):
        what, ratio = f"peak allocation for {'x'.join(map(str, shape))}", peak_allocation(device, shape)
        rows[what] = "{:.3f} of the output", [ratio]
    return rows


def measured() -> Rows:
    """Measures everything."""
    rows: Rows = {"`import tridal` after `import torch`": ("{:.1f} ms", [import_milliseconds()])}
    devices = [torch.device("cpu")]
    if torch.accelerator.is_available():
        devices.append(torch.device(torch.accelerator.current_accelerator() or "cpu"))
    for device in devices:
        for grad in (False, True):
            x = torch.randn(SHAPE, device=device, requires_grad=grad)
            times = [call_microseconds(f, x) for f in (tridal.softmax, lambda x: torch.softmax(x, -1))]
            what = f"a call on {device.type}, {'with' if grad else 'without'} a gradient"
            rows[what] = "{:.2f} us, torch.softmax {:.2f} us", times
    for name, plans, mode in product(functions_of(tridal, SHAPE, devices[0]), PLANS, MODES):
        what = f"{name} without launches, plans of {plans}, {mode}"
        rows[what] = "{:.2f} us", [served_call_microseconds(name, mode, plans)]
    for name, plans, mode in product(functions_of(tridal, SHAPE, devices[0]), PLANS, list(MODES)[:2]):
        what = f"{name} with new numbers of rows, plans of {plans}, {mode}"
        rows[what] = "{:.0f}, 2nd {:.0f}, 3rd {:.0f}, same {:.0f} us", new_rows_microseconds(name, mode, plans)
    for device in devices[1:]:
        rows |= device_rows(device)
    rows[f"{'x'.join(map(str, TUTORIAL_SHAPE))} in the interpreter"] = "{:.2f} s", [interpreted_seconds()]
    return rows


def main() -> None:
    """Measures everything and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to a file")
    parser.add_argument("--against", type=Path, metavar="FILE", help="also show the numbers of this file")
    options = parser.parse_args()
    others: Rows = json.loads(options.against.read_text())["rows"] if options.against else {}
    torch.set_num_threads(1)
    rows = measured()
    versions = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    print(versions)
    for what, (form, numbers) in rows.items():
        other = f"   before: {others[what][0].format(*others[what][1])}" if what in others else ""
        print(f"{what:75} {form.format(*numbers):40}{other}".rstrip())
    if options.json is not None:
        options.json.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
