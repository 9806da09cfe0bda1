"""Options of `tridal bench`: their declarations, and the checks that turn them into workloads and providers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tridal.cli.op_option import OPS, check_op
from tridal.devices.types import ITEMSIZE
from tridal.errors import nearest

if TYPE_CHECKING:
    from tridal.benchmarks.providers import Provider
    from tridal.benchmarks.workloads import Direction, Workload

_DIRECTIONS: Mapping[str, Sequence[Direction]] = {
    "forward": ("forward",),
    "backward": ("backward",),
    "both": ("forward", "backward"),
}


@dataclass(frozen=True)
class BenchOptions:
    """One field for each option, as the user gave it."""

    rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of the grid's shapes. Default: 4096, or 256 on a CPU.")
    ] = None
    cols: Annotated[
        str | None,
        typer.Option(
            help="Columns of the grid's shapes: a list (256,781) or a range (FIRST:LAST:STEP). "
            "Default: 256:12672:128, or 256,781,1024 on a CPU."
        ),
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(help="Comma-separated dtypes. Default: float32; with --suite also bfloat16 and float16."),
    ] = None
    op: Annotated[str, typer.Option(help=f"The op: {OPS}.")] = "softmax"
    direction: Annotated[str, typer.Option(help="forward, backward or both.")] = "both"
    providers: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated implementations. Default: all that are installed and suit the op; fewer on a CPU."
        ),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="The device to measure on. Default: the device chosen by the settings.")
    ] = None
    suite: Annotated[bool, typer.Option("--suite", help="Measure classes of shapes instead of the grid.")] = False
    classes: Annotated[str | None, typer.Option(help="Comma-separated classes for --suite. Default: all.")] = None
    host: Annotated[bool, typer.Option("--host", help="Measure the host time of a call instead of the grid.")] = False
    output: Annotated[Path, typer.Option(help="The folder to write the files to.")] = Path("bench-results")
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Do not measure; make tables and plots of this results.json."),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False

    def make_workloads(self, accelerated: bool) -> list[Workload]:
        """Returns the shapes, dtypes and directions to measure: the suite, the grid, or none with --host alone.

        Args:
            accelerated: whether the device is an accelerator; a CPU gets fewer and smaller shapes.

        Raises:
            typer.BadParameter: an option has an unknown value.
        """
        from tridal.benchmarks import workloads

        directions = _DIRECTIONS[_check_choice("--direction", self.direction, _DIRECTIONS)]
        op = check_op(self.op)
        default_dtypes = "float32,bfloat16,float16" if self.suite else "float32"
        dtypes = _check_list("--dtype", self.dtype or default_dtypes, ITEMSIZE)
        known_classes = [shape_class.name for shape_class in workloads.SHAPE_CLASSES]
        names = _check_list("--classes", self.classes, known_classes) if self.classes else known_classes
        if self.suite:
            classes = [shape_class for shape_class in workloads.SHAPE_CLASSES if shape_class.name in names]
            return workloads.suite(classes, op, directions, dtypes, 1 if accelerated else workloads.CPU_SHRINK)
        if self.host:
            return []
        rows = self.rows or (workloads.GRID_ROWS if accelerated else workloads.CPU_GRID_ROWS)
        cols = workloads.GRID_COLS if accelerated else workloads.CPU_GRID_COLS
        return workloads.grid(rows, cols if self.cols is None else _parse_cols(self.cols), op, directions, dtypes)

    def select_providers(self, accelerated: bool) -> list[Provider]:
        """Returns the implementations to measure.

        Args:
            accelerated: whether the device is an accelerator; the default has fewer implementations on a CPU.

        Raises:
            typer.BadParameter: --providers or --op has an unknown name.
        """
        from tridal.benchmarks.providers import PROVIDERS
        from tridal.ops import table

        if self.providers:
            return [PROVIDERS[name] for name in _check_list("--providers", self.providers, PROVIDERS)]
        op = table.op_named(check_op(self.op))
        default = (provider for provider in PROVIDERS.values() if not provider.missing and provider.includes(op))
        return [provider for provider in default if accelerated or provider.on_cpu]


def _check_list(option: str, text: str, known: Iterable[str]) -> list[str]:
    return [_check_choice(option, name.strip(), known) for name in text.split(",")]


def _check_choice(option: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    if name not in names:
        raise typer.BadParameter(
            f"{name!r} is unknown{nearest(name, names)} (known: {', '.join(names)})", param_hint=option
        )
    return name


def _parse_cols(text: str) -> Sequence[int]:
    try:
        if ":" in text:
            first, last, step = (int(part) for part in text.split(":"))
            cols: Sequence[int] = range(first, last + 1, step)
        else:
            cols = [int(part) for part in text.split(",")]
    except ValueError:
        cols = ()
    if not cols or min(cols) < 1:
        raise typer.BadParameter(f"{text!r}: expected widths such as 256,781 or 256:12672:128", param_hint="--cols")
    return cols
