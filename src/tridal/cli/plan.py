"""`tridal plan`: how a matrix would be computed on a device, here or not, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tridal.cli.output import console, count, escape, grid, print_json, size
from tridal.errors import PlanError, TridalError

if TYPE_CHECKING:
    from tridal.devices.types import Backend, DeviceProperties, LaunchPlan

ALGORITHMS = {
    "tile": "whole rows in a tile: one read, one write",
    "split": "several programs share a row and exchange maximum and sum: one read, one write",
    "looped": "column tiles: one pass for maximum and sum, one to normalise",
}


def plan(
    rows: Annotated[int, typer.Argument(metavar="ROWS", help="Rows of the matrix.")],
    cols: Annotated[int, typer.Argument(metavar="COLS", help="Columns of the matrix.")],
    dtype: Annotated[str, typer.Option(help="float32, float16, bfloat16 or float64.")] = "float32",
    op: Annotated[
        str, typer.Option(help="softmax, log_softmax, softmax_backward or log_softmax_backward.")
    ] = "softmax",
    dim: Annotated[int, typer.Option(help="-1 to reduce each row, 0 to reduce each column.")] = -1,
    device: Annotated[
        str | None, typer.Option(help="A device that is here; default: the one that the settings choose.")
    ] = None,
    arch: Annotated[
        str | None, typer.Option(help="An architecture that needn't be here: its kernels are compiled to plan for it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the launch plan of a contiguous ROWS x COLS matrix: algorithm, tile, programs, and why."""
    backend, properties, planned = make(rows, cols, dtype=dtype, op=op, dim=dim, device=device, arch=arch)
    if as_json:
        question = {"rows": rows, "cols": cols, "dtype": dtype, "op": op, "dim": dim}
        print_json({**question, **as_data(backend, properties, planned)})
        return
    out = console()
    out.print(f"[bold]{op}[/] of {rows} x {cols} {dtype} along dim {dim}, on [bold]{properties.name}[/]")
    out.print(described(backend, properties, planned))


def make(
    rows: int, cols: int, *, device: str | None = None, arch: str | None = None, **question: Any
) -> tuple[Backend, DeviceProperties, LaunchPlan]:
    """`tridal.plan`, with the backend and the device that it is for; whatever goes wrong is a PlanError or kin."""
    from tridal.ops import planning

    backend, properties = planning.target(device, arch)
    try:
        return backend, properties, planning.plan(rows, cols, device=device, arch=arch, **question)
    except TridalError:
        raise
    except ImportError as error:
        raise PlanError(
            f"a plan for {properties.arch} is compiled, and {error.name} is not installed: pip install {error.name}"
        ) from error
    except Exception as error:  # a backend's arithmetic, or Triton's compiler
        words = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {words[-1] if words else 'no message'}"
        raise PlanError(f"backend {backend.name!r} could not plan for {properties.arch}: {reason}") from error


def as_data(backend: Backend, properties: DeviceProperties, planned: LaunchPlan) -> dict[str, Any]:
    """The answer for a script."""
    return {"backend": backend.name, "device": asdict(properties), "plan": planned.as_dict()}


def described(backend: Backend, properties: DeviceProperties, planned: LaunchPlan) -> Any:
    """The answer for people."""
    tile, resources = planned.tile, planned.resources
    table = grid("cyan", "")
    table.add_row(
        "device", f"{properties.arch}, {count(properties.cores, properties.core_name)}, backend {backend.name}"
    )
    table.add_row("algorithm", f"{tile.algorithm}: {ALGORITHMS[tile.algorithm]}")
    shape = f"{count(tile.rows, 'row')} x {count(tile.cols, 'column')}"
    parts = [f"{tile.split} to a row"] * (tile.split > 1) + ["ends of rows apart"] * tile.edges
    parts += ["read again for each pass"] * tile.rereads
    parts += ["made up for what exp2 loses"] * bool(tile.exp2_bias)
    table.add_row("tile", ", ".join([shape, count(tile.num_warps, "warp"), count(tile.num_stages, "stage"), *parts]))
    if resources is not None:
        spills = f"{resources.spills} bytes spilled" if resources.spills else "nothing spilled"
        shared = size(resources.shared_memory)
        most = f" of {tile.max_registers} allowed" if tile.max_registers else ""
        table.add_row(
            "compiled", f"{resources.registers} registers a thread{most}, {spills}, {shared} of shared memory"
        )
    if planned.occupancy is not None:
        table.add_row("occupancy", f"{count(planned.occupancy, 'program')} on each {properties.core_name}")
    table.add_row("programs", f"{planned.programs:,}")
    table.add_row("why", escape(planned.reason))
    return table
