"""`tridal bench`: measures implementations of an op, and `copy_`, on the same shapes; writes and prints the results."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from typer import Exit

from tridal.cli.bench_options import BenchOptions
from tridal.cli.op_option import choose_device, wrong_usage
from tridal.cli.output import console, count, escape, print_json, table, track
from tridal.devices import settings
from tridal.interrupts import EXIT_CODE

if TYPE_CHECKING:
    from tridal.benchmarks.results import Row


def bench(**values: Any) -> None:
    """Compare implementations of an op with `copy_` on the same shapes.

    Writes tables, CSV, JSON and plots to a new folder. Ctrl-C ends the run and keeps its results.
    """
    import torch

    from tridal.benchmarks import measuring, op_benchmark, results, timing
    from tridal.ops import table

    options = BenchOptions(**values)
    options.check_combinations()
    if options.source is not None:
        document = results.load(options.source)
        _report(document, results.make_folder(options.output, document["op"], options.overwrite), options.as_json)
        return
    op = options.op or table.first().name
    with wrong_usage("--op"):
        entry = op_benchmark.benchmark_of(op)
    backend, name = choose_device(options.device)
    device = torch.device(name)
    accelerated = timing.is_accelerator(device)
    workloads, providers = (
        options.make_workloads(op, entry, accelerated),
        options.select_providers(op, entry, accelerated),
    )
    folder = results.make_folder(options.output, op, options.overwrite)
    tasks: list[_Task] = []
    if options.host:
        tasks.append(("host", "host times", partial(measuring.measure_host_times, providers, device, op)))
    for workload in workloads:
        title = f"{workload.label} {workload.dtype} {workload.direction}"
        tasks.append(("measurements", title, partial(measuring.measure, workload, providers, device)))
    document = results.document(device, backend, providers, op, entry)
    with settings.use(device=options.device):
        _measure(tasks, document, folder)
        _report(document, folder, options.as_json)
    if document["interrupted"]:
        raise Exit(EXIT_CODE)


# Typer reads the command's options from this signature: one for each field of BenchOptions.
bench.__signature__ = inspect.signature(BenchOptions, eval_str=True)  # type: ignore[attr-defined]


_Task: TypeAlias = "tuple[str, str, Callable[[], list[Row]]]"
"""A list in the document, a title, and a function that returns rows for the list."""


def _measure(tasks: Sequence[_Task], document: dict[str, Any], folder: Path) -> None:
    """Adds the rows of each task to the document, and shows a progress bar.

    Saves all rows after each task, in case the process is killed. A KeyboardInterrupt keeps the rows so far.
    """
    from tridal.benchmarks import results

    done, warned = 0, False
    try:
        for kind, _, measure in track(tasks, lambda task: task[1]):
            document[kind] += measure()
            done += 1
            try:
                results.save_partial(document, folder)
            except results.ResultsError as error:
                if not warned:
                    print(error, file=sys.stderr)
                warned = True
    except KeyboardInterrupt:
        document["interrupted"] = True
    if document["interrupted"]:
        message = f"interrupted after {done} of {count(len(tasks), 'measurement')}"
        console(stderr=True).print(f"{message}: the results so far are kept" if done else message)


def _report(document: Mapping[str, Any], folder: Path, as_json: bool) -> None:
    """Writes the results of a run (see `results.document`) to files, and prints their means, or all of them as JSON."""
    from tridal.benchmarks import report, results

    if not (document["measurements"] or document["host"]):
        if not any(folder.iterdir()):
            folder.rmdir()
        return
    machine, out, error = document["machine"], console(), None
    try:
        files = _write(document, folder)
    except results.ResultsError as found:
        error = found
    if as_json:
        print_json(document)
    else:
        out.print(f"[bold]{escape(machine['name'])}[/], {escape(report.describe_conditions(machine))}")
        _print_tables(document)
    if error:
        raise error
    names = ", ".join(file.name for file in files)
    console(stderr=as_json).print(f"\nfiles written to {folder}/: {names}", soft_wrap=True)


def _write(document: Mapping[str, Any], folder: Path) -> list[Path]:
    from tridal.benchmarks import plots, report, results

    with results.writing(folder, "not all results are saved"):
        files = results.save(document, folder)
        try:
            pictures = plots.write_plots(document, folder)
        except ImportError:
            pictures = {}
            console(stderr=True).print("no plots: matplotlib is not installed (pip install 'tridal\\[bench]')")
        markdown = folder / "results.md"
        markdown.write_text(report.markdown(document, pictures))
    return [*files, markdown, *pictures]


def _print_tables(document: Mapping[str, Any]) -> None:
    """Prints the mean of each class of shapes, and host times. The files have the results of each shape."""
    from tridal.benchmarks import report
    from tridal.benchmarks.providers import COPY

    rows, host_rows, out = document["measurements"], document["host"], console()
    names = report.providers(rows, skipped=False)
    if report.has_shares(rows):
        _print_table("[bold]Share of copy[/]'s rate, geometric mean of the shapes", *report.class_table(rows, names))
    elif rows:
        tables = report.class_table(rows, [COPY, *names])
        _print_table("[bold]GB/s of useful traffic[/], geometric mean of the shapes", *tables)
    if missed := len([*report.shortfalls(rows, document["aims"])]):
        out.print(f"[yellow]{count(missed, 'result')} below the aim[/], listed in results.md")
    if host_rows:
        headings, lines = report.host_table(host_rows)
        _print_table("[bold]Host time of a call on 8x128[/], microseconds", headings, lines, text_columns=1)
    if noise := report.describe_noise(document):
        out.print(f"[yellow]{noise}[/]", soft_wrap=True)
    for name, reason, number in report.skip_reasons([*rows, *host_rows]):
        out.print(f"[dim]skipped {count(number, 'time')}: {escape(f'{name}: {reason}')}[/]", soft_wrap=True)


def _print_table(title: str, headings: Iterable[str], lines: Iterable[Iterable[str]], text_columns: int = 3) -> None:
    """Prints a table. The first `text_columns` columns hold text; the others hold numbers."""
    headings = [*map(escape, headings)]
    console().print(f"\n{title}")
    console().print(table(headings, (map(escape, line) for line in lines), right=headings[text_columns:]))
