"""Tables of CUDA plans: `tests/golden/plans-cuda-triton-VERSION.json`, one for each version of Triton.

A plan depends on the problem, the device, the constants in `tridal_cuda.tuning`, and the resources that the compiler
reports for the configurations that are tried. A table contains all of them. So tests make its plans again without the
compiler, and with any installed version of Triton.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import golden_plans
from cuda_problems import QUESTIONS
from golden_plans import Question
from tridal.benchmarks.op_benchmark import benchmark_of
from tridal.benchmarks.workloads import SHAPE_CLASSES
from tridal.devices.types import KernelConfig, LaunchPlan, Probe, Resources
from tridal.runtime import compiler
from tridal_cuda import tuning

RESULTS = sorted((Path(__file__).parents[2] / "docs" / "benchmarks").rglob("results.json"))
"""The published results of all ops and GPUs."""
MEASURED_ARCH = "sm_90"
NOT_MEASURED = "not measured"
MAX_REPORTED = 5  # plans in the report of a change


class NotCompiled(Exception):
    """A table has no resources of a configuration."""


class MadePlan(NamedTuple):
    """A plan as text, and the resources of each configuration that was compiled to make it."""

    plan: str
    compiled: dict[str, list[int]]


def describe(config: KernelConfig) -> str:
    """A configuration as text: the schedule, the tile, the warps, and other fields that differ from their default."""
    named = ("schedule", "rows", "cols", "num_warps")
    others = [f for f in fields(config) if f.name not in named and f.default is not MISSING]
    changed = [f"{f.name}={getattr(config, f.name)}" for f in others if getattr(config, f.name) != f.default]
    return " ".join((f"{config.schedule} {config.rows}x{config.cols} num_warps={config.num_warps}", *changed))


def make_plan(question: Question, probe: Probe) -> MadePlan:
    """Makes the plan for a question with the resources that `probe` returns."""
    backend, device = question.target
    compiled: dict[str, list[int]] = {}

    def recording(config: KernelConfig) -> Resources:
        resources = probe(config)
        compiled[describe(config)] = [resources.registers, resources.spills, resources.shared_memory]
        return resources

    plan: LaunchPlan = backend.plan(question.call.problem, device, recording, {})
    programs = question.call.programs(plan)
    return MadePlan(f"{describe(plan.config)}: {programs} programs, {plan.occupancy} per SM", compiled)


def compiling(question: Question) -> Probe:
    """A probe that compiles with the installed version of Triton."""
    call, (backend, device) = question.call, question.target
    assert device.target is not None
    target = device.target
    return lambda config: compiler.resources(backend, call.specialize(config), target)


def recorded(compiled: Mapping[str, list[int]], otherwise: Probe | None = None) -> Probe:
    """A probe that returns recorded resources. For other configurations, it calls `otherwise` or raises NotCompiled."""

    def probe(config: KernelConfig) -> Resources:
        if describe(config) in compiled:
            return Resources(*compiled[describe(config)])
        if otherwise is None:
            raise NotCompiled(describe(config))
        return otherwise(config)

    return probe


def constants() -> dict[str, Any]:
    """The constants in `tridal_cuda.tuning` by name, as JSON data."""
    public = {name: value for name, value in vars(tuning).items() if name.isupper() and not name.startswith("_")}
    values: dict[str, Any] = json.loads(json.dumps(public))
    return values


def published_shares() -> dict[str, dict[str, float]]:
    """The share of copy of each published measurement of tridal on GPUs of `MEASURED_ARCH`, by question and GPU."""
    shares: dict[str, dict[str, float]] = {}
    for results in map(json.loads, map(Path.read_text, RESULTS)):
        for m in results["measurements"]:
            shape, _, dim = m["shape"].partition(" dim ")
            if m["provider"] == "tridal" and m["share_of_copy"] and "slice" not in m["shape"]:
                size, kernel = tuple(map(int, shape.split("x"))), measured_kernel(m["op"], m["direction"])
                question = str(Question(MEASURED_ARCH, kernel, m["dtype"], size, int(dim or -1)))
                shares.setdefault(question, {})[results["machine"]["name"]] = round(m["share_of_copy"], 3)
    return shares


@functools.cache
def measured_kernel(op: str, direction: str) -> str:
    """The kernel that `tridal bench` measures: that of the op without an optional tensor that the calls do not have."""
    name = op + ("_backward" if direction == "backward" else "")
    given = [argument.name for argument in benchmark_of(op).tensors]
    in_kernel = {tensor for names in golden_plans.kernel_of(name).tensors for tensor in names} - {*given}
    return next((f"{name} without {absent}" for absent in ("residual", "dsum", "weight") if absent in in_kernel), name)


def bench_command(question: Question) -> str:
    """The command that measures a question's problem on the GPU that is present."""
    kernel = question.op.partition(" without ")[0]
    op = kernel.removesuffix("_backward")
    direction = "forward" if op == kernel else "backward"
    options = f"--op {op} --direction {direction} --dtype {question.dtype}"
    if question.dim == -1:
        return f"tridal bench {options} --rows {question.shape[0]} --cols {question.shape[1]}"
    found = [n for n, c in SHAPE_CLASSES.items() if c.dim == question.dim and question.shape in c.shapes]
    name = found[0] if found else "outer" if question.dim == 0 else "inner"
    first = "" if found else f"add {question.shape} to the class {name!r} in tridal.benchmarks.workloads, then "
    return f"{first}tridal bench --suite --classes {name} {options}"


def files() -> list[Path]:
    """The tables of all versions of Triton."""
    return sorted(golden_plans.FOLDER.glob("plans-cuda-triton-*.json"))


def write() -> None:
    """Writes the table of the installed version of Triton, with the published shares of copy."""
    shares, plans = published_shares(), {}
    for question in QUESTIONS:
        made = make_plan(question, compiling(question))
        plans[str(question)] = {"share_of_copy": shares.get(str(question), NOT_MEASURED), **made._asdict()}
    machines = [json.loads(file.read_text())["machine"] for file in RESULTS]
    measured_with = {machine["name"]: {key: machine[key] for key in ("torch", "triton")} for machine in machines}
    triton = metadata.version("triton")
    golden_plans.write(
        golden_plans.FOLDER / f"plans-cuda-triton-{triton}.json",
        plans,
        command=golden_plans.COMMAND,
        triton=triton,
        measured_with=measured_with,
        constants=constants(),
    )


def changes(table: Mapping[str, Any]) -> Iterator[Question]:
    """The questions whose plans, or the configurations compiled for them, are not those of the table."""
    for question in (question for question in QUESTIONS if str(question) in table["plans"]):
        row = table["plans"][str(question)]
        try:
            made = make_plan(question, recorded(row["compiled"]))
        except NotCompiled:
            made = None
        if made is None or made != MadePlan(row["plan"], row["compiled"]):
            yield question


def report(table: Mapping[str, Any], changed: list[Question], compiling: Callable[[Question], Probe] | None) -> str:
    """Describes changed plans and changed constants, and how to measure. `compiling` makes a probe for new plans."""
    old, new = table["constants"], constants()
    different = [name for name in old | new if old.get(name) != new.get(name)]
    lines = [f"tuning.{name} was {old.get(name)} and is now {new.get(name)}" for name in different]
    lines += [] if different else ["no constant in tridal_cuda.tuning changed, so the code that makes plans did"]
    if different and not changed:
        lines.append("no plan in the table depends on this: add a problem to cuda_problems.py")
    lines.append(f"{len(changed)} of {len(QUESTIONS)} plans changed (Triton {table['triton']})")
    for question in changed[:MAX_REPORTED]:
        row = table["plans"][str(question)]
        try:
            made = make_plan(question, recorded(row["compiled"], compiling and compiling(question)))
            plan = made.plan if made.plan != row["plan"] else f"the same, but {len(made.compiled)} kernels are compiled"
        except NotCompiled as missing:
            plan = f"not known, because it needs the resources of {missing} with Triton {table['triton']}"
        lines += [
            f"\n{question}",
            f"  old plan: {row['plan']}",
            f"  new plan: {plan}",
            f"  share of copy with the old plan: {row['share_of_copy']}",
            f"  measure:  {bench_command(question)}",
        ]
    if len(changed) > MAX_REPORTED:
        lines.append(f"\n... and {len(changed) - MAX_REPORTED} more")
    lines.append(f"\nIf the new plans are at least as fast, write the table again: {golden_plans.COMMAND}")
    return "\n".join(lines)
