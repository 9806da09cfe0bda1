"""Exact NPU plans in `tests/golden/plans-npu.json`, and the command that writes all files in `tests/golden`.

NPU plans compile nothing, so they have one file. `cuda_plan_table` describes the tables of CUDA plans.

After an intended change of plans, or for another version of Triton, write the files again and review the difference:

    python tests/helpers/golden_plans.py
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from tridal.devices.types import Backend, DeviceProperties, KernelConfig, LaunchPlan, Resources
from tridal.kernels.row_kernel import RowKernel
from tridal.ops import planning, table
from tridal.pytorch.path.kernel_calls import COLUMN_SUM
from tridal.runtime import launch
from tridal.runtime.row_layout import contiguous_strides, row_layout
from tridal.runtime.specialization import KernelCall

FOLDER = Path(__file__).parents[1] / "golden"
COMMAND = "python tests/helpers/golden_plans.py"


def kernel_of(op: str) -> RowKernel:
    """Returns the kernel with a name, for example "rms_norm", "rms_norm without residual" or "column_sum"."""
    if op == COLUMN_SUM.name:
        return COLUMN_SUM
    name, _, absent = op.partition(" without ")
    kernel = table.kernel_named(name)
    return planning.without(kernel, absent) if absent else kernel


class Question(NamedTuple):
    """A plan to make: for which architecture, op, dtype and contiguous shape, and along which dim."""

    arch: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    dim: int = -1

    def __str__(self) -> str:
        return f"{self.arch} {self.op} {self.dtype} {'x'.join(map(str, self.shape))} dim={self.dim}"

    @property
    def target(self) -> tuple[Backend, DeviceProperties]:
        """The backend and the properties of the architecture."""
        return planning.architectures()[self.arch]

    @property
    def call(self) -> KernelCall:
        """The call of the kernel."""
        kernel = kernel_of(self.op)
        layout = row_layout(self.shape, contiguous_strides(self.shape), self.dim % len(self.shape))
        assert layout is not None
        parameters = tuple(None if name == "scale" else 1.0 for name in kernel.parameters)
        return KernelCall(kernel, layout, planning.tensor_dtypes(kernel, self.dtype), (), parameters)


NPU = [
    Question(arch, op, dtype, shape, dim)
    for arch, dtype in (("ascend910b", "float32"), ("ascend910b", "bfloat16"), ("ascend950", "float16"))
    for op in ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")
    for shape in ((1823, 781), (4096, 12_672), (3, 200_000), (100_000, 3))
    for dim in (-1, 0)
]


@functools.cache
def plan(question: Question) -> LaunchPlan:
    """Makes a plan with the default options of the backend."""
    backend, device = question.target
    options = {name: option.default for name, option in backend.options.items()}
    return launch.plan(question.call, backend, device, options)


def invented_resources(config: KernelConfig) -> Resources:
    """Takes the place of a compiler: two registers for each element of a thread. What does not fit spills."""
    wanted = 24 + 2 * config.rows * config.cols // (32 * config.num_warps)
    most = min(255, config.max_registers or 65_536 // (32 * config.num_warps))
    stages = config.rows * config.cols * config.num_stages // 2 if config.num_stages > 1 else 64 * config.num_warps
    return Resources(min(wanted, most), max(0, wanted - most), stages)


def exact(launch_plan: LaunchPlan) -> dict[str, Any]:
    """A plan as plain data, without its reason."""
    left_out = ("reason", "schedule", "compilations")
    return {key: value for key, value in launch_plan.as_dict().items() if key not in left_out}


def npu_file() -> Path:
    """The golden file of NPU plans."""
    return FOLDER / "plans-npu.json"


def read(file: Path) -> dict[str, Any]:
    """The plans in a golden file, by question."""
    plans: dict[str, Any] = json.loads(file.read_text())["plans"]
    return plans


def write(file: Path, plans: dict[str, Any], **made_by: Any) -> None:
    """Writes a golden file, with one plan per line."""
    lines = [f"  {json.dumps(question)}: {json.dumps(plan)}" for question, plan in plans.items()]
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in made_by.items())
    file.write_text("{\n" + head + ' "plans": {\n' + ",\n".join(lines) + "\n }\n}\n")


if __name__ == "__main__":
    import cuda_plan_table

    write(npu_file(), {str(question): exact(plan(question)) for question in NPU}, command=COMMAND)
    cuda_plan_table.write()
