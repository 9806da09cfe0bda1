"""Reads linalg IR for what an NPU can't do, or does an element at a time."""

from __future__ import annotations

import re
from collections import Counter

_OPERATION = re.compile(r'^\s*(?:%[\w:#, ]+ = )?"?([a-z_]+\.[a-z_.]+)"?', re.MULTILINE)
_VIEW = re.compile(r"memref\.reinterpret_cast .*strides: \[([^\]]*)\]")
_DIALECTS = {"arith", "bufferization", "func", "linalg", "math", "memref", "scf", "tensor"}
_ONE_AT_A_TIME = {"memref.load", "memref.store", "tensor.extract", "tensor.insert", "tensor.generate", "linalg.generic"}


def operations(linalg: str) -> Counter[str]:
    """How often each operation occurs, by its full name ("arith.addf")."""
    return Counter(_OPERATION.findall(linalg))


def problems(linalg: str, *, contiguous: bool) -> list[str]:
    """What is wrong with a kernel, in words; `contiguous` says that a tile's last axis is so in memory."""
    found = []
    for operation in operations(linalg):
        dialect = operation.split(".")[0]
        if dialect == "tt":
            found.append(f"{operation} was not lowered")
        elif operation == "llvm.inline_asm":
            found.append("there is inline assembly")
        elif dialect not in _DIALECTS:
            found.append(f"{operation} is of a dialect that the next compiler doesn't read")
        elif operation in _ONE_AT_A_TIME:
            found.append(f"{operation} handles one element at a time")
    if re.search(r"(?<![a-wyz\d_])f64\b", linalg):
        found.append("there is float64, which the vector cores lack")
    if re.search(r"arith\.cmpi .*: tensor<.*xi64>", linalg):
        found.append("a tile of int64 is compared, which becomes a loop over its elements")
    strides = _VIEW.findall(linalg)
    if not strides:
        found.append("no tile of memory is read or written as such")
    if contiguous and any(each.split(",")[-1].strip() != "1" for each in strides):
        found.append("a tile's last axis is contiguous, but is read or written at a stride")
    return found
