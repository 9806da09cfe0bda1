"""The workspace through which the programs of a launch exchange statistics. It is zero between launches.

Two launches that run at the same time must not share a workspace. Launches on one stream run one after another, so
there is one workspace per stream. A launch that a graph captures gets its own, from the graph's memory, because the
graph may be replayed on any stream.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

_by_stream: dict[tuple[torch.device, int], torch.Tensor] = {}


def with_workspace(launch: Callable[..., None], length: int, device: torch.device) -> Callable[..., None]:
    """Wraps launch(stream, *tensors, workspace) in a function launch(stream, *tensors) that provides the workspace.

    The workspace is an int64 tensor of zeros on `device`, with at least `length` elements.
    """
    module = torch.get_device_module(device.type)
    capturing = getattr(module, "is_current_stream_capturing", bool)

    def launch_with_workspace(stream: int, *tensors: torch.Tensor) -> None:
        if capturing():
            workspace = torch.zeros(length, dtype=torch.int64, device=device)
        else:
            workspace = _by_stream.get((device, stream))  # type: ignore[assignment]
            if workspace is None or len(workspace) < length:
                workspace = _by_stream[device, stream] = _lasting_zeros(2 * length, device)
        launch(stream, *tensors, workspace)

    return launch_with_workspace


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
