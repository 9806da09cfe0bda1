"""`tridal plan`: prints the launch plan of a matrix for a present device or for any known architecture."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tridal.cli.op_option import ARCHITECTURES, DTYPES, KERNELS, Device, Json, wrong_usage
from tridal.cli.output import console, count, escape, grid, print_json, size, stdout
from tridal.devices.types import DTYPE_ALIASES, Backend, DeviceProperties
from tridal.errors import PlanError

if TYPE_CHECKING:
    from tridal.ops.planning import KernelPlan

SCHEDULES = {
    "whole_row": "each program holds whole rows, and reads and writes each element once",
    "cooperative": "several programs compute a row, and exchange statistics if it has any; each element is read once",
    "column_loop": "programs loop over blocks of the columns twice, for the row's statistics and for the result",
}
"""Descriptions of the schedules, for the output."""


def _rows(text: str) -> int:
    """Reads the argument ROWS. Explains how to give a shape such as 4096x128256."""
    if re.fullmatch(r"\d+(x\d+)+", text):
        raise typer.BadParameter(f"{text!r} is a shape. Separate its sizes: tridal plan {text.replace('x', ' ')}")
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not an integer") from None


def plan(
    rows: Annotated[int, typer.Argument(metavar="ROWS", parser=_rows, help="Rows of the matrix.")],
    cols: Annotated[int, typer.Argument(metavar="COLS", help="Columns of the matrix.")],
    dtype: Annotated[str, typer.Option(help=f"One of {DTYPES}.")] = "float32",
    op: Annotated[str | None, typer.Option(help=f"An op or its gradient: {KERNELS}. Default: the first one.")] = None,
    dim: Annotated[int, typer.Option(help="-1 reduces each row, 0 reduces each column.")] = -1,
    blocks: Annotated[
        int | None, typer.Option(help="Blocks of rows with numbers per column of their own, as scales per batch.")
    ] = None,
    device: Device = None,
    arch: Annotated[
        str | None,
        typer.Option(help=f"Plan for this architecture. Its device need not be present. One of {ARCHITECTURES}."),
    ] = None,
    as_json: Json = False,
    source: Annotated[bool, typer.Option("--source", help="Print only the source of the kernel that runs.")] = False,
) -> None:
    """Show the launch plan of a contiguous ROWS x COLS matrix.

    The plan contains the schedule, the kernel configuration, the number of programs, and the reason for them.
    """
    from tridal.ops import planning
    from tridal.ops import table as ops

    op = ops.first().name if op is None else op
    dtype = DTYPE_ALIASES.get(dtype, dtype)
    with wrong_usage():
        planning.matrix_call(rows, cols, dtype=dtype, op=op, dim=dim, blocks=blocks)
        if device or arch:
            planning.target(device, arch)
        if source and as_json:
            raise PlanError("pass either --source or --json, not both")
    planned = planning.planned(rows, cols, dtype=dtype, op=op, dim=dim, blocks=blocks, device=device, arch=arch)
    if source:
        typer.echo(planned[2].source, file=stdout(), nl=False)
        return
    if as_json:
        question = {"rows": rows, "cols": cols, "dtype": dtype, "op": op, "dim": dim, "blocks": blocks, "arch": arch}
        print_json({**question, **plan_as_dict(*planned)})
        return
    out, name = console(), planned[1].name
    on = f"[bold]{name}[/]" if arch is None else f"[bold]{escape(arch)}[/] with the limits of {name}"
    parts = "" if blocks is None else f" in {blocks} blocks of rows"
    out.print(f"[bold]{op}[/] of {rows} x {cols} {dtype}{parts} along dim {dim}, on {on}", soft_wrap=True)
    out.print(plan_table(*planned))


def plan_as_dict(backend: Backend, properties: DeviceProperties, launch_plan: KernelPlan) -> dict[str, Any]:
    """The plan, its backend and its device as data for JSON."""
    return {"backend": backend.name, "device": asdict(properties), "plan": launch_plan.as_dict()}


def plan_table(backend: Backend, properties: DeviceProperties, launch_plan: KernelPlan) -> Table:
    """Formats the plan with its backend and device as a table for the terminal."""
    config, resources = launch_plan.config, launch_plan.resources
    cores = count(properties.cores, properties.core_name)
    first = f"{config.cols:,} + " * bool(config.rest_cols)
    parts = [f"{count(config.rows, 'row')} x {first}{count(config.rest_cols or config.cols, 'column')} per tile"]
    parts += [count(config.num_warps, "warp"), count(config.num_stages, "stage")]
    parts += [f"{config.programs_per_row} programs per row"] * (config.programs_per_row > 1)
    parts += ["peels unaligned heads and tails"] * config.peel
    looped = config.schedule == "column_loop"
    parts += ["asks the cache to keep the row" if looped else "reloads the row in each pass"] * config.reload
    parts += [f"statistics in {config.lanes} lanes"] * (config.lanes > 1)
    parts += ["corrects the mean error of exp2"] * bool(config.exp2_bias)
    facts = [
        ("device", f"{properties.arch}, {cores}, backend {backend.name}"),
        ("schedule", f"{config.schedule}: {SCHEDULES[config.schedule]}"),
        ("config", ", ".join(parts)),
    ]
    if resources is not None:
        limit = f" (limit {config.max_registers})" if config.max_registers else ""
        spills = f"{resources.spills} bytes spilled" if resources.spills else "no spills"
        shared = f"{size(resources.shared_memory)} of shared memory"
        facts.append(("compiled", f"{resources.registers} registers per thread{limit}, {spills}, {shared}"))
    if launch_plan.compilations:
        facts.append(("candidates", f"{launch_plan.compilations} compiled"))
    if launch_plan.occupancy is not None:
        facts.append(("occupancy", f"{count(launch_plan.occupancy, 'program')} per {properties.core_name}"))
    most = "one for each tile" if config.programs_per_row == 1 else f"{config.programs_per_row} for each tile"
    most = most if launch_plan.programs is None else f"at most {launch_plan.programs:,}"
    facts.append(("programs", f"{launch_plan.launched_programs:,}, {most}"))
    return grid(*facts, ("reason", escape(launch_plan.reason)))
