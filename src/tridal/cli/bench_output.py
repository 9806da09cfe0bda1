"""Output of `tridal bench`: writes the files, and prints the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tridal.cli.output import console, escape, print_json, table

_MAX_LINES = 16  # of one table in the terminal


def report_results(document: Mapping[str, Any], folder: Path, as_json: bool) -> None:
    """Writes the results of a run (see `results.document`) to files, and prints them as tables or as JSON."""
    from tridal.benchmarks import plots, report, results

    files = results.save(document, folder)
    try:
        plot_files = plots.write_plots(document, folder)
    except ImportError:
        plot_files = []
        console(stderr=True).print("no plots: matplotlib is not installed (pip install 'tridal\\[bench]')")
    markdown = folder / "results.md"
    markdown.write_text(report.markdown(document, plot_files))
    if as_json:
        print_json(document)
        return
    out, machine = console(), document["machine"]
    out.print(f"[bold]{escape(machine['name'])}[/], {report.describe_conditions(machine)}")
    _print_tables(document["measurements"], document["host"])
    names = ", ".join(file.name for file in (*files, markdown, *plot_files))
    out.print(f"\nfiles written to {folder}/: {names}", soft_wrap=True)


def _print_tables(rows: Sequence[dict[str, Any]], host_rows: Sequence[dict[str, Any]]) -> None:
    from tridal.benchmarks import report
    from tridal.benchmarks.providers import COPY

    out = console()
    names = report.providers(rows, skipped=False)
    grid = [row for row in rows if row["group"] == "grid"]
    suite = [row for row in rows if row["group"] != "grid"]
    for title, block in report.blocks(grid):
        headings, lines = report.shape_table(block, [COPY, *names], "gbps")
        step = -(-len(lines) // _MAX_LINES)
        _print_table(f"[bold]{title}[/], GB/s of useful traffic", headings, lines[::step])
        if step > 1:
            out.print(f"[dim]every {step}th of {len(lines)} shapes; the files contain all of them[/]")
    if suite:
        title = "[bold]Share of copy[/]'s rate, geometric mean of each class"
        _print_table(title, *report.class_table(suite, names), text_columns=3)
        shortfalls = list(report.shortfalls(suite))
        for shortfall in shortfalls[:_MAX_LINES]:
            out.print(f"[yellow]below the aim[/] {shortfall}", soft_wrap=True)
        if len(shortfalls) > _MAX_LINES:
            out.print(f"[dim]and {len(shortfalls) - _MAX_LINES} more; results.md lists all of them[/]")
    if host_rows:
        _print_table("[bold]Host time of a call on 8x128[/], microseconds", *report.host_table(host_rows))
    for name, reason, count in report.skip_reasons([*rows, *host_rows]):
        out.print(f"[dim]skipped {count} times: {name}: {escape(reason)}[/]", soft_wrap=True)


def _print_table(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]], text_columns: int = 1) -> None:
    """Prints a table. The first `text_columns` columns hold text; the others hold numbers."""
    result = table(*headings, right=tuple(headings[text_columns:]))
    for line in lines:
        result.add_row(*line)
    console().print(f"\n{title}")
    console().print(result)
