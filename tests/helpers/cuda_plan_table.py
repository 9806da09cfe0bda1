"""Tables of CUDA plans: `tests/golden/plans-cuda-triton-VERSION.json`, one for each version of Triton.

A plan depends on the problem, the device, the constants in `tridal_cuda.tuning`, and the resources that the compiler
reports for the configurations that are tried. A table contains all of them, so tests make its plans again without the
compiler, and with any installed version of Triton.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import golden_plans
from cuda_problems import QUESTIONS
from golden_plans import Question
from tridal.benchmarks.op_benchmark import benchmark_of
from tridal.devices.types import KernelConfig, LaunchPlan, Probe, Resources
from tridal.runtime import compiler
from tridal_cuda import tuning

RESULTS = sorted((Path(__file__).parents[2] / "docs" / "benchmarks").rglob("results.json"))
"""The published results of all ops and GPUs."""
MEASURED_ARCH = "sm_90"
NOT_MEASURED = "not measured"


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


def recorded(compiled: Mapping[str, list[int]]) -> Probe:
    """A probe that returns recorded resources. For other configurations, it raises NotCompiled."""

    def probe(config: KernelConfig) -> Resources:
        if describe(config) not in compiled:
            raise NotCompiled(describe(config))
        return Resources(*compiled[describe(config)])

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


def report(table: Mapping[str, Any], changed: Iterable[Question]) -> str:
    """Describes changed constants and plans. `tridal bench` measures their problems."""
    old, new = table["constants"], constants()
    different = [name for name in old | new if old.get(name) != new.get(name)]
    lines = [f"tuning.{name} was {old.get(name)} and is now {new.get(name)}" for name in different]
    for question in changed:
        row = table["plans"][str(question)]
        lines.append(f"{question}: was {row['plan']}, share of copy {row['share_of_copy']}")
    return "\n".join([*lines, f"If the new plans are at least as fast, write the table again: {golden_plans.COMMAND}"])
