"""The options of `tridal bench`, and the workloads and providers that they select."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import BadParameter, Option

from tridal.cli.op_option import CLASSES, DEVICES, DTYPES, MEASURED_OPS, check_op
from tridal.cli.op_option import PROVIDERS as PROVIDER_NAMES
from tridal.devices.types import DTYPE_ALIASES, ITEMSIZE
from tridal.errors import nearest

if TYPE_CHECKING:
    from tridal.benchmarks.op_benchmark import OpBenchmark
    from tridal.benchmarks.providers import Provider
    from tridal.benchmarks.workloads import Workload

_DIRECTIONS = ("forward", "backward", "both")


@dataclass(frozen=True)
class BenchOptions:
    """The command-line options as the user gave them, with one field for each option."""

    op: Annotated[str, Option(help=f"The op: {MEASURED_OPS}.")] = "softmax"
    rows: Annotated[int | None, Option(min=1, help="Rows of the grid's shapes. Default: 4096, or 256 on a CPU.")] = None
    cols: Annotated[
        str | None,
        Option(
            help="Columns of the grid's shapes: a list (256,781) or a range (FIRST:LAST:STEP). "
            "Default: 256:12672:128, or 256,781,1024 on a CPU."
        ),
    ] = None
    suite: Annotated[
        bool, Option("--suite", help="Measure classes of shapes instead of the grid. On a CPU, they have fewer rows.")
    ] = False
    classes: Annotated[str | None, Option(help=f"Measure these classes of the suite (comma-separated): {CLASSES}.")] = (
        None
    )
    dtype: Annotated[
        str | None,
        Option(help=f"Comma-separated dtypes: {DTYPES}. Default: float32; for the suite also bfloat16 and float16."),
    ] = None
    direction: Annotated[str, Option(help="forward, backward or both.")] = "both"
    providers: Annotated[
        str | None,
        Option(
            help=f"Comma-separated implementations: {PROVIDER_NAMES}. "
            "Default: all that are installed and have the op; fewer on a CPU."
        ),
    ] = None
    device: Annotated[
        str | None, Option(help=f"The device to measure on: {DEVICES}. Default: the device chosen by the settings.")
    ] = None
    host: Annotated[bool, Option("--host", help="Measure the host time of a call instead of the grid.")] = False
    output: Annotated[
        Path | None, Option(help="The folder to write the files to. Default: a new folder in bench-results/.")
    ] = None
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the results in the folder of --output.")] = False
    source: Annotated[
        Path | None,
        Option("--from", metavar="FILE", help="Do not measure; make tables and plots of this results.json."),
    ] = None
    as_json: Annotated[bool, Option("--json", help="Print the results as JSON.")] = False

    def make_workloads(self, accelerated: bool) -> list[Workload]:
        """Returns the workloads of the suite or of the grid; none with --host alone. A CPU gets smaller shapes."""
        from tridal.benchmarks import workloads
        from tridal.benchmarks.op_benchmarks import benchmark_of
        from tridal.benchmarks.workloads import SHAPE_CLASSES

        suite = self.suite or self.classes is not None
        directions = _check_names("--direction", [self.direction], _DIRECTIONS)
        if directions == ["both"]:
            directions = ["forward", "backward"]
        op = check_op(self.op)
        dtype = self.dtype or ("float32,bfloat16,float16" if suite else "float32")
        dtypes = _check_names("--dtype", [DTYPE_ALIASES.get(name, name) for name in dtype.split(",")], ITEMSIZE)
        names: Collection[str] = workloads.SUITES[benchmark_of(op).suite]
        if self.classes:
            names = _check_names("--classes", self.classes.split(","), names)
        for option, value in (("--rows", self.rows), ("--cols", self.cols)):
            if suite and value is not None:
                raise BadParameter("the suite has its own shapes; omit --suite and --classes", param_hint=option)
        if suite:
            classes = [shape_class for name, shape_class in SHAPE_CLASSES.items() if name in names]
            return workloads.make_workloads(classes, op, directions, dtypes, 1 if accelerated else workloads.CPU_SHRINK)
        if self.host:
            return []
        rows, cols = workloads.GRID if accelerated else workloads.CPU_GRID
        grid = workloads.grid(self.rows or rows, cols if self.cols is None else _parse_cols(self.cols))
        return workloads.make_workloads([grid], op, directions, dtypes)

    def select_providers(self, entry: OpBenchmark, accelerated: bool) -> list[Provider]:
        """Returns the providers to compare: by default, all that are installed and have the op."""
        from tridal.benchmarks.providers import PROVIDERS, Provider

        # A third party's op can have implementations of other providers.
        known = {**{name: Provider(name, distribution=None) for name in entry.functions}, **PROVIDERS}
        if self.providers:
            return [known[name] for name in _check_names("--providers", self.providers.split(","), known)]
        found = [provider for name, provider in known.items() if name in entry.functions and not provider.missing]
        return [provider for provider in found if accelerated or provider.on_cpu]


def _check_names(option: str, names: Iterable[str], known: Collection[str]) -> list[str]:
    names = [name.strip() for name in names]
    for name in names:
        if name not in known:
            message = f"{name!r} is unknown{nearest(name, known)} (known: {', '.join(known)})"
            raise BadParameter(message, param_hint=option)
    return names


def _parse_cols(text: str) -> Sequence[int]:
    cols: Sequence[int] = ()
    with suppress(ValueError):
        if ":" in text:
            first, last, step = map(int, text.split(":"))
            cols = range(first, last + 1, step)
        else:
            cols = [int(part) for part in text.split(",")]
    if not cols or min(cols) < 1:
        raise BadParameter(f"{text!r}: expected widths such as 256,781 or 256:12672:128", param_hint="--cols")
    return cols
