"""Time and memory of heads that return log-probabilities of tokens to a trainer: torch, TRL, Liger-Kernel and tridal.

    python benchmarks/loss_heads.py [--only KIND...] [--rows 8192] [--classes 128256] [--hidden 4096] [--kept 1.0]

A step is the forward and the backward of a linear layer and its log-probabilities, from hidden states, in bfloat16 on
an accelerator, and in float32 on a CPU, where small sizes only show that the script runs. The kinds of steps are: the
sum of the log-probabilities; the same with entropies and token accuracies; the losses of DPO and GRPO, without a
reference model; and the divergence to some classes of a teacher. "Matmuls" are the three products of a step without a
repeated one: the logits and both gradients. Memory is the peak of what a step allocates, with the gradients. Errors are
those of the gradient of some rows of the weight, relative to the largest element of the exact one. Peers that are not
installed are left out, and those that fail are listed with the reason.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from loss_head_rows import KINDS, LOSSES, Head, Inputs, rows
from torch import Tensor
from torch.nn import functional

import tridal

RUNS, WARM_UP, SEQUENCES = 10, 3, 8


def synchronize(device: torch.device) -> None:
    """Waits for an accelerator."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def milliseconds(run: Callable[[], Any], device: torch.device) -> float:
    """Returns the median time of a run."""
    times = []
    for index in range(WARM_UP + RUNS):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        if index >= WARM_UP:
            times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)[len(times) // 2]


def gibibytes(run: Callable[[], Any], device: torch.device) -> float | None:
    """Returns the memory that a run allocates beyond what exists before it, or None on a CPU."""
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    synchronize(device)
    module.reset_peak_memory_stats()
    before = module.memory_allocated()
    run()
    synchronize(device)
    return float(module.max_memory_allocated() - before) / 2**30


def exact_gradient(inputs: Inputs, kind: str, few: slice) -> Tensor:
    """Returns the gradient of some rows of the weight for a loss of log-probabilities, in float64."""
    weight, chunks = inputs.weight.detach().double(), torch.arange(len(inputs.x), device=inputs.x.device).split(256)

    def log_probs_of(chunk: Tensor) -> Tensor:
        return functional.linear(inputs.x.detach()[chunk].double(), weight).log_softmax(-1)

    found = [log_probs_of(chunk).gather(1, inputs.target[chunk, None]).squeeze(1) for chunk in chunks]
    log_probs = (torch.cat(found) * inputs.mask).requires_grad_()
    (per_row,) = torch.autograd.grad(LOSSES[kind](inputs, log_probs), log_probs)
    exact = torch.zeros_like(weight[few])
    for chunk in chunks:
        chosen = functional.one_hot(inputs.target[chunk], len(weight))[:, few] - log_probs_of(chunk)[:, few].exp()
        exact += (chosen * (per_row * inputs.mask)[chunk, None]).t() @ inputs.x.detach()[chunk].double()
    return exact


def make_inputs(count: int, classes: int, hidden: int, kept: float, ids: int) -> Inputs:
    """Returns random tensors on tridal's device."""
    device = tridal.device()
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    x = torch.randn(count, hidden, device=device, dtype=dtype, requires_grad=True)
    weight = (torch.randn(classes, hidden, device=device, dtype=dtype) * hidden**-0.5).requires_grad_()
    target, mask = torch.randint(classes, (count,), device=device), torch.rand(count, device=device) < kept
    columns = torch.randint(classes, (count, ids), device=device)
    teacher = torch.randn(columns.shape, device=device).log_softmax(-1)
    return Inputs(x, weight, target, mask, torch.randn(SEQUENCES, device=device), columns, teacher)


def table(inputs: Inputs, kinds: list[str]) -> None:
    """Prints the table."""
    x, weight, device = inputs.x, inputs.weight, inputs.x.device
    few = slice(0, 64)

    def matmuls() -> None:
        logits = x.detach() @ weight.detach().t()
        _ = logits @ weight.detach(), logits.t() @ x.detach()

    shape = f"{len(x)} x {x.shape[1]} x {len(weight)}, {x.dtype}, {device}"
    print(f"{shape}; {float(inputs.mask.float().mean()):.0%} of the rows are kept\n")
    print("| step | head | ms | over matmuls | GiB | error |\n|---|---|---|---|---|---|")
    alone = milliseconds(matmuls, device)
    print(f"| | matmuls alone, of all rows | {alone:.2f} | 1.00 | | |", flush=True)
    for kind in kinds:
        exact = None if kind == "divergence" else exact_gradient(inputs, kind, few)
        for name, head in rows(inputs, kind):

            def step(head: Head = head) -> None:
                x.grad = weight.grad = None
                head().backward()  # type: ignore[no-untyped-call]

            try:
                step()
            except Exception as problem:
                reason = f"{type(problem).__name__}: {problem}".split("\n")[0][:120]
                print(f"| {kind} | {name} | {reason} | | | |", flush=True)
                continue
            error = ""
            if exact is not None and weight.grad is not None:
                error = f"{float((weight.grad[few].double() - exact).abs().max() / exact.abs().max()):.0e}"
            taken = milliseconds(step, device)
            x.grad = weight.grad = None
            memory = gibibytes(step, device)
            used = "-" if memory is None else f"{memory:.2f}"
            print(f"| {kind} | {name} | {taken:.2f} | {taken / alone:.2f} | {used} | {error} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("rows", 8192), ("classes", 128256), ("hidden", 4096), ("ids", 16)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--kept", type=float, default=1.0, help="the share of the rows that are not masked")
    parser.add_argument(
        "--only", nargs="+", choices=KINDS, default=list(KINDS), help="the kinds of steps (default: all)"
    )
    given = parser.parse_args()
    if given.rows % SEQUENCES:
        parser.error(f"--rows must be a multiple of {SEQUENCES}, the number of sequences")
    table(make_inputs(given.rows, given.classes, given.hidden, given.kept, given.ids), given.only)
