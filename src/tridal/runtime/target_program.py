"""A program that compiles a small kernel for a target: python target_program.py BACKEND ARCHITECTURE WARP_SIZE.

`target_check` runs it in a new process. The arguments are Python literals.
"""

import sys
from ast import literal_eval

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def store_sum(x):  # type: ignore[no-untyped-def]
    """Stores the sum of 256 elements. Threads exchange values, which needs more of a target than a copy."""
    tl.store(x, tl.sum(tl.load(x + tl.arange(0, 256)), axis=0))


if __name__ == "__main__":
    triton.compile(ASTSource(store_sum, {"x": "*fp32"}, {}), target=GPUTarget(*map(literal_eval, sys.argv[1:])))
