"""The workspace through which the programs of a launch exchange statistics. It is zero between launches.

Two launches that run at the same time must not share a workspace. Launches on one stream run one after another, so
there is one workspace per stream. A launch that a graph captures gets its own, from the graph's memory, because the
graph may be replayed on any stream.
"""

from __future__ import annotations

from collections.abc import Callable

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
                workspace = _by_stream[device, stream] = torch.zeros(2 * length, dtype=torch.int64, device=device)
        launch(stream, *tensors, workspace)

    return launch_with_workspace
