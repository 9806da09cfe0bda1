"""Counts the instructions of kernels per element of a matrix, on an NVIDIA architecture. Needs no GPU.

    python scripts/count_instructions.py OP ROWSxCOLS ... [--dtype bfloat16] [--arch sm_90] [--without residual]

OP is the name of a kernel, as for `tridal plan --op`. `--without` removes one of its optional tensors. The kernel is
planned and compiled for a contiguous matrix. If it has a loop of more than 60 instructions, its instructions are those
of the longest loop. Prints the plan, the registers and the most frequent instructions as well.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tridal.devices.types import KernelConfig, LaunchPlan, Resources
from tridal.ops import planning, table
from tridal.runtime import compiler, launch
from tridal.runtime.specialization import KernelCall

MIN_LOOP = 60
"""Number of instructions of a loop that computes elements. Shorter loops wait or follow the end of the program."""


def kernel_call(op: str, absent: str | None, rows: int, cols: int, dtype: str) -> KernelCall:
    """Returns the call of a kernel, without one of its optional tensors, for a contiguous matrix."""
    call = planning.matrix_call(rows, cols, dtype, op)
    if absent is None:
        return call
    kernel = call.kernel
    optional = [*kernel.reads[1:], *kernel.column_reads, *([] if kernel.added is None else [kernel.added])]
    if absent not in optional:
        raise SystemExit(f"--without {absent}: the optional tensors of {op} are {', '.join(optional) or 'none'}")
    kernel = planning.without(kernel, absent)
    return KernelCall(kernel, call.layout, planning.tensor_dtypes(kernel, dtype), (), call.parameters)


def instructions(cubin: bytes) -> list[str]:
    """Returns the instructions of the longest loop of a compiled kernel, or all instructions if there is no loop."""
    import triton

    disassembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run([disassembler, "-c", file.name], capture_output=True, text=True, check=True).stdout
    found: list[str] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(found)
        elif instruction := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            found.append(instruction[1])
    loops = []
    for end, instruction_text in enumerate(found):
        target = re.search(r"BRA.*?`\((\.L_x_\d+)\)", instruction_text)
        if target and labels.get(target[1], end + 1) <= end:
            loops.append(found[labels[target[1]] : end + 1])
    longest = max(loops, key=len, default=[])
    return longest if len(longest) > MIN_LOOP else found


def measure(call: KernelCall, arch: str) -> tuple[LaunchPlan, Resources, list[str]]:
    """Returns the plan of a call, the resources of its kernel, and its instructions."""
    backend, device = planning.architectures()[arch]
    if device.target is None or device.target[0] != "cuda":
        raise SystemExit(f"--arch {arch}: its kernels have no NVIDIA instructions")
    plan = launch.plan(call, backend, device, {})
    compiled: Any = compiler.compile_kernel(call.specialize(plan.config), device.target)
    return plan, backend.resources(compiled.asm, compiled.metadata.shared), instructions(compiled.asm["cubin"])


def per_thread(call: KernelCall, config: KernelConfig) -> float:
    """Returns the number of elements of a tile for each thread, without elements beyond the end of a row."""
    vector = call.problem.vector if config.peel else 1
    cols = call.problem.cols // vector * vector
    return config.rows * cols / math.ceil(cols / config.cols) / (config.num_warps * 32)


def matrix(text: str) -> tuple[int, int]:
    """Returns the sizes of a shape such as "4096x781". Raises ArgumentTypeError for other text."""
    if not (sizes := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)):
        raise argparse.ArgumentTypeError(f"expected ROWSxCOLS, for example 4096x781, got {text!r}")
    return int(sizes[1]), int(sizes[2])


def main() -> None:
    """Prints the counts of each shape."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("op", choices=list(table.kernels()), metavar="OP", help="the name of a kernel")
    parser.add_argument("shapes", nargs="+", type=matrix, metavar="ROWSxCOLS")
    parser.add_argument("--dtype", default="bfloat16", choices=("float16", "bfloat16", "float32", "float64"))
    parser.add_argument("--arch", default="sm_90", choices=list(planning.architectures()), metavar="ARCH")
    parser.add_argument("--without", metavar="NAME", help="an optional tensor that is absent, for example residual")
    given = parser.parse_args()
    for rows, cols in given.shapes:
        call = kernel_call(given.op, given.without, rows, cols, given.dtype)
        plan, resources, found = measure(call, given.arch)
        names = Counter(re.sub(r"^@!?U?P\w+\s+", "", text).split()[0].split(".")[0] for text in found)
        per_element = len(found) / per_thread(call, plan.config)
        used = f"{resources.registers} registers, {resources.spills} spills, occupancy {plan.occupancy}"
        print(f"{given.op} {given.dtype} {rows}x{cols}: {per_element:.1f} instructions per element")
        print(f"  {used}, {plan.config}")
        print("  " + ", ".join(f"{name} {count}" for name, count in names.most_common(12)))


if __name__ == "__main__":
    main()
