"""Compiles several hundred cases and writes their normalised PTX to a file: `dump_ptx.py FILE`. Needs no GPU.

The cases cover all ops, dtypes and layouts, all schedules, all flags of a plan, and three architectures. To compare two
commits, run this script in both checkouts, then `compare_ptx.py` with the two files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"

from tridal.devices import registry
from tridal.ops import table
from tridal.runtime import compiler, launch
from tridal.runtime.row_layout import row_layout
from tridal.runtime.scale_mask import ScaleMask, locate_mask
from tridal.runtime.specialization import KernelCall

KERNELS = table.kernels()
OPS = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")
DTYPES = ("float32", "float16", "bfloat16", "float64")
ARCHS = ("sm_80", "sm_90", "sm_100")


def cases() -> Iterator[dict[str, Any]]:
    """Yields the cases: op, dtypes, shape, dim, strides, offset, scale and mask, and architecture."""
    rows = [(4096, 64), (4096, 781), (4096, 1024), (4096, 5000), (4096, 12_672), (2048, 65_536), (8, 50_257)]
    wide = [(64, 128_256), (4096, 16_384), (4096, 50_257), (1, 131_072), (4096, 4096), (16384, 4096), (512, 300_000)]
    for op in OPS:
        for dtype in DTYPES:
            for shape in rows + wide:
                yield {"op": op, "dtype": dtype, "shape": shape, "dim": 1, "arch": "sm_90"}
            for shape in [(4096, 781), (4096, 8192), (512, 300_000)]:
                yield from (
                    {"op": op, "dtype": dtype, "shape": shape, "dim": 1, "arch": a} for a in ("sm_80", "sm_100")
                )
            for shape in [(64, 512, 256), (50_257, 512), (32, 1000, 1001), (1, 50_257, 1024), (16, 16, 40_000)]:
                yield {"op": op, "dtype": dtype, "shape": shape, "dim": len(shape) - 2, "arch": "sm_90"}
            yield {"op": op, "dtype": dtype, "shape": (781, 64), "dim": 0, "arch": "sm_80"}
            for shape in [(4096, 1000), (64, 20_000)]:
                strides = (2 * shape[1], 2)
                yield {"op": op, "dtype": dtype, "shape": shape, "dim": 1, "strides": strides, "arch": "sm_90"}
            sliced = {"shape": (4096, 1024), "dim": 1, "strides": (1028, 1), "offset": 1}
            yield {"op": op, "dtype": dtype, **sliced, "arch": "sm_90"}
        yield {"op": op, "dtype": "bfloat16", "out": "float32", "shape": (4096, 2048), "dim": 1, "arch": "sm_90"}
        yield {"op": op, "dtype": "float32", "out": "bfloat16", "shape": (4096, 2048), "dim": 1, "arch": "sm_90"}
        yield {"op": op, "dtype": "float16", "shape": (2, 1 << 30), "dim": 0, "arch": "sm_90"}
    for dtype in DTYPES:
        for shape in [(2, 4, 256, 1024), (2, 4, 256, 781), (1, 1, 4, 50_000), (2, 4, 64, 20_000), (1, 1, 64, 300_000)]:
            for mask in ("uint8", "float32", None):
                for causal in (False, True):
                    yield {
                        "op": "softmax", "dtype": dtype, "shape": shape, "dim": 3, "arch": "sm_90", "mask": mask,
                        "causal": causal, "scale": 0.125, "zero": causal,
                    }  # fmt: skip
        for op in ("softmax_backward",):
            for shape in [(4096, 1024), (4096, 781), (64, 128_256)]:
                yield {"op": op, "dtype": dtype, "shape": shape, "dim": 1, "arch": "sm_90", "scale": 0.125}


def name(case: dict[str, Any]) -> str:
    """Returns a unique name for a case."""
    return " ".join(f"{key}={value}" for key, value in case.items())


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def compile_case(case: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Returns the compiled kernel, and its plan as a list that does not depend on the names of fields."""
    shape, dim, op = case["shape"], case["dim"], case["op"]
    strides = case.get("strides") or contiguous(shape)
    masked = case.get("mask") is not None or case.get("causal", False)
    layout = row_layout(shape, strides, dim, 0 if masked else 8)
    assert layout is not None
    out, backward = case.get("out", case["dtype"]), op.endswith("_backward")
    dtypes = (out, case["dtype"], out) if backward else (out, case["dtype"])
    itemsize = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[case["dtype"]]
    addresses = (0, case.get("offset", 0) * itemsize, *([0] if backward else []))
    if backward:
        call = KernelCall(KERNELS[op], layout, dtypes, addresses, (case.get("scale"),))
    else:
        modification = ScaleMask(
            case.get("scale"), case.get("causal", False), case.get("zero", False), case.get("mask")
        )
        if masked:
            mask_strides = (0,) * len(shape) if case["mask"] is None else contiguous(shape)
            located = locate_mask(modification, shape, strides, mask_strides, dim)
            assert located is not None
            modification = located
        call = KernelCall(KERNELS[op], layout, dtypes, addresses, (), modification)
    backend = registry.get("cuda")
    device = backend.architectures()[case["arch"]]
    plan = launch.plan(call, backend, device, {})
    assert device.target is not None
    compiled = compiler.compile_kernel(call.specialize(plan.config), device.target)
    c = plan.config
    numbers = [c.rows, c.cols, c.num_warps, c.num_stages, c.programs_per_row, c.max_registers, c.peel, c.exp2_bias]
    return compiled, [*numbers, c.persistent, c.reload, plan.programs, plan.occupancy]


def normalised(ptx: str) -> str:
    """Returns PTX in which labels, registers, functions and parameters are numbered in the order of their first use."""
    ptx = re.sub(r"(?ms)^\s*\.section\s.*?^\s*\}", "", re.sub(r"//.*", "", ptx))
    ptx = re.sub(r"(?m)^\s*\.(loc|file|reg|version)\b.*$", "", ptx)
    functions = re.findall(r"(?m)\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)", ptx)
    jumps = set(re.findall(r"\bbra(?:\.uni)?\s+([$\w]+)", ptx))
    lines = [" ".join(line.split()) for line in ptx.split("\n")]
    lines = [line for line in lines if line and not line.startswith((".param", ".visible .entry"))]
    lines = [line for line in lines if not (line.endswith(":") and line[:-1] not in jumps)]
    body = "\n".join(lines)
    for function in sorted(set(functions), key=len, reverse=True):
        body = re.sub(rf"\b{re.escape(function)}_param_(\d+)", r"PARAM_\1", body)
        body = re.sub(rf"(?<![\w$]){re.escape(function)}(?![\w$])", "FUNCTION", body)
    for number, pattern in enumerate((r"\$\w+", r"%[a-z]+\d+\b", r"\bPARAM_\d+\b")):
        seen: dict[str, str] = {}
        body = re.sub(pattern, lambda m, s=seen, n=number: s.setdefault(m[0], f"v{n}_{len(s)}"), body)  # type: ignore[misc]
    return body


def normalised_sass(cubin: bytes) -> str:
    """Returns SASS in which the offsets of parameters are numbered in the order of their first use."""
    import triton

    tool = Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, check=True).stdout
    lines = [match[1] for match in re.finditer(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", text)]
    seen: dict[str, str] = {}
    number = lambda m: seen.setdefault(m[0], f"param_{len(seen)}")  # noqa: E731
    return "\n".join(re.sub(r"c\[0x0\]\[0x[0-9a-f]+\]", number, line) for line in lines)


def dump(case: dict[str, Any]) -> dict[str, Any]:
    """Returns the entry of a case in the output file."""
    try:
        compiled, plan = compile_case(case)
        sass = hashlib.sha256(normalised_sass(compiled.asm["cubin"]).encode()).hexdigest()
    except Exception as error:
        return {"case": name(case), "error": f"{type(error).__name__}: {error}"[:300]}
    return {"case": name(case), "plan": plan, "ptx": normalised(compiled.asm["ptx"]), "sass": sass}


def main() -> None:
    """Writes one JSON object per line for each case. Further arguments select the cases whose names contain them."""
    wanted = list(cases())
    if len(sys.argv) > 2:
        wanted = [case for case in wanted if all(word in name(case) for word in sys.argv[2:])]
    with ProcessPoolExecutor() as pool, Path(sys.argv[1]).open("w") as file:
        for done, line in enumerate(pool.map(dump, wanted, chunksize=4), 1):
            file.write(json.dumps(line) + "\n")
            if done % 20 == 0 or done == len(wanted):
                print(f"{done} of {len(wanted)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
