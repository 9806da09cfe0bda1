"""Times a softmax over a sharded dimension: tridal exchanges (max, sum) between ranks, torch gathers the rows.

    torchrun --nproc-per-node 2 benchmarks/sharded.py

Every rank holds a shard of the columns. Times are medians on rank 0, for forward and for forward plus backward.
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
CALLS, WARM_UP_CALLS = 20, 3


def median_milliseconds(step: Callable[[], object], device: torch.device) -> float:
    """Returns the median time of a step in milliseconds. A barrier precedes each step."""
    times = []
    for _ in range(WARM_UP_CALLS + CALLS):
        dist.barrier()
        synchronize(device)
        start = time.perf_counter()
        step()
        synchronize(device)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[WARM_UP_CALLS:])


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def measure(shape: tuple[int, int], mesh: DeviceMesh, device: torch.device) -> None:
    """Times tridal and torch on a tensor of this shape, and compares their gradients. Rank 0 prints the results."""
    torch.manual_seed(0)
    x = distribute_tensor(torch.randn(shape, device=device), mesh, [Shard(-1)]).requires_grad_()
    g = distribute_tensor(torch.randn(shape, device=device), mesh, [Shard(-1)])

    def step(function: Callable[..., DTensor]) -> torch.Tensor:
        y = function(x, -1)
        return torch.autograd.grad(y, x, g.redistribute(mesh, y.placements))[0]

    functions: dict[str, Callable[..., DTensor]] = {"tridal": tridal.softmax, "torch": torch.softmax}
    results = {name: step(function).full_tensor() for name, function in functions.items()}
    forward = {name: median_milliseconds(partial(function, x, -1), device) for name, function in functions.items()}
    both = {name: median_milliseconds(partial(step, function), device) for name, function in functions.items()}
    difference = (results["tridal"] - results["torch"]).abs().max().item()
    if dist.get_rank() == 0:
        for what, times in (("forward", forward), ("forward and backward", both)):
            ours, theirs = times["tridal"], times["torch"]
            speed_up = f"speed-up {theirs / ours:5.2f}"
            print(f"{shape!s:16} {what:21} tridal {ours:8.3f} ms  torch {theirs:8.3f} ms  {speed_up}")
        print(f"{'':16} largest difference of gradients {difference:.1e}")


def main() -> None:
    """Measures on this rank's accelerator, or on the CPU if there is none."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device_type, rank = (accelerator.type if accelerator else "cpu"), int(os.environ["LOCAL_RANK"])
    if accelerator:
        torch.accelerator.set_device_index(rank)
    mesh = init_device_mesh(device_type, (int(os.environ["WORLD_SIZE"]),))
    device = torch.device(device_type, rank) if accelerator else torch.device("cpu")
    if rank == 0:
        print(f"{mesh.size()} ranks of {device_type}, torch {torch.__version__}, {dist.get_backend()}")
    for shape in SHAPES if accelerator else SHAPES[:2]:
        measure(shape, mesh, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
