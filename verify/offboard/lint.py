"""Finds operations in linalg IR that an NPU does not support, or executes one element at a time."""

from __future__ import annotations

import re
from collections import Counter

_OPERATION = re.compile(r'^\s*(?:%[\w:#, ]+ = )?"?([a-z_]+\.[a-z_.]+)"?', re.MULTILINE)
_VIEW = re.compile(r"memref\.reinterpret_cast .*strides: \[([^\]]*)\]")
_DIALECTS = {"arith", "bufferization", "func", "linalg", "math", "memref", "scf", "tensor"}
_SCALAR_AS_TENSOR = re.compile(r"^.*\btensor\.(?:insert|extract) .*: tensor<(?:1x)+[a-z]+\d+>$\n?", re.MULTILINE)
"""Matches accesses to tensors of one element, which triton-ascend uses for scalars. They need no loop."""
_ARANGE = re.compile(
    r"^.*= linalg\.generic .*\n *\^bb0\(.*\n.*linalg\.index 0 : index\n.*arith\.index_cast .*\n *linalg\.yield .*\n",
    re.MULTILINE,
)
"""Matches `tl.arange`, for which the next compiler has an operation (hfusion.arange)."""
_GATHER = {"tensor.extract", "tensor.insert", "memref.load"}
_ONE_AT_A_TIME = {"memref.load", "memref.store", "tensor.extract", "tensor.insert", "tensor.generate", "linalg.generic"}


def operations(linalg: str) -> Counter[str]:
    """Returns the number of occurrences of each operation, by its full name, for example "arith.addf"."""
    return Counter(_OPERATION.findall(linalg))


def problems(linalg: str, *, contiguous: bool, gathers: bool = False) -> list[str]:
    """Returns a description of each problem in a kernel's linalg IR.

    `contiguous` says whether the last axis of a tile is contiguous in memory. `gathers` says whether the kernel reads
    an element per row at an index, which takes a loop over the rows. It may then compare the indices.
    """
    found = []
    for operation in operations(_ARANGE.sub("", _SCALAR_AS_TENSOR.sub("", linalg))):
        if gathers and operation in _GATHER:
            continue
        dialect = operation.split(".")[0]
        if dialect == "tt":
            found.append(f"{operation} was not lowered")
        elif operation == "llvm.inline_asm":
            found.append("the kernel has inline assembly")
        elif dialect not in _DIALECTS:
            found.append(f"{operation} is of a dialect that the next compiler does not read")
        elif operation in _ONE_AT_A_TIME:
            found.append(f"{operation} handles one element at a time")
    if re.search(r"(?<![a-wyz\d_])f64\b", linalg):
        found.append("the kernel uses float64, which the vector cores do not support")
    compared = r"tensor<\d+x\d.*xi64>" if gathers else r"tensor<(?!(?:1x)+i64).*xi64>"  # one element needs no loop
    if re.search(rf"arith\.cmpi .*: {compared}", linalg):
        found.append("a tile of int64 is compared, which becomes a loop over its elements")
    strides = _VIEW.findall(linalg)
    if not strides:
        found.append("the kernel reads and writes no tile of memory as a whole")
    if contiguous and any(view.split(",")[-1].strip() != "1" for view in strides):
        found.append("the last axis of a tile is contiguous, but is read or written with a stride")
    return found
