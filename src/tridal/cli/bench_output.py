"""Output of `tridal bench`: writes the files, and prints the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tridal.cli.output import console, escape, print_json, table
from tridal.devices import registry

_MAX_LINES = 16  # of one table in the terminal


def report_results(document: Mapping[str, Any], folder: Path, as_json: bool) -> None:
    """Writes the results to files and prints them.

    Args:
        document: the results of a run, as `results.document` and `results.load` return them.
        folder: the folder for the JSON, CSV, Markdown and plot files.
        as_json: whether to print the document as JSON instead of tables.
    """
    from tridal.benchmarks import plots, report, results

    machine = _describe_machine(document["machine"])
    files = results.save(document, folder)
    try:
        plot_files = plots.write_plots(document, machine, folder)
    except ImportError:
        plot_files = []
        console(stderr=True).print("no plots: matplotlib is not installed (pip install 'tridal\\[bench]')")
    markdown = folder / "results.md"
    markdown.write_text(report.markdown(document, machine, plot_files))
    if as_json:
        print_json(document)
        return
    out = console()
    out.print(f"[bold]{escape(document['machine']['name'])}[/], {machine}")
    _print_results(document)
    names = ", ".join(file.name for file in (*files, markdown, *plot_files))
    out.print(f"\nfiles written to {folder}/: {names}", soft_wrap=True)


def _describe_machine(machine: Mapping[str, Any]) -> str:
    import torch

    from tridal.benchmarks.measuring import is_accelerator

    device = torch.device(machine["device"])
    if is_accelerator(device) or device.type != registry.HOST:
        return "useful traffic, L2 flushed between calls"
    computes = f"backend {machine['backend']!r}" if machine["backend"] else "torch"
    return f"a CPU, where {computes} computes tridal's tensors; do not compare these figures with a GPU's"


def _print_results(document: Mapping[str, Any]) -> None:
    from tridal.benchmarks import report, summary

    out, rows, host_rows = console(), document["measurements"], document["host"]
    names = [name for name in summary.providers(rows) if summary.summarise(rows, name).measured]
    _print_grid([row for row in rows if row["group"] == "grid"], names)
    suite = [row for row in rows if row["group"] != "grid"]
    if suite:
        _print_suite(suite, names)
    if host_rows:
        out.print("\n[bold]Host time of a call on 8x128[/], microseconds")
        _print_table(*report.host_table(host_rows))
    for name, reason, count in report.skip_reasons([*rows, *host_rows]):
        out.print(f"[dim]skipped {count} times: {name}: {escape(reason)}[/]", soft_wrap=True)


def _print_grid(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    from tridal.benchmarks import report
    from tridal.benchmarks.providers import COPY

    out = console()
    for title, wanted in report.blocks(rows):
        out.print(f"\n[bold]{title}[/], GB/s of useful traffic")
        lines = report.by_shape(rows, [COPY, *names], "gbps", **wanted)
        step = -(-len(lines) // _MAX_LINES)
        _print_table(["shape", COPY, *names], lines[::step])
        if step > 1:
            out.print(f"[dim]every {step}th of {len(lines)} shapes; the files contain all of them[/]")


def _print_suite(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    from tridal.benchmarks import report, summary

    out = console()
    out.print("\n[bold]Share of copy[/]'s rate, geometric mean of each class")
    _print_table(["class", "dtype", "direction", *names], report.by_class(rows, names), text_columns=3)
    shortfalls = list(summary.shortfalls(rows))
    for shortfall in shortfalls[:_MAX_LINES]:
        out.print(f"[yellow]below the aim[/] {report.describe_shortfall(shortfall)}", soft_wrap=True)
    if len(shortfalls) > _MAX_LINES:
        out.print(f"[dim]and {len(shortfalls) - _MAX_LINES} more; results.md lists all of them[/]")


def _print_table(headings: Sequence[str], lines: Iterable[Sequence[str]], text_columns: int = 1) -> None:
    """Prints a table. The first `text_columns` columns hold text; the others hold numbers."""
    result = table(*headings, right=tuple(headings[text_columns:]))
    for line in lines:
        result.add_row(*line)
    console().print(result)
