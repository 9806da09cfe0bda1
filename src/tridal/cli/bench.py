"""`tridal bench`: measures implementations of an op, and `copy_`, on the same shapes; writes and prints the results."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Option

from tridal.cli.op_option import CLASSES, DEVICES, DTYPES, OPS, PROVIDERS, check_op
from tridal.cli.output import console, escape, print_json, progress_bar, table
from tridal.devices import registry, settings
from tridal.devices.types import DTYPE_ALIASES, ITEMSIZE
from tridal.errors import nearest

if TYPE_CHECKING:
    import torch

    from tridal.benchmarks.providers import Provider
    from tridal.benchmarks.results import Rows
    from tridal.benchmarks.workloads import Workload

_MAX_LINES = 16  # maximum number of lines of a table in the terminal


@dataclass(frozen=True)
class BenchOptions:
    """The command-line options as the user gave them, with one field for each option."""

    rows: Annotated[int | None, Option(min=1, help="Rows of the grid's shapes. Default: 4096, or 256 on a CPU.")] = None
    cols: Annotated[
        str | None,
        Option(
            help="Columns of the grid's shapes: a list (256,781) or a range (FIRST:LAST:STEP). "
            "Default: 256:12672:128, or 256,781,1024 on a CPU."
        ),
    ] = None
    dtype: Annotated[
        str | None,
        Option(help=f"Comma-separated dtypes of {DTYPES}. Default: float32; with --suite also bfloat16 and float16."),
    ] = None
    op: Annotated[str, Option(help=f"The op: {OPS}.")] = "softmax"
    direction: Annotated[str, Option(help="forward, backward or both.")] = "both"
    providers: Annotated[
        str | None,
        Option(
            help=f"Comma-separated implementations of {PROVIDERS}. Default: all that are installed and suit the op; "
            "fewer on a CPU."
        ),
    ] = None
    device: Annotated[
        str | None, Option(help=f"The device to measure on: {DEVICES}. Default: the device chosen by the settings.")
    ] = None
    suite: Annotated[bool, Option("--suite", help="Measure classes of shapes instead of the grid.")] = False
    classes: Annotated[str | None, Option(help=f"Comma-separated classes for --suite: {CLASSES}. Default: all.")] = None
    host: Annotated[bool, Option("--host", help="Measure the host time of a call instead of the grid.")] = False
    output: Annotated[Path, Option(help="The folder to write the files to.")] = Path("bench-results")
    source: Annotated[
        Path | None,
        Option("--from", metavar="FILE", help="Do not measure; make tables and plots of this results.json."),
    ] = None
    as_json: Annotated[bool, Option("--json", help="Print the results as JSON.")] = False

    def make_workloads(self, accelerated: bool) -> list[Workload]:
        """Returns the workloads of the suite or of the grid; none with --host alone. A CPU gets smaller shapes."""
        from tridal.benchmarks import workloads
        from tridal.benchmarks.workloads import SHAPE_CLASSES

        directions = _check_names("--direction", [self.direction], ("forward", "backward", "both"))
        if directions == ["both"]:
            directions = ["forward", "backward"]
        op = check_op(self.op)
        dtype = self.dtype or ("float32,bfloat16,float16" if self.suite else "float32")
        dtypes = _check_names("--dtype", [DTYPE_ALIASES.get(name, name) for name in dtype.split(",")], ITEMSIZE)
        names = _check_names("--classes", self.classes.split(","), SHAPE_CLASSES) if self.classes else SHAPE_CLASSES
        if self.suite:
            classes = [shape_class for name, shape_class in SHAPE_CLASSES.items() if name in names]
            return workloads.make_workloads(classes, op, directions, dtypes, 1 if accelerated else workloads.CPU_SHRINK)
        if self.host:
            return []
        rows, cols = workloads.GRID if accelerated else workloads.CPU_GRID
        grid = workloads.grid(self.rows or rows, cols if self.cols is None else _parse_cols(self.cols))
        return workloads.make_workloads([grid], op, directions, dtypes)

    def select_providers(self, accelerated: bool) -> list[Provider]:
        """Returns the providers to compare: by default, all that are installed and suit the op and the device."""
        from tridal.benchmarks.providers import PROVIDERS
        from tridal.ops import table

        if self.providers:
            return [PROVIDERS[name] for name in _check_names("--providers", self.providers.split(","), PROVIDERS)]
        op = table.op_named(check_op(self.op))
        found = [provider for provider in PROVIDERS.values() if not provider.missing and provider.includes(op)]
        return [provider for provider in found if accelerated or provider.on_cpu]


def bench(**values: Any) -> None:
    """Compare implementations of an op with `copy_` on the same shapes.

    The results are written to a folder, as tables, CSV, JSON and plots.
    """
    import torch

    from tridal.benchmarks import measuring, results
    from tridal.pytorch.devices import TORCH_TYPES

    options = BenchOptions(**values)
    if options.source is not None:
        _report(results.load(options.source), options)
        return
    if options.device:
        backend, name = registry.resolve(options.device, TORCH_TYPES, "--device: ")
    else:
        backend, name = registry.resolve_chosen(settings.current(), TORCH_TYPES)
    device = torch.device(name)
    accelerated = measuring.is_accelerator(device)
    workloads, providers = options.make_workloads(accelerated), options.select_providers(accelerated)
    with _sigterm_as_interrupt(), settings.use(device=options.device) if options.device else nullcontext():
        host_rows = list(measuring.measure_host_times(providers, device, options.op)) if options.host else []
        document = partial(results.document, device, backend, providers, host_rows)
        rows = _measure(workloads, providers, device, lambda rows: results.save_partial(document(rows), options.output))
        _report(document(rows), options)


# Typer reads the command's options from this signature: one for each field of BenchOptions.
bench.__signature__ = inspect.signature(BenchOptions, eval_str=True)  # type: ignore[attr-defined]


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


def _measure(
    workloads: Sequence[Workload], providers: Sequence[Provider], device: torch.device, save: Callable[[Rows], None]
) -> Rows:
    """Measures every provider on every workload, and shows a progress bar.

    Saves all rows after each workload, in case the process is killed. A KeyboardInterrupt keeps the rows so far.
    """
    from tridal.benchmarks import measuring

    rows = []
    with progress_bar() as progress:
        task = progress.add_task("", total=len(workloads) * (len(providers) + 1))
        try:
            for workload in workloads:
                progress.update(task, description=f"{workload.label} {workload.dtype} {workload.direction}")
                for row in measuring.measure(workload, providers, device):
                    rows.append(row)
                    progress.advance(task)
                save(rows)
        except KeyboardInterrupt:
            console(stderr=True).print("interrupted: the results so far are kept")
    return rows


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Turns the first SIGTERM into a KeyboardInterrupt, and ignores further ones.

    The command `timeout` sends two SIGTERMs. The second must not interrupt the writing of the results.
    """

    def interrupt(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _report(document: Mapping[str, Any], options: BenchOptions) -> None:
    """Writes the results of a run (see `results.document`) to files, and prints them as tables or as JSON."""
    from tridal.benchmarks import plots, report, results

    folder, machine, out = options.output, document["machine"], console()
    files = results.save(document, folder)
    try:
        plot_files = plots.write_plots(document, folder)
    except ImportError:
        plot_files = []
        console(stderr=True).print("no plots: matplotlib is not installed (pip install 'tridal\\[bench]')")
    markdown = folder / "results.md"
    markdown.write_text(report.markdown(document, plot_files))
    if options.as_json:
        print_json(document)
        return
    out.print(f"[bold]{escape(machine['name'])}[/], {report.describe_conditions(machine)}")
    _print_tables(document["measurements"], document["host"])
    names = ", ".join(file.name for file in (*files, markdown, *plot_files))
    out.print(f"\nfiles written to {folder}/: {names}", soft_wrap=True)


def _print_tables(rows: Rows, host_rows: Rows) -> None:
    from tridal.benchmarks import report
    from tridal.benchmarks.providers import COPY

    out, names = console(), report.providers(rows, skipped=False)
    for title, block in report.blocks([row for row in rows if row["group"] == "grid"]):
        headings, lines = report.shape_table(block, [COPY, *names], "gbps")
        step = -(-len(lines) // _MAX_LINES)
        _print_table(f"[bold]{title}[/], GB/s of useful traffic", headings, lines[::step])
        if step > 1:
            out.print(f"[dim]every {step}th of {len(lines)} shapes; the files contain all of them[/]")
    if suite := [row for row in rows if row["group"] != "grid"]:
        headings, lines = report.class_table(suite, names)
        _print_table("[bold]Share of copy[/]'s rate, geometric mean of each class", headings, lines, text_columns=3)
        shortfalls = list(report.shortfalls(suite))
        for shortfall in shortfalls[:_MAX_LINES]:
            out.print(f"[yellow]below the aim[/] {shortfall}", soft_wrap=True)
        if len(shortfalls) > _MAX_LINES:
            out.print(f"[dim]and {len(shortfalls) - _MAX_LINES} more; results.md lists all of them[/]")
    if host_rows:
        _print_table("[bold]Host time of a call on 8x128[/], microseconds", *report.host_table(host_rows))
    for name, reason, count in report.skip_reasons([*rows, *host_rows]):
        out.print(f"[dim]skipped {count} times: {name}: {escape(reason)}[/]", soft_wrap=True)


def _print_table(title: str, headings: Sequence[str], lines: Iterable[Sequence[str]], text_columns: int = 1) -> None:
    """Prints a table. The first `text_columns` columns hold text; the others hold numbers."""
    result = table(*headings, right=tuple(headings[text_columns:]))
    for line in lines:
        result.add_row(*line)
    console().print(f"\n{title}")
    console().print(result)
