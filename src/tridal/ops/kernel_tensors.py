"""Matches the arguments and the results of a signature with the tensors of its kernel, by role and in order."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from tridal.kernels.row_kernel import RowKernel
from tridal.ops.signature import Signature


class KernelTensors(NamedTuple):
    """A kernel with all of its tensors, and what they are."""

    kernel: RowKernel
    inputs: list[tuple[int, str]]
    """(position of the argument, name in the kernel) of each input, in the order of the kernel."""
    outputs: list[tuple[int, str]]
    """(index of the result, name in the kernel) of each output."""


@functools.lru_cache(maxsize=1024)
def kernel_tensors(signature: Signature, blocks: tuple[str, ...] = ()) -> KernelTensors:
    """Returns the kernel of a signature. `blocks` are the arguments with a number per column and block of rows."""
    kernel = signature.kernel
    assert kernel is not None
    elements = signature.with_role("element")
    added = [position for position in elements if signature.names[position] == kernel.added]
    groups = (
        ([position for position in elements if position not in added], kernel.reads), (added, (kernel.added,)),
        (signature.with_role("row"), kernel.row_reads), (signature.with_role("index"), (kernel.row_index,)),
        (signature.with_role("top"), kernel.top_reads), (signature.with_role("top_index"), (kernel.top_index,)),
        (signature.with_role("column"), kernel.column_reads),
    )  # fmt: skip
    inputs = [(p, str(name)) for positions, names in groups for p, name in zip(positions, names, strict=False)]
    written = zip(("element", "row", "top", "column"), kernel.tensors, strict=False)
    roles = ["top" if result.role == "top_index" else result.role for result in signature.results]
    indices: dict[Any, list[int]] = {}
    for index, role in enumerate(roles):
        indices.setdefault(role, []).append(index)
    outputs = [pair for role, names in written for pair in zip(indices.get(role, []), names, strict=True)]
    # The kernel reads and writes numbers per block after those per column, see `RowKernel.with_blocks`.
    inputs.sort(key=lambda pair: signature.names[pair[0]] in blocks)
    outputs.sort(key=lambda pair: signature.results[pair[0]].per_block in blocks)
    of_blocks = [name for position, name in inputs if signature.names[position] in blocks]
    of_blocks += [name for index, name in outputs if signature.results[index].per_block in blocks]
    return KernelTensors(kernel.with_blocks(*of_blocks), inputs, outputs)
