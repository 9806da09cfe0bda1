"""Options of `tridal bench`: their declarations, and the checks that turn them into workloads and providers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import BadParameter, Option

from tridal.cli.op_option import OPS, check_op
from tridal.devices.types import ITEMSIZE
from tridal.errors import nearest

if TYPE_CHECKING:
    from tridal.benchmarks.providers import Provider
    from tridal.benchmarks.workloads import Direction, Workload

_DIRECTIONS: Mapping[str, Sequence[Direction]] = {
    "forward": ["forward"], "backward": ["backward"], "both": ["forward", "backward"],
}  # fmt: skip


@dataclass(frozen=True)
class BenchOptions:
    """One field for each option, as the user gave it."""

    rows: Annotated[int | None, Option(min=1, help="Rows of the grid's shapes. Default: 4096, or 256 on a CPU.")] = None
    cols: Annotated[
        str | None,
        Option(
            help="Columns of the grid's shapes: a list (256,781) or a range (FIRST:LAST:STEP). "
            "Default: 256:12672:128, or 256,781,1024 on a CPU."
        ),
    ] = None
    dtype: Annotated[
        str | None, Option(help="Comma-separated dtypes. Default: float32; with --suite also bfloat16 and float16.")
    ] = None
    op: Annotated[str, Option(help=f"The op: {OPS}.")] = "softmax"
    direction: Annotated[str, Option(help="forward, backward or both.")] = "both"
    providers: Annotated[
        str | None,
        Option(
            help="Comma-separated implementations. Default: all that are installed and suit the op; fewer on a CPU."
        ),
    ] = None
    device: Annotated[
        str | None, Option(help="The device to measure on. Default: the device chosen by the settings.")
    ] = None
    suite: Annotated[bool, Option("--suite", help="Measure classes of shapes instead of the grid.")] = False
    classes: Annotated[str | None, Option(help="Comma-separated classes for --suite. Default: all.")] = None
    host: Annotated[bool, Option("--host", help="Measure the host time of a call instead of the grid.")] = False
    output: Annotated[Path, Option(help="The folder to write the files to.")] = Path("bench-results")
    source: Annotated[
        Path | None,
        Option("--from", metavar="FILE", help="Do not measure; make tables and plots of this results.json."),
    ] = None
    as_json: Annotated[bool, Option("--json", help="Print the results as JSON.")] = False

    def make_workloads(self, accelerated: bool) -> list[Workload]:
        """Returns what to measure: the suite, the grid, or nothing with --host alone. A CPU gets less.

        Raises:
            BadParameter: an option has an unknown value.
        """
        from tridal.benchmarks import workloads

        directions = _DIRECTIONS[_check_choice("--direction", self.direction, _DIRECTIONS)]
        op = check_op(self.op)
        dtypes = _check_list(
            "--dtype", self.dtype or ("float32,bfloat16,float16" if self.suite else "float32"), ITEMSIZE
        )
        names = _check_list("--classes", self.classes or ",".join(workloads.SHAPE_CLASSES), workloads.SHAPE_CLASSES)
        if self.suite:
            classes = [shape_class for name, shape_class in workloads.SHAPE_CLASSES.items() if name in names]
            return workloads.make_workloads(classes, op, directions, dtypes, 1 if accelerated else workloads.CPU_SHRINK)
        if self.host:
            return []
        rows, cols = workloads.GRID if accelerated else workloads.CPU_GRID
        grid = workloads.grid(self.rows or rows, cols if self.cols is None else _parse_cols(self.cols))
        return workloads.make_workloads([grid], op, directions, dtypes)

    def select_providers(self, accelerated: bool) -> list[Provider]:
        """Returns the implementations to measure, by default all that are installed and suit the op and the device.

        Raises:
            BadParameter: --providers or --op has an unknown name.
        """
        from tridal.benchmarks.providers import PROVIDERS
        from tridal.ops import table

        if self.providers:
            return [PROVIDERS[name] for name in _check_list("--providers", self.providers, PROVIDERS)]
        op = table.op_named(check_op(self.op))
        found = [provider for provider in PROVIDERS.values() if not provider.missing and provider.includes(op)]
        return [provider for provider in found if accelerated or provider.on_cpu]


def _check_list(option: str, text: str, known: Iterable[str]) -> list[str]:
    return [_check_choice(option, name.strip(), known) for name in text.split(",")]


def _check_choice(option: str, name: str, known: Iterable[str]) -> str:
    if name in known:
        return name
    raise BadParameter(f"{name!r} is unknown{nearest(name, known)} (known: {', '.join(known)})", param_hint=option)


def _parse_cols(text: str) -> Sequence[int]:
    try:
        if ":" in text:
            first, last, step = map(int, text.split(":"))
            cols: Sequence[int] = range(first, last + 1, step)
        else:
            cols = [int(part) for part in text.split(",")]
    except ValueError:
        cols = ()
    if not cols or min(cols) < 1:
        raise BadParameter(f"{text!r}: expected widths such as 256,781 or 256:12672:128", param_hint="--cols")
    return cols
