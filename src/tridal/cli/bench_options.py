"""The options of `tridal bench`, and the workloads and providers that they select."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from typer import BadParameter, Option

from tridal.cli.op_option import CLASSES, DTYPES, MEASURED_OPS, Device, Json
from tridal.cli.op_option import PROVIDERS as PROVIDER_NAMES
from tridal.devices.types import DTYPE_ALIASES, ITEMSIZE
from tridal.errors import TridalError, nearest

if TYPE_CHECKING:
    from tridal.benchmarks.op_benchmark import OpBenchmark
    from tridal.benchmarks.providers import Provider
    from tridal.benchmarks.workloads import Workload

_OPTIONS_OF_FROM = ("source", "output", "overwrite", "as_json")
_HOST_ADVICE = "--host measures calls on 8x128 in float32, without and with gradient; omit one of them, or add --suite"


@dataclass(frozen=True)
class BenchOptions:
    """The command-line options as the user gave them, with one field for each option."""

    op: Annotated[str | None, Option(help=f"The op: {MEASURED_OPS}. Default: the first one.")] = None
    rows: Annotated[int | None, Option(min=1, help="Rows of the grid's shapes. Default: 4096, or 256 on a CPU.")] = None
    cols: Annotated[
        str | None,
        Option(
            help="Columns of the grid's shapes: a list (256,781) or a range (FIRST:LAST:STEP). "
            "Default: 256:12672:128, or 256,781,1024 on a CPU."
        ),
    ] = None
    suite: Annotated[
        bool, Option("--suite", help="Measure classes of shapes instead of the grid, with fewer rows on a CPU.")
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
            "Default: all that are installed and support the op; fewer on a CPU."
        ),
    ] = None
    device: Device = None
    host: Annotated[bool, Option("--host", help="Measure the host time of a call instead of the grid.")] = False
    output: Annotated[
        Path | None, Option(help="The folder for the files. Default: a new folder in bench-results/.")
    ] = None
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the results in the folder of --output.")] = False
    source: Annotated[
        Path | None,
        Option("--from", metavar="FILE", help="Make tables and plots from this results.json instead of measuring."),
    ] = None
    as_json: Json = False

    @property
    def _suite(self) -> bool:
        return self.suite or self.classes is not None

    def check_combinations(self) -> None:
        """Raises typer.BadParameter for an option that has no effect beside the others."""
        measuring = [name for name in inspect.signature(type(self)).parameters if name not in _OPTIONS_OF_FROM]
        for chosen, advice, names in (
            (self.source is not None, "--from measures nothing; omit one of them", measuring),
            (self._suite, "the suite has its own shapes; omit --suite and --classes", ("rows", "cols")),
            (self.host and not self._suite, _HOST_ADVICE, ("rows", "cols", "dtype", "direction")),
            (self.output is None, "name the folder with --output", ("overwrite",)),
        ):
            for name in names:
                if chosen and getattr(self, name) != getattr(type(self), name):
                    raise BadParameter(advice, param_hint=f"--{name}")

    def make_workloads(self, op: str, entry: OpBenchmark, accelerated: bool) -> list[Workload]:
        """Makes the workloads of the suite or of the grid; none with --host alone. A CPU gets smaller shapes."""
        from tridal.benchmarks import workloads

        names = _check_names("--direction", self.direction, (*workloads.DIRECTIONS, "both"))
        directions = [direction for direction in entry.traffic if direction in names or "both" in names]
        if not directions:
            raise BadParameter(f"{op} has no gradient", param_hint="--direction")
        dtypes = _check_names(
            "--dtype", self.dtype or ("float32,bfloat16,float16" if self._suite else "float32"), ITEMSIZE, DTYPE_ALIASES
        )
        known = workloads.SUITES[entry.suite]
        chosen = _check_names("--classes", self.classes, known) if self.classes else known
        if self._suite:
            classes = [shape_class for name, shape_class in workloads.SHAPE_CLASSES.items() if name in chosen]
            shrink = 1 if accelerated else workloads.CPU_SHRINK
            return workloads.make_workloads(classes, op, directions, dtypes, shrink)
        if self.host:
            return []
        rows, cols = workloads.GRID if accelerated else workloads.CPU_GRID
        grid = workloads.grid(self.rows or rows, cols if self.cols is None else _parse_cols(self.cols))
        return workloads.make_workloads([grid], op, directions, dtypes)

    def select_providers(self, op: str, entry: OpBenchmark, accelerated: bool) -> list[Provider]:
        """Chooses the providers to compare: by default, all that are installed and have the op.

        Raises:
            typer.BadParameter: a provider is unknown, or none of those in --providers has the op.
            TridalError: a provider in --providers is not installed.
        """
        from tridal.benchmarks.providers import PROVIDERS, Provider

        # A third party's op can have implementations of other providers.
        known = {**{name: Provider(name, distribution=None) for name in entry.functions}, **PROVIDERS}
        if not self.providers:
            found = [provider for name, provider in known.items() if name in entry.functions and not provider.missing]
            return [provider for provider in found if accelerated or provider.on_cpu]
        chosen = [known[name] for name in _check_names("--providers", self.providers, known)]
        for provider in chosen:
            if provider.missing:
                raise TridalError(f"--providers: {provider.name}: {provider.missing}")
        if not any(provider.name in entry.functions for provider in chosen):
            raise BadParameter(
                f"{self.providers!r} has no {op} (known: {', '.join(entry.functions)})", param_hint="--providers"
            )
        return chosen


def _check_names(
    option: str, text: str, known: Collection[str], aliases: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Returns the names in a comma-separated list, each once. Raises typer.BadParameter if one is not known."""
    names = [aliases.get(name, name) for name in map(str.strip, text.split(","))]
    for name in names:
        if name not in known:
            message = f"{name!r} is unknown{nearest(name, known)} (known: {', '.join(known)})"
            raise BadParameter(message, param_hint=option)
    return list(dict.fromkeys(names))


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
