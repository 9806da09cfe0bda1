"""A softmax whose rows are spread over ranks: tridal's exchange of (max, sum) against torch's, which gathers the rows.

    torchrun --nproc-per-node 2 benchmarks/sharded.py

Every rank holds its share of the columns; times are medians of rank 0, of a forward with and without its backward.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import tridal

SHAPES = ((64, 1024), (33, 100_001), (512, 131_072), (8192, 128_256))
CALLS = 20


def milliseconds(step: Callable[[], object], device: torch.device) -> float:
    """Median time of a step, between barriers."""
    times = []
    for _ in range(CALLS + 3):
        dist.barrier()
        synchronize(device)
        start = time.perf_counter()
        step()
        synchronize(device)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[3:])


def synchronize(device: torch.device) -> None:
    """Waits for the device."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def measure(shape: tuple[int, int], mesh: DeviceMesh, device: torch.device) -> None:
    """Times both on a tensor of this shape, and compares their gradients."""
    torch.manual_seed(0)
    x = distribute_tensor(torch.randn(shape, device=device), mesh, [Shard(-1)]).requires_grad_()
    g = distribute_tensor(torch.randn(shape, device=device), mesh, [Shard(-1)])

    def step(function: Callable[..., DTensor]) -> torch.Tensor:
        y = function(x, -1)
        return torch.autograd.grad(y, x, g.redistribute(mesh, y.placements))[0]

    functions: dict[str, Callable[..., DTensor]] = {"tridal": tridal.softmax, "torch": torch.softmax}
    results = {name: step(function).full_tensor() for name, function in functions.items()}
    forward = {name: milliseconds(partial(function, x, -1), device) for name, function in functions.items()}
    both = {name: milliseconds(partial(step, function), device) for name, function in functions.items()}
    apart = (results["tridal"] - results["torch"]).abs().max().item()
    if dist.get_rank() == 0:
        for what, times in (("forward", forward), ("forward and backward", both)):
            ours, theirs = times["tridal"], times["torch"]
            ratio = theirs / ours
            print(f"{shape!s:16} {what:21} tridal {ours:8.3f} ms  torch {theirs:8.3f} ms  {ratio:5.2f} times")
        print(f"{'':16} gradients are at most {apart:.1e} apart")


def main() -> None:
    """Measures on this rank's accelerator, or on the CPU where there is none."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind, rank = (found.type if found else "cpu"), int(os.environ["LOCAL_RANK"])
    if found:
        torch.accelerator.set_device_index(rank)
    mesh = init_device_mesh(kind, (dist.get_world_size() if dist.is_initialized() else int(os.environ["WORLD_SIZE"]),))
    device = torch.device(kind, rank) if found else torch.device("cpu")
    if rank == 0:
        print(f"{mesh.size()} ranks of {kind}, torch {torch.__version__}, {dist.get_backend()}")
    for shape in SHAPES if found else SHAPES[:2]:
        measure(shape, mesh, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
