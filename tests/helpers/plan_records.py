"""Plans of all backends for many problems, as checksums, and the sizes at which plans change. Nothing is compiled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

from case_records import checksum
from golden_plans import Question
from tridal.devices.types import Backend, DeviceProperties, KernelConfig, LaunchPlan, Resources
from tridal.ops import planning, table
from tridal.ops.column_sum import COLUMN_SUM

_MEASURED = ("sm_90", "h200", "gfx942", "ascend910b")
_PROBLEMS = {True: 16, False: 4}
"""Problems of a kernel, for architectures of `_MEASURED` and others."""
_CHANGING = ("softmax", "layer_norm_backward", "cross_entropy", "geglu_backward")
_MOST_REGISTERS = 255
_GRID = [*(1 << power for power in range(19)), *(3 << power for power in range(17))]


def probe(config: KernelConfig) -> Resources:
    """Returns invented resources: two registers for each element of a thread. What does not fit spills."""
    wanted = 24 + 2 * config.rows * config.cols // (32 * config.num_warps)
    most = min(_MOST_REGISTERS, config.max_registers or 65_536 // (32 * config.num_warps))
    stages = config.rows * config.cols * config.num_stages // 2 if config.num_stages > 1 else 64 * config.num_warps
    return Resources(min(wanted, most), max(0, wanted - most), stages)


def plans() -> dict[str, Any]:
    """The number of plans, of different configurations and a checksum, by architecture and kernel; and the changes."""
    found = {}
    for (arch, target), name in product(planning.architectures().items(), kernel_names()):
        questions = [*_questions(arch, name)]
        made = [_plan(*target, question) for question in questions]
        text = "\n".join(_described(plan, question) for plan, question in zip(made, questions, strict=True))
        found[f"{arch} {name}"] = [len(made), len({p.config for p in made}), checksum(text)]
    return {"plans": found, "changes": dict(_all_changes())}


def kernel_names() -> list[str]:
    """Returns the names of all kernels."""
    return [*(kernel.name for op in table.ops().values() for kernel in op.kernels), COLUMN_SUM.name]


def _described(plan: LaunchPlan, question: Question) -> str:
    call = question.call
    numbers = plan.programs, call.programs(plan), plan.occupancy, call.row_range, call.workspace_slots(plan)
    return f"{plan.config} {' '.join(map(str, numbers))}"


def _questions(arch: str, name: str) -> Iterator[Question]:
    """Yields random problems of a kernel. Their sizes are near powers of two, where plans change."""
    generator = random.Random(f"{arch} {name}")
    for _ in range(_PROBLEMS[arch in _MEASURED]):
        rows, cols = (max(1, 2 ** generator.randint(0, most) + generator.randint(-1, 1)) for most in (17, 18))
        inner = generator.choice((1, 33, 64, 256))
        dtype = generator.choice(("float32", "bfloat16", "bfloat16"))
        in_row = generator.random() < 0.7
        shape = (rows, cols) if in_row else (max(1, rows // 64), cols, inner)
        yield Question(arch, name, dtype, shape, -1 if in_row else 1)


def _plan(backend: Backend, device: DeviceProperties, question: Question) -> LaunchPlan:
    options = {name: option.default for name, option in backend.options.items()}
    return backend.plan(question.call.problem, device, probe, options)


def _all_changes() -> Iterator[tuple[str, list[int]]]:
    """Yields descriptions of sizes, and at which of them the configuration changes."""
    bfloat16 = [*product(_MEASURED, _CHANGING, ("bfloat16",))]
    for arch, name, dtype in (*bfloat16, *product(("h200",), _CHANGING, ("float32",))):
        target = planning.architectures()[arch]

        def config(*shape: int, dim: int = -1, arch: str = arch, name: str = name, dtype: str = dtype) -> KernelConfig:
            return _plan(*target, Question(arch, name, dtype, shape, dim)).config  # noqa: B023

        yield f"{arch} {name} {dtype} 4096xN", changes(lambda cols: config(4096, cols))
        yield f"{arch} {name} {dtype} Nx1000", changes(lambda rows: config(rows, 1000))
        if dtype == "bfloat16":
            yield f"{arch} {name} {dtype} 1xNx1000 dim=1", changes(lambda cols: config(1, cols, 1000, dim=1))
            yield f"{arch} {name} {dtype} Nx40000", changes(lambda rows: config(rows, 40_000))


def changes(config: Callable[[int], KernelConfig]) -> list[int]:
    """Returns the sizes whose configurations differ from that of the size before, one between neighbours of a grid."""
    found = []
    for low, high in pairwise(sorted(_GRID)):
        first = config(low)
        if config(high) != first:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if config(middle) != first else (middle, high)
            found.append(high)
    return found
