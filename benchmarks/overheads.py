"""Measures tridal's costs outside its kernels: import time, host time of a call, and memory allocated by a call.

    python benchmarks/overheads.py

Prints a table. Import times are medians over processes; all other times are minima over rounds.
"""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch

import tridal
from tridal.pytorch import loss_kernels
from tridal.runtime import launch
from tridal.testing.cases import TUTORIAL_SHAPE

SHAPE = (8, 128)


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


def served_call_microseconds(function: Callable[[torch.Tensor], Any], grad: bool) -> float:
    """Returns the host time of a call that a backend serves, on a CPU tensor and with the kernel launch removed.

    With `grad`, it includes the backward.
    """
    prepare, check, x = launch.prepare, loss_kernels.check_range, torch.randn(SHAPE, requires_grad=grad)
    launch.prepare = lambda *args: prepare(*args)._replace(launch=lambda *_: None)
    loss_kernels.check_range = lambda *_: None  # only the interpreter checks targets
    try:
        with tridal.use(device="interpreter"):
            return call_microseconds(with_backward(function) if grad else function, x)
    finally:
        launch.prepare, loss_kernels.check_range = prepare, check


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


def main() -> None:
    """Measures everything and prints a table."""
    torch.set_num_threads(1)
    rows = [("`import tridal` after `import torch`", f"{import_milliseconds():.1f} ms")]
    devices = [torch.device("cpu")]
    if torch.accelerator.is_available():
        devices.append(torch.device(torch.accelerator.current_accelerator() or "cpu"))
    for device in devices:
        for grad in (False, True):
            x = torch.randn(SHAPE, device=device, requires_grad=grad)
            ours, theirs = call_microseconds(tridal.softmax, x), call_microseconds(lambda x: torch.softmax(x, -1), x)
            what = f"a call on {device.type}, {'with' if grad else 'without'} a gradient"
            rows.append((what, f"{ours:.2f} us, torch.softmax {theirs:.2f} us"))
    for (name, function), grad in product(functions_of(tridal, SHAPE, devices[0]).items(), (False, True)):
        what = f"{name} without its launch, forward{' and backward' * grad}"
        rows.append((what, f"{served_call_microseconds(function, grad):.2f} us"))
    for device, grad in product(devices[1:], (False, True)):
        x = torch.randn(8, 4096, device=device, requires_grad=grad)
        theirs = functions_of(torch.nn.functional, x.shape, device)
        for name, function in functions_of(tridal, x.shape, device).items():
            times = (call_microseconds(with_backward(f) if grad else f, x) for f in (function, theirs[name]))
            what = f"{name} of 8x4096 on {device.type}, forward{' and backward' * grad}"
            rows.append((what, "{:.2f} us, torch {:.2f} us".format(*times)))
    for device in devices[1:]:
        for shape in ((4096, 4096), (512, 262_144), (64, 4096, 256)):
            what, ratio = f"peak allocation for {'x'.join(map(str, shape))}", peak_allocation(device, shape)
            rows.append((what, f"{ratio:.3f} of the output"))
    rows.append((f"{'x'.join(map(str, TUTORIAL_SHAPE))} in the interpreter", f"{interpreted_seconds():.2f} s"))
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, {devices[-1].type}")
    for what, value in rows:
        print(f"{what:50} {value}")


if __name__ == "__main__":
    main()
