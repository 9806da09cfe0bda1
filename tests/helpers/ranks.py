"""Runs a function on several ranks of a process group, on the CPU or with an accelerator for each rank."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import tridal
from tridal.devices import registry

Check = Callable[[DeviceMesh], None]


def backends() -> list[str]:
    """Returns the interpreter, and the backend of the accelerators if each of two ranks can have one.

    The server that forks the ranks imports this module, but must not initialize accelerators.
    """
    names = ["interpreter"]
    if torch.accelerator.is_available() and torch.accelerator.device_count() >= 2:
        kind = torch.accelerator.current_accelerator()
        found = None if kind is None else registry.serving(kind.type)
        names += [] if found is None else [found.name]
    return names


@contextmanager
def process_group(rank: int, ranks: int, file: str, device_type: str) -> Iterator[DeviceMesh]:
    """A process group and its mesh. New tensors are on the device of the rank."""
    torch.set_num_threads(1)
    device = None
    if device_type != "cpu":
        device = torch.device(device_type, rank)
        torch.accelerator.set_device_index(rank)
        torch.set_default_device(device)
    backend = dist.get_default_backend_for_device(device_type)
    dist.init_process_group(
        backend, init_method=f"file://{file}", rank=rank, world_size=ranks, timeout=timedelta(seconds=60),
        device_id=device,
    )  # fmt: skip
    yield init_device_mesh(device_type, (ranks,))
    dist.destroy_process_group()


def _main(
    rank: int, ranks: int, file: str, device_type: str, backend: str, checks: dict[str, Check], failures: Any
) -> None:
    with process_group(rank, ranks, file, device_type) as mesh, tridal.use(device=backend):
        for name, check in checks.items():
            torch.manual_seed(0)
            try:
                check(mesh)
            except BaseException:
                failures[name, rank] = traceback.format_exc()
                break  # the other ranks may wait for this one until the group's timeout


def failures_of(checks: dict[str, Check], ranks: int, backend: str) -> dict[tuple[str, int], str]:
    """Runs checks on each rank. Returns the traceback of each check and rank that failed.

    A `backend` for an accelerator gets one of them for each rank. Others, and "auto", compute on the CPU.
    """
    device_type = "cpu" if backend == "auto" else registry.available(backend).device_type
    modules = [__name__, "torch._dynamo", *{check.__module__ for check in checks.values()}]
    multiprocessing.set_forkserver_preload(modules)  # imports are slow; ranks inherit them
    with (
        tempfile.TemporaryDirectory() as folder,
        multiprocessing.get_context("forkserver").Manager() as manager,  # a fork of this process can lack memory
    ):
        failures = manager.dict()
        arguments = (ranks, f"{folder}/group", device_type, backend, checks, failures)
        multiprocessing.start_processes(_main, arguments, nprocs=ranks, start_method="forkserver")
        return dict(failures)
