"""The workspace through which the programs of a launch exchange statistics. It is zero between launches.

Two launches that run at the same time must not share a workspace. Launches on one stream run one after another, so
there is one workspace per stream. A launch that a graph captures gets its own, from the graph's memory, because the
graph may be replayed on any stream.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from tridal.devices.lock import LOCK

_by_stream: dict[tuple[torch.device, int], torch.Tensor] = {}
_replaced: list[torch.Tensor] = []
"""Workspaces that were too short. Launches of other threads may still use them."""


def with_workspace(
    launch: Callable[..., None], slots: Callable[[int], int], device: torch.device
) -> Callable[..., None]:
    """Wraps launch(stream, rows, *tensors, workspace) in launch(stream, rows, *tensors), which provides the workspace.

    The workspace is an int64 tensor of zeros on `device`, with at least `slots(rows)` elements.
    """
    module = torch.get_device_module(device.type)
    capturing = getattr(module, "is_current_stream_capturing", bool)

    def launch_with_workspace(stream: int, rows: int, *tensors: torch.Tensor) -> None:
        length = slots(rows)
        if capturing():
            workspace = torch.zeros(length, dtype=torch.int64, device=device)
        else:
            found = _by_stream.get((device, stream))
            workspace = _allocated(stream, length, device) if found is None or len(found) < length else found
        launch(stream, rows, *tensors, workspace)

    return launch_with_workspace


def _allocated(stream: int, length: int, device: torch.device) -> torch.Tensor:
    """Allocates the workspace of a stream, unless another thread has done so."""
    with LOCK:
        found = _by_stream.get((device, stream))
        if found is not None:
            if len(found) >= length:
                return found
            _replaced.append(found)
        found = _by_stream[device, stream] = _lasting_zeros(2 * length, device)
        return found


def _lasting_zeros(length: int, device: torch.device) -> torch.Tensor:
    """Zeros for all further launches on a stream.

    A thread of its own allocates them. When torch.compile warms up a CUDA graph, allocations of the calling thread and
    stream go to the memory pool of the graph, and no tensor of that pool may outlive the call.
    """

    def allocate() -> torch.Tensor:
        zeros = torch.zeros(length, dtype=torch.int64, device=device)
        torch.get_device_module(device.type).synchronize(device)  # also for launches that still use a shorter one
        return zeros

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(allocate).result()
