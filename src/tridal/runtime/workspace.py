"""The words that programs of one launch exchange through: zero between launches, and never shared by two at once.

Launches on one stream follow each other, so a tensor for each stream will do. What a graph captures gets its own, from
the graph's memory, because a graph may be replayed on any stream.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_by_stream: dict[tuple[torch.device, int], torch.Tensor] = {}


def with_words(launch: Callable[..., None], length: int, device: torch.device) -> Callable[..., None]:
    """launch(stream, *tensors), which then gets `length` zeroed int64 words on `device` as its last tensor."""
    module = torch.get_device_module(device.type)
    capturing = getattr(module, "is_current_stream_capturing", bool)

    def supplied(stream: int, *tensors: torch.Tensor) -> None:
        if capturing():
            words = torch.zeros(length, dtype=torch.int64, device=device)
        else:
            words = _by_stream.get((device, stream))  # type: ignore[assignment]
            if words is None or len(words) < length:
                words = _by_stream[device, stream] = torch.zeros(2 * length, dtype=torch.int64, device=device)
        launch(stream, *tensors, words)

    return supplied
