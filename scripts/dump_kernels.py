"""Records the kernels of the cases in `kernel_cases.jsonl` and writes a hash of each. Needs no device.

To compare two commits, run the scripts and the cases of one checkout in both, with the same version of Triton:

    cd BEFORE && PYTHONPATH=src:backends python AFTER/scripts/dump_kernels.py before.jsonl
    cd AFTER && PYTHONPATH=src:backends python scripts/dump_kernels.py after.jsonl
    python scripts/compare_kernels.py before.jsonl after.jsonl

This compiles for NVIDIA and AMD. In the environment of `make test-npu`, the same command compiles the cases for Ascend,
and no others, to linalg IR. With `--resume`, it adds their kernels to the file:

    PYTHONPATH=src:backends:verify .venv-npu/bin/python scripts/dump_kernels.py after.jsonl --resume

A line of the output names the versions. Each other line is a kernel: its case, its number in the case, its plan, a hash
of its normalized code (PTX, amdgcn or linalg), a hash of its normalized SASS, and a hash of the number of instructions
of each kind.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

CASES = Path(__file__).with_name("kernel_cases.jsonl")


def renumbered(text: str, *patterns: str) -> str:
    """Returns a text in which the names that match each pattern are numbered in the order of their first use."""
    for number, pattern in enumerate(patterns):
        seen: dict[str, str] = {}
        text = re.sub(
            pattern, lambda m, s=seen, n=number: s.setdefault(m[0], f"v{n}_{len(s)}"), text, flags=re.MULTILINE
        )
    return text


def normalized_ptx(ptx: str) -> str:
    """Returns the instructions of PTX. Loads of parameters are moved to the end, because their order has no meaning."""
    ptx = re.sub(r"(?ms)^\s*\.section\s.*?^\s*\}", "", re.sub(r"//.*", "", ptx))
    ptx = re.sub(r"(?m)^\s*\.(loc|file|reg|version)\b.*$", "", ptx)
    functions = re.findall(r"(?m)\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)", ptx)
    jumps = set(re.findall(r"\bbra(?:\.uni)?\s+([$\w]+)", ptx))
    lines = [" ".join(line.split()) for line in ptx.split("\n")]
    lines = [line for line in lines if line and not line.startswith((".param", ".visible .entry"))]
    lines = [line for line in lines if not (line.endswith(":") and line[:-1] not in jumps)]
    loads = [line for line in lines if line.startswith("ld.param")]
    body = "\n".join([line for line in lines if not line.startswith("ld.param")] + ["PARAMETERS", *loads])
    for function in sorted(set(functions), key=len, reverse=True):
        body = re.sub(rf"\b{re.escape(function)}_param_(\d+)", r"PARAM_\1", body)
        body = re.sub(rf"(?<![\w$]){re.escape(function)}(?![\w$])", "FUNCTION", body)
    code, _, loads_text = renumbered(body, r"\$\w+", r"%[a-z]+\d+\b").partition("PARAMETERS")
    in_order = sorted(loads_text.split("\n"), key=lambda line: [int(n) for n in re.findall(r"v1_(\d+)", line)])
    return code + renumbered("\n".join(in_order), r"\bPARAM_\d+\b")


def normalized_amdgcn(assembly: str) -> str:
    """Returns the instructions of AMD's assembly. Offsets of parameters are numbered in the order of their loads."""
    lines = [" ".join(re.sub(r";.*", "", line).split()) for line in assembly.split("\n")]
    jumps = set(re.findall(r"\.LBB\w+\b(?!:)", "\n".join(lines)))
    code = "\n".join(line for line in lines if re.match(r"[a-z]\w+( |$)", line) or line[:-1] in jumps)
    return renumbered(code, r"\.LBB\w+", r"(?<=s\[0:1\], )0x[0-9a-f]+$")


def normalized_linalg(linalg: str) -> str:
    """Returns the operations of linalg IR. The types of parameters follow in the order of their first use."""
    match = re.search(r"func\.func @\w+\((.*?)\) attributes \{.*?\} (\{.*)", linalg, re.DOTALL)
    assert match is not None, linalg[:200]
    types = dict(re.findall(r"(%arg\d+): (.*?)(?=, %arg\d+:|$)", match[1]))
    body = re.sub(r" loc\(.*?\)$", "", match[2], flags=re.MULTILINE)
    used = [name for name in dict.fromkeys(re.findall(r"%arg\d+\b", body)) if name in types]
    return renumbered(body + "".join(f"\n{name}: {types[name]}" for name in used), r"%[A-Za-z]*[\w$.-]*")


def normalized_sass(cubin: bytes) -> str:
    """Returns SASS in which the offsets of parameters are numbered in the order of their first use."""
    import triton

    tool = Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, check=True).stdout
    lines = [match[1] for match in re.finditer(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", text)]
    return renumbered("\n".join(lines), r"c\[0x0\]\[0x[0-9a-f]+\]")


INSTRUCTION = r"(?m)^(?:@!?\w+ )?([\w.]+)"
OPERATION = r"\b[a-z]+\.[a-z_]+\b"


def described(asm: Mapping[str, Any], with_text: bool) -> dict[str, str]:
    """Returns the hashes of a compiled kernel, and its normalized code if it is asked for."""
    texts, kind = {}, INSTRUCTION
    if "ptx" in asm:
        texts = {"code": normalized_ptx(asm["ptx"]), "sass": normalized_sass(asm["cubin"])}
    elif "amdgcn" in asm:
        texts = {"code": normalized_amdgcn(asm["amdgcn"])}
    else:
        texts, kind = {"code": normalized_linalg(asm["ttadapter"])}, OPERATION
    counts = Counter(re.findall(kind, texts.get("sass", texts["code"])))
    texts["operations"] = str(sorted(counts.items()))
    hashes = {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}
    return hashes | ({"text": texts["code"]} if with_text else {})


def dump(line: str, with_text: bool) -> list[dict[str, Any]]:
    """Returns the entries of a case in the output file. An error is an entry, too."""
    try:
        from record_kernels import record

        return [
            {"case": line, "kernel": number, "plan": kernel.plan, **described(kernel.asm, with_text)}
            for number, kernel in enumerate(record(json.loads(line)))
        ] or [{"case": line, "kernel": 0, "error": "no kernel was launched"}]
    except Exception as error:
        return [{"case": line, "kernel": 0, "error": f"{type(error).__name__}: {error}"[:300]}]


def prepare(cache: str) -> bool:
    """Prepares a process. Returns whether Triton compiles for Ascend, and then makes it stop at linalg IR."""
    os.environ |= {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_CACHE_DIR": cache}
    import torch
    from triton.backends import backends

    torch.set_num_threads(1)
    if "ascend" in backends:
        from offboard.compiler import stop_at_linalg

        stop_at_linalg(Path(cache))
    return "ascend" in backends


def versions() -> dict[str, str]:
    """Returns the versions of which the kernels depend, and the commit of tridal."""
    import torch
    import triton

    import tridal

    folder = Path(tridal.__file__).parent
    git = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return {"tridal": str(folder), "commit": commit, "triton": triton.__version__, "torch": torch.__version__}


def recorded_cases(output: Path, made: Mapping[str, str]) -> set[str | None]:
    """Returns the cases in a file, and None if it names these versions. Exits if its kernels are of another commit."""
    entries = list(map(json.loads, output.read_text().splitlines())) if output.exists() else []
    known = [entry for entry in entries if "case" not in entry]
    if others := {versions["commit"] for versions in known} - {made["commit"]}:
        sys.exit(f"{output} has kernels of the commit {others.pop()}, not of {made['commit']}: use another file")
    return {entry["case"] for entry in entries if "case" in entry} | ({None} if made in known else set())


def main() -> None:
    """Writes one JSON object per line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="select the cases that contain all texts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes")
    parser.add_argument("--text", action="store_true", help="also write the normalized code")
    parser.add_argument("--resume", action="store_true", help="add the cases that are not in the output")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kernels-") as cache:  # an empty one has no kernels of other commits
        ascend, made = prepare(cache), versions()
        done = recorded_cases(options.output, made) if options.resume else set()
        lines = [line for line in CASES.read_text().splitlines() if all(text in line for text in options.only)]
        lines = [line for line in lines if json.loads(line)["arch"].startswith("ascend") is ascend and line not in done]
        with (
            ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), prepare, (cache,)) as pool,
            options.output.open("a" if options.resume else "w") as file,
        ):
            if None not in done:
                file.write(json.dumps(made) + "\n")
            for number, entries in enumerate(pool.map(dump, lines, [options.text] * len(lines)), 1):
                file.write("".join(json.dumps(entry) + "\n" for entry in entries))
                file.flush()
                if number % 20 == 0 or number == len(lines):
                    print(f"{number} of {len(lines)} cases", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
