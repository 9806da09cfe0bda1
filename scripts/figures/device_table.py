"""The blocks of docs/devices.md: which op was run on which device, and which backend plans for which device.

The ops are the registered ones, the backends those of the registry, the measurements those in docs/benchmarks. A new
op gets its row by itself. A new backend needs a line in `PROOFS`, without which the pages cannot be written.
"""

from __future__ import annotations

from figures.stored import Results
from tridal.devices import registry
from tridal.devices.entry_points import is_bundled
from tridal.library import OPS

COMPILED = "compiled"
PROOFS = {
    "cuda": ("NVIDIA", COMPILED, "benchmarks.md"),
    "rocm": ("AMD", COMPILED, "amd.md#tests-without-a-gpu"),
    "xpu": ("Intel", "executed on a CPU", "intel.md#tests-without-a-gpu"),
    "npu": ("Ascend", "executed on a CPU", "ascend.md#tests-without-an-npu"),
    "interpreter": ("CPU, by Triton's interpreter", "run", "getting-started.md#check-the-installation"),
}
"""For each backend: the device, what the tests do with each registered op, and the page about it.

The tests take the ops from the table of ops: test_backend_cuda_kernels.py and test_backend_rocm_kernels.py compile the
planned kernels, tests/xpu and tests/npu run the conformance suite off the device, and tests/testing in the interpreter.
"""
ON_PAGES = {
    ("linear_cross_entropy", "h100"): "models.md#speed",
    ("linear_cross_entropy", "h200"): "cross-entropy.md#memory-and-time",
    ("token_log_probs", "h200"): "log-probs.md#memory-or-time",
    ("gated_rms_norm", "h200"): "performance-notes.md#norms-and-losses",
    ("modulated_layer_norm", "h200"): "norms.md#modulated-norms",
    ("modulated_rms_norm", "h200"): "norms.md#modulated-norms",
    ("gated_modulated_layer_norm", "h200"): "norms.md#modulated-norms",
    ("gated_modulated_rms_norm", "h200"): "performance-notes.md#hidden-sizes",
    ("route_top_k", "h200"): "router.md#kernels",
    ("qk_norm_rotary", "h200"): "rotary.md#norm-of-query-and-key",
}
"""The sections with measurements of an op on a GPU that have no results.json."""


def measured(results: Results, op: str, gpu: str) -> str | None:
    """Returns the address of the measurements of an op on a GPU, or None if there are none."""
    return f"benchmarks/{gpu}/{op}/results.md" if op in results.gpus[gpu].ops else ON_PAGES.get((op, gpu))


def op_devices(results: Results) -> list[str]:
    """A line per registered op: what proves it on each device."""
    others = [name for name in PROOFS if name != "cuda"]
    headings = ["op", *(f"NVIDIA {gpu.upper()}" for gpu in results.gpus), *(PROOFS[name][0] for name in others)]
    lines = [headings, ["---"] * len(headings)]
    for op in OPS:
        pages = [measured(results, op.name, gpu) for gpu in results.gpus]
        gpus = [COMPILED if page is None else f"[**measured**]({page})" for page in pages]
        lines.append([f"`{op.name}`", *gpus, *(PROOFS[name][1] for name in others)])
    return [f"| {' | '.join(cells)} |" for cells in lines]


def backend_devices(results: Results) -> list[str]:
    """A line per backend: its architectures, its dtypes and the page about what proves it."""
    backends = {entry.name: entry.backend for entry in registry.registered() if is_bundled(entry.origin)}
    assert {*PROOFS} == {*backends}, f"PROOFS must name the backends {', '.join(backends)}"
    lines = [["device", "backend", "architectures", "dtypes", "proof"], ["---"] * 5]
    for name in PROOFS:
        device, proof, page = PROOFS[name]
        proof = f"run and measured on {' and '.join(gpu.upper() for gpu in results.gpus)}" if name == "cuda" else proof
        backend = backends[name]
        assert backend is not None
        architectures, dtypes = ", ".join(sorted(backend.architectures())), ", ".join(sorted(backend.dtypes))
        lines.append([device, f"`{name}`", architectures, dtypes, f"[{proof}]({page})"])
    return [f"| {' | '.join(cells)} |" for cells in lines]


BLOCKS = {function.__name__: function for function in (op_devices, backend_devices)}
"""The functions that write blocks. They get all results."""
