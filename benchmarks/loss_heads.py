"""Time and memory of heads that return log-probabilities of tokens to a trainer: torch, TRL, Liger-Kernel and tridal.

    python benchmarks/loss_heads.py [--rows 8192] [--classes 128256] [--hidden 4096] [--kept 1.0] [--ids 16]

A step is the forward and the backward of a linear layer and its log-probabilities, from hidden states, in bfloat16 on
an accelerator, and in float32 on a CPU, where small sizes only show that the script runs. "Matmuls" are the three
products of a step without a repeated one: the logits and both gradients. Memory is the peak of what a step allocates,
with the gradients. Errors are those of the gradient of some rows of the weight, relative to the largest element of the
exact one. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import tridal

Head = Callable[[], Any]
"""A forward, which returns a number to differentiate."""
RUNS, WARM_UP = 10, 3


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


def naive(x: Tensor, weight: Tensor, target: Tensor, mask: Tensor, metrics: bool) -> Tensor:
    """Computes all logits, as trainers without a fused head do."""
    logits = (x @ weight.t()).float()
    logs = logits.log_softmax(-1)
    found = torch.where(mask, logs.gather(-1, target.unsqueeze(-1)).squeeze(-1), 0.0)
    if metrics:
        with torch.no_grad():
            entropy, correct = -(logs.exp() * logs).sum(-1), logits.argmax(-1) == target
        return found.sum() + 0.0 * (entropy.sum() + correct.sum())
    return found.sum()


def of_tridal(x: Tensor, weight: Tensor, target: Tensor, metrics: bool, **options: Any) -> Any:
    """Computes the sum of the log-probabilities by tridal."""
    found = tridal.token_log_probs(x, weight, target, return_entropy=metrics, return_correct=metrics, **options)
    return found[0].sum() if metrics else found.sum()


def divergence(x: Tensor, weight: Tensor, target: Tensor, **options: Any) -> Tensor:
    """Computes the divergence to the most probable classes of a teacher by tridal."""
    return tridal.token_log_probs(x, weight, target, **options)[-1].sum()


def naive_divergence(x: Tensor, weight: Tensor, ids: Tensor, teacher_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Computes the same from all logits."""
    found = (x @ weight.t()).float().log_softmax(-1).gather(-1, ids)
    return (teacher_log_probs.exp() * (teacher_log_probs - found)).sum(-1)[mask].sum()


def of_trl(x: Tensor, weight: Tensor, target: Tensor, mask: Tensor, outputs: tuple[str, ...]) -> Tensor:
    """Computes the log-probabilities of the rows that are kept by TRL's head."""
    from trl.kernels import ChunkedLogProbFunction

    found = ChunkedLogProbFunction.apply(x[mask], weight, None, target[mask], 1.0, 32768, None, 1.0, outputs)
    log_probs: Tensor = found[0]
    return log_probs.sum()


def heads(x: Tensor, weight: Tensor, target: Tensor, mask: Tensor, ids: int) -> Iterator[tuple[str, Head]]:
    """Yields the heads with their names."""
    compiled: Any = torch.compile(naive)
    masked: dict[str, Any] = {} if bool(mask.all()) else {"mask": mask}
    with_metrics = ", entropy, accuracy"
    for metrics, suffix in ((False, ""), (True, with_metrics)):
        yield f"torch{suffix}", partial(naive, x, weight, target, mask, metrics)
        yield f"torch.compile{suffix}", partial(compiled, x, weight, target, mask, metrics)
        yield f"tridal{suffix}", partial(of_tridal, x, weight, target, metrics, **masked)
        yield (
            f"tridal, `save_logits=True`{suffix}",
            partial(of_tridal, x, weight, target, metrics, save_logits=True, **masked),
        )
    columns = torch.randint(weight.shape[0], (x.shape[0], ids), device=x.device)
    teacher = torch.randn(columns.shape, device=x.device).log_softmax(-1)
    given: dict[str, Any] = {"ids": columns, "teacher_log_probs": teacher}
    yield f"torch, divergence of {ids} ids", partial(naive_divergence, x, weight, mask=mask, **given)
    yield f"tridal, divergence of {ids} ids", partial(divergence, x, weight, target, **given, **masked)
    try:
        import trl.kernels  # noqa: F401

        yield "TRL", partial(of_trl, x, weight, target, mask, ())
        yield f"TRL{with_metrics}", partial(of_trl, x, weight, target, mask, ("entropy", "is_top1"))
    except ImportError:
        pass
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss(reduction="sum", accum_dtype=torch.float32)
        labels = target.masked_fill(~mask, -100)
        yield "Liger-Kernel, only the sum of the losses", partial(liger, weight, x, labels)
    except ImportError:
        pass


def exact_gradient(weight: Tensor, x: Tensor, target: Tensor, mask: Tensor, few: slice) -> Tensor:
    """Returns the gradient of some rows of the weight for the sum of the log-probabilities, in float64."""
    exact = torch.zeros(weight[few].shape, dtype=torch.float64, device=weight.device)
    for rows in torch.arange(len(x), device=x.device).split(256):
        kept, labels = x.detach()[rows][mask[rows]].double(), target[rows][mask[rows]]
        p = functional.linear(kept, weight.detach().double()).softmax(-1)[:, few]
        exact += (functional.one_hot(labels, weight.shape[0])[:, few] - p).t() @ kept
    return exact


def table(rows: int, classes: int, hidden: int, kept: float, ids: int) -> None:
    """Prints the table."""
    device = tridal.device()
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    x = torch.randn(rows, hidden, device=device, dtype=dtype, requires_grad=True)
    weight = (torch.randn(classes, hidden, device=device, dtype=dtype) * hidden**-0.5).requires_grad_()
    target, mask = torch.randint(classes, (rows,), device=device), torch.rand(rows, device=device) < kept

    def matmuls() -> None:
        logits = x.detach() @ weight.detach().t()
        _ = logits @ weight.detach(), logits.t() @ x.detach()

    print(f"{rows} x {hidden} x {classes}, {dtype}, {device}; {float(mask.float().mean()):.0%} of the rows are kept\n")
    print("| head | ms | over matmuls | GiB | error |\n|---|---|---|---|---|")
    few, alone = slice(0, 64), milliseconds(matmuls, device)
    exact = exact_gradient(weight, x, target, mask, few)
    print(f"| matmuls alone, of all rows | {alone:.2f} | 1.00 | | |", flush=True)
    for name, head in heads(x, weight, target, mask, ids):

        def step(head: Head = head) -> None:
            x.grad = weight.grad = None
            head().backward()

        try:
            step()
        except torch.OutOfMemoryError:
            print(f"| {name} | out of memory | | | |", flush=True)
            continue
        error = ""
        if "divergence" not in name:  # Liger-Kernel has the gradient of losses
            found = weight.grad[few].double() * (-1 if "Liger" in name else 1)
            error = f"{float((found - exact).abs().max() / exact.abs().max()):.0e}"
        taken = milliseconds(step, device)
        x.grad = weight.grad = None
        memory = gibibytes(step, device)
        used = "-" if memory is None else f"{memory:.2f}"
        print(f"| {name} | {taken:.2f} | {taken / alone:.2f} | {used} | {error} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("rows", 8192), ("classes", 128256), ("hidden", 4096), ("ids", 16)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--kept", type=float, default=1.0, help="the share of the rows that are not masked")
    given = parser.parse_args()
    table(given.rows, given.classes, given.hidden, given.kept, given.ids)
