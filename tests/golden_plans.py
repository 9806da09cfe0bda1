"""Golden files of exact plans: `tests/golden/plans-cuda-triton-VERSION.json` and `tests/golden/plans-npu.json`.

CUDA plans depend on the registers that the compiler allocates. So each of their files belongs to one version of Triton,
and tests use only the file of the installed version. NPU plans compile nothing, so they have one file.

After an intended change of plans, or for another version of Triton, write the files again and review the difference:

    python tests/golden_plans.py
"""

from __future__ import annotations

import functools
import json
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from tridal.devices.types import DeviceProperties, LaunchPlan
from tridal.ops import planning

FOLDER = Path(__file__).with_name("golden")
COMMAND = "python tests/golden_plans.py"


class Question(NamedTuple):
    """The arguments of `tridal.plan`."""

    arch: str
    op: str
    dtype: str
    rows: int
    cols: int
    dim: int = -1

    def __str__(self) -> str:
        return f"{self.arch} {self.op} {self.dtype} {self.rows}x{self.cols} dim={self.dim}"

    @property
    def device(self) -> DeviceProperties:
        """The properties of the architecture."""
        return planning.architectures()[self.arch][1]


def _questions(arch: str, op: str, dtype: str, *shapes: tuple[int, int], dim: int = -1) -> list[Question]:
    return [Question(arch, op, dtype, *shape, dim) for shape in shapes]


CUDA = [
    # wide, narrow and few rows, in both dtypes and directions
    *(
        question
        for op in ("softmax", "softmax_backward")
        for dtype in ("float32", "bfloat16")
        for question in _questions("sm_90", op, dtype, (4096, 12_672), (1823, 781), (3, 200_000))
    ),
    *_questions("sm_75", "softmax", "float16", (4096, 20_480)),
    *_questions("sm_80", "softmax", "float32", (4096, 12_672), (3, 200_000)),
    *_questions("sm_80", "softmax_backward", "bfloat16", (4096, 12_672)),
    *_questions("sm_100", "softmax", "bfloat16", (4096, 12_672)),
    *_questions("sm_90", "softmax", "float64", (4096, 781), (4096, 100_000)),
    *_questions("sm_90", "log_softmax", "float16", (4096, 256)),
    # pipelined cooperative programs
    *_questions("sm_90", "softmax", "float16", (4096, 20_480)),
    # whole rows with reload, and rows that just miss its conditions
    *_questions("sm_90", "softmax", "bfloat16", (4096, 4096), (16_384, 4096), (16_384, 4095), (8192, 8192)),
    *_questions("sm_90", "softmax", "float32", (8192, 16_383)),
    *_questions("sm_90", "softmax_backward", "float16", (20_000, 10_007), (20_000, 32_768), (500, 10_007)),
    *_questions("sm_90", "log_softmax_backward", "float16", (20_000, 12_672)),
    *_questions("sm_90", "softmax_backward", "bfloat16", (4096, 20_480)),
    # cooperative programs with reload
    *_questions("sm_90", "softmax", "bfloat16", (2048, 65_536), (1900, 70_001), (256, 1_048_576)),
    # few rows
    *_questions("sm_90", "softmax", "float32", (1, 32_768), (16, 131_072), (4096, 131_072)),
    *_questions("sm_90", "softmax", "bfloat16", (8, 128_256), (32, 50_257)),
    *_questions("sm_90", "softmax_backward", "bfloat16", (8, 128_256), (128, 65_536)),
    # inner-dim rows, and narrow rows
    *_questions("sm_90", "softmax", "bfloat16", (64, 2_097_152), (512, 262_144), (4096, 65_536), dim=0),
    *_questions("sm_90", "softmax_backward", "bfloat16", (512, 262_144), dim=0),
    *_questions("sm_90", "softmax", "float32", (512, 262_144), (1536, 4096), dim=0),
    *_questions("sm_90", "softmax_backward", "float32", (1536, 4096), dim=0),
    *_questions("sm_90", "softmax", "float32", (1_000_000, 3)),
]
NPU = [
    Question(arch, op, dtype, *shape, dim)
    for arch, dtype in (("ascend910b", "float32"), ("ascend910b", "bfloat16"), ("ascend950", "float16"))
    for op in ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")
    for shape in ((1823, 781), (4096, 12_672), (3, 200_000), (100_000, 3))
    for dim in (-1, 0)
]


@functools.cache
def plan(question: Question) -> LaunchPlan:
    """Makes a plan, and compiles if the backend probes."""
    return planning.plan(
        question.rows, question.cols, dtype=question.dtype, op=question.op, dim=question.dim, arch=question.arch
    )


def exact(launch_plan: LaunchPlan) -> dict[str, Any]:
    """Everything in a plan but its reason, as plain data."""
    return {key: value for key, value in launch_plan.as_dict().items() if key not in ("reason", "schedule")}


def cuda_file() -> Path:
    """The golden file of the installed version of Triton. It need not exist."""
    return FOLDER / f"plans-cuda-triton-{metadata.version('triton')}.json"


def npu_file() -> Path:
    """The golden file of NPU plans."""
    return FOLDER / "plans-npu.json"


def read(file: Path) -> dict[str, Any]:
    """The plans in a golden file, by question."""
    plans: dict[str, Any] = json.loads(file.read_text())["plans"]
    return plans


def write(file: Path, questions: list[Question], **made_by: str) -> None:
    """Writes a golden file, with one plan per line."""
    lines = [f"  {json.dumps(str(question))}: {json.dumps(exact(plan(question)))}" for question in questions]
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in made_by.items())
    file.write_text("{\n" + head + ' "plans": {\n' + ",\n".join(lines) + "\n }\n}\n")


if __name__ == "__main__":
    write(npu_file(), NPU, command=COMMAND)
    write(cuda_file(), CUDA, command=COMMAND, triton=metadata.version("triton"))
