"""Times and peak memory of cross-entropy, its linear form and log-probabilities, beside torch and Liger-Kernel.

    python benchmarks/cross_entropy.py [--rows 8192] [--classes 128256] [--hidden 4096]

It needs an accelerator. "share" is the share of the rate of a copy of the logits, counting useful bytes: one pass for
the forward, two for the backward. Errors are relative to float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import tridal


def milliseconds(run: Callable[[], Any]) -> float:
    """Returns the median time of ten runs after three."""
    times = []
    for index in range(13):
        start, end = (torch.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.accelerator.synchronize()
        if index >= 3:
            times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def peak(run: Callable[[], Any], device: torch.device) -> float:
    """Returns the memory in MiB that a run allocates beyond what exists before it."""
    module = torch.get_device_module(device)
    torch.accelerator.synchronize()
    module.reset_peak_memory_stats()
    before = module.memory_allocated()
    run()
    torch.accelerator.synchronize()
    return float(module.max_memory_allocated() - before) / 2**20


def logits_table(device: torch.device) -> None:
    """Prints shares of the copy rate, forward and backward."""
    print("| rows x classes | dtype | forward: share, torch | backward: share, torch | error |\n|---|---|---|---|---|")
    for rows, classes in ((32768, 1024), (4096, 32000), (4096, 50257), (8192, 128256), (2048, 262144)):
        for dtype in (torch.bfloat16, torch.float32):
            x = torch.randn(rows, classes, device=device, dtype=dtype, requires_grad=True)
            target = torch.randint(classes, (rows,), device=device)
            target[::7] = -100
            out = torch.empty_like(x)
            with torch.no_grad():
                copy = milliseconds(lambda out=out, x=x: out.copy_(x))
            del out
            shares = []
            for loss in (tridal.cross_entropy, functional.cross_entropy):
                with torch.no_grad():
                    forward = milliseconds(lambda loss=loss, x=x, target=target: loss(x, target))
                value: Any = loss(x, target)
                backward = milliseconds(
                    lambda value=value, x=x: torch.autograd.grad(value, x, retain_graph=True)  # type: ignore[misc]
                )
                shares.append((copy / 2 / forward, copy / backward))
            few = slice(0, 64)
            wide = x.detach()[few].double().requires_grad_()
            kept = (target != -100).sum()
            exact = functional.cross_entropy(wide, target[few], reduction="sum") / kept
            (wanted,) = torch.autograd.grad(exact, wide)
            ours: Any = tridal.cross_entropy(x, target)
            (found,) = torch.autograd.grad(ours, x)
            error = float((found[few].double() - wanted).abs().max() / wanted.abs().max())
            (f, b), (tf, tb) = shares
            print(f"| {rows} x {classes} | {dtype} | {f:.2f}, {tf:.2f} | {b:.2f}, {tb:.2f} | {error:.0e} |", flush=True)


def step_table(device: torch.device, rows: int, classes: int, hidden: int) -> None:
    """Prints time and peak memory of a step, forward and backward, in bfloat16."""
    x = torch.randn(rows, hidden, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(classes, hidden, device=device, dtype=torch.bfloat16) * 0.02).requires_grad_()
    target = torch.randint(classes, (rows,), device=device)

    def matmuls() -> None:
        for _ in range(3):
            x.detach() @ weight.detach().t()

    steps: dict[str, Callable[[], Any]] = {
        "tridal.linear_cross_entropy": lambda: tridal.linear_cross_entropy(x, weight, target),
        "the same, summed in bfloat16": lambda: tridal.linear_cross_entropy(
            x, weight, target, accum_dtype=torch.bfloat16
        ),
        "the same, summed in bfloat16, chunks of 4096": lambda: tridal.linear_cross_entropy(
            x, weight, target, accum_dtype=torch.bfloat16, chunk_size=4096
        ),
        "tridal.cross_entropy": lambda: tridal.cross_entropy(x @ weight.t(), target),
        "torch": lambda: functional.cross_entropy(x @ weight.t(), target),
    }
    steps["tridal.linear_cross_entropy, a loss per row"] = lambda: tridal.linear_cross_entropy(
        x, weight, target, reduction="none"
    ).sum()
    steps["tridal.token_log_probs"] = lambda: tridal.token_log_probs(x, weight, target).sum()  # type: ignore[union-attr]
    steps["tridal.token_log_probs, save_logits=True"] = lambda: tridal.token_log_probs(
        x, weight, target, save_logits=True
    ).sum()  # type: ignore[union-attr]
    steps["tridal.token_log_probs, with entropies"] = lambda: sum(
        result.sum() for result in tridal.token_log_probs(x, weight, target, return_entropy=True)
    )
    for size in (1024, 2048, 4096):
        steps[f"tridal.linear_cross_entropy, chunks of {size}"] = lambda size=size: tridal.linear_cross_entropy(
            x, weight, target, chunk_size=size
        )
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        for accum in (torch.float32, None):
            liger = LigerFusedLinearCrossEntropyLoss(accum_dtype=accum)
            steps[f"Liger, accum_dtype={accum}"] = lambda liger=liger: liger(weight, x, target)
    except ImportError:
        pass
    print("\n| step | ms | over its matmuls | peak MiB |\n|---|---|---|---|")
    bound = milliseconds(matmuls)
    for name, loss in steps.items():

        def step(loss: Callable[[], Any] = loss) -> None:
            x.grad = weight.grad = None
            loss().backward()

        step()
        time = milliseconds(step)
        x.grad = weight.grad = None
        print(f"| {name} | {time:.1f} | {time / bound:.2f} | {peak(step, device):.0f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option, default in (("rows", 8192), ("classes", 128256), ("hidden", 4096)):
        parser.add_argument(f"--{option}", type=int, default=default)
    given = parser.parse_args()
    here = tridal.device()
    logits_table(here)
    step_table(here, given.rows, given.classes, given.hidden)
