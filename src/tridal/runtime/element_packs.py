"""The packs of a schedule for tensors with a number per element: variables, pointers and strides."""

from __future__ import annotations

from tridal.runtime.row_kernel import RowKernel
from tridal.runtime.row_layout import GROUPS

STRIDES = tuple(f"{group}_{axis}" for group in GROUPS for axis in ("outer", "inner", "col"))
"""The arguments of a schedule for the groups of strides of a `RowLayout`."""
JUMPS = tuple(f"{group}_jump" for group in GROUPS)
"""Those for its jumps, one for each group."""


def element_packs(kernel: RowKernel) -> dict[str, list[str]]:
    """Returns the items of these packs for a kernel, without "each_" in their names.

    Pointers are those from which the strides of a block count. If blocks have two strides, a jump is added to them.
    """
    reads, results = [f"{name}_ptr" for name in kernel.reads], [f"{name}_result" for name in kernel.writes]
    written = len(results)
    addends = [*(f"{name}_ptr" for name in (kernel.added,) if name), *[None] * written][:written]
    group_of = {reads[0]: "in", **dict(kernel.stride_groups)}

    def strides(pointer: str | None) -> str:
        group = group_of.get(str(pointer), "out")
        return f"{group}_outer, {group}_inner, {group}_col"

    def of_block(pointer: str | None) -> str:
        if pointer is None or not kernel.split:
            return str(pointer)
        return f"{pointer} + block // minor_blocks * {group_of.get(pointer, 'out')}_jump"

    return {
        "element": [f"{name}_tile" for name in kernel.reads],
        "edge": [f"edge_of_{name}" for name in kernel.reads],
        "loaded": [f"{name}_loaded" for name in kernel.reads],
        "at": [f"{name}_at" for name in kernel.reads],
        "edge_at": [f"edge_{name}_at" for name in kernel.reads],
        "result_at": [f"{name}_result_at" for name in kernel.writes],
        "edge_result_at": [f"edge_{name}_result_at" for name in kernel.writes],
        "aligned": ["PEEL", *["SAME_MISALIGNMENT"] * len(reads)][: len(reads)],
        "streamed": ["RELOAD", *["False"] * written][:written],
        "element_ptr": [*map(of_block, reads)],
        "strides": [*map(strides, reads)],
        "result": [*map(of_block, results)],
        "result_strides": [*map(strides, results)],
        "addend": [*map(of_block, addends)],
        "addend_strides": [*map(strides, addends)],
        "group_stride": [*STRIDES, *(("minor_blocks", *JUMPS) if kernel.split else ())],
    }
