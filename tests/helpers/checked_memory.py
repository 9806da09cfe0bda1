"""A check of the memory that interpreted kernels read and write. An address beyond a tensor would go unnoticed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch


@contextmanager
def checked_memory() -> Iterator[None]:
    """Within this context, interpreted kernels access elements of the tensors of their launch only."""
    from triton.runtime import interpreter

    builder, executor = type(interpreter.interpreter_builder), interpreter.GridExecutor
    read, write, prepare = builder.create_masked_load, builder.create_masked_store, executor._init_args_hst
    tensors: list[tuple[int, int, int]] = []

    def check(pointers: Any, mask: Any) -> None:
        given = pointers.data[mask.data]
        known = np.zeros(given.shape, bool)
        for start, end, size in tensors:
            known |= (given >= start) & (given < end) & ((given - start) % size == 0)
        assert known.all(), f"a kernel accesses {given[~known][:4]}, and its tensors are at {tensors}"

    def prepare_checked(self: Any, arguments: Any, keywords: Any) -> Any:
        found = prepare(self, arguments, keywords)
        given = [value for value in (*found[0], *found[1].values()) if isinstance(value, torch.Tensor)]
        tensors[:] = [(t.data_ptr(), t.data_ptr() + extent(t) * t.itemsize, t.itemsize) for t in given]
        return found

    def read_checked(self: Any, pointers: Any, mask: Any, *arguments: Any) -> Any:
        check(pointers, mask)
        return read(self, pointers, mask, *arguments)

    def write_checked(self: Any, pointers: Any, value: Any, mask: Any, *arguments: Any) -> Any:
        check(pointers, mask)
        return write(self, pointers, value, mask, *arguments)

    with (
        mock.patch.object(executor, "_init_args_hst", prepare_checked),
        mock.patch.object(builder, "create_masked_load", read_checked),
        mock.patch.object(builder, "create_masked_store", write_checked),
    ):
        yield


def extent(tensor: torch.Tensor) -> int:
    """Returns the number of elements from the first one of a tensor to the end of its last one."""
    spans = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return 1 + sum(spans) if tensor.numel() else 0
