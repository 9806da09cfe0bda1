"""A mode that counts the bytes which a rank exchanges with others."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class ExchangedBytes(TorchDispatchMode):
    """Counts the bytes that a rank passes to collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if any(collective in str(func) for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")):
            self.bytes += args[0].numel() * args[0].element_size()
        return func(*args, **(kwargs or {}))
