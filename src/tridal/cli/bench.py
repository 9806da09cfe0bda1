"""`tridal bench`: tridal and other softmaxes against `copy_`, as tables, files and pictures."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tridal.cli.output import console, escape, print_json, table
from tridal.devices import registry, settings
from tridal.devices.types import ITEMSIZE
from tridal.errors import nearest

if TYPE_CHECKING:
    import torch

    from tridal.benchmarks.points import Direction, Point
    from tridal.benchmarks.providers import Provider
    from tridal.devices.types import Backend

_SHOWN = 16  # lines of a table in the terminal
_DIRECTIONS: Mapping[str, Sequence[Direction]] = {
    "forward": ("forward",),
    "backward": ("backward",),
    "both": ("forward", "backward"),
}
_OPS = ("softmax", "log_softmax")


def bench(
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of the grid; default 4096, on a CPU 256.")] = None,
    cols: Annotated[
        str | None, typer.Option(help="Columns of the grid: 256,781 or FIRST:LAST:STEP; default 256:12672:128.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Comma-separated; default float32, for the suite all of 32 and 16 bits.")
    ] = None,
    op: Annotated[str, typer.Option(help="softmax or log_softmax.")] = "softmax",
    direction: Annotated[str, typer.Option(help="forward, backward or both.")] = "both",
    providers: Annotated[str | None, typer.Option(help="Comma-separated; default all that are installed.")] = None,
    device: Annotated[str | None, typer.Option(help="Default: the one that the settings choose.")] = None,
    suite: Annotated[bool, typer.Option("--suite", help="Measure the classes of shapes instead of the grid.")] = False,
    classes: Annotated[str | None, typer.Option(help="Comma-separated classes of the suite; default all.")] = None,
    host: Annotated[bool, typer.Option("--host", help="Measure the host time of a call instead of the grid.")] = False,
    output: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("bench-results"),
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Measure nothing: draw from a results.json again.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Measure softmaxes against `copy_` on the same shapes; write tables, CSV, JSON and pictures to a folder."""
    from tridal.benchmarks import points, results

    if source is not None:
        _finish(results.load(source), output, as_json)
        return
    directions = _DIRECTIONS[_one_of("--direction", direction, _DIRECTIONS)]
    _one_of("--op", op, _OPS)
    dtypes = _several("--dtype", dtype or ("float32,bfloat16,float16" if suite else "float32"), ITEMSIZE)
    chosen_classes = [found for found in points.CLASSES if found.name in _classes(classes)]
    place, backend = _device(device)
    accelerated = _accelerated(place)
    chosen = _providers(providers, accelerated)
    with _terminable(), settings.use(device=device) if device else nullcontext():
        asked: list[Point] = []
        if suite:
            shrink = 1 if accelerated else points.HOST_SHRINK
            asked = points.suite(chosen_classes, op, directions, dtypes, shrink)
        elif not host:
            widths = _widths(cols) or (points.GRID_COLS if accelerated else points.HOST_COLS)
            asked = points.grid(
                rows or (points.GRID_ROWS if accelerated else points.HOST_ROWS), widths, op, directions, dtypes
            )
        timed = _host(chosen, place, op) if host else []

        def document(measured: list[dict[str, Any]]) -> dict[str, Any]:
            return results.document(place, backend, chosen, measured, timed)

        measured = _measure(asked, chosen, place, lambda rows: results.keep(document(rows), output))
        _finish(document(measured), output, as_json)


def _measure(
    asked: Sequence[Point],
    chosen: Sequence[Provider],
    place: torch.device,
    keep: Callable[[list[dict[str, Any]]], None],
) -> list[dict[str, Any]]:
    """Measures every point; what is measured when a person interrupts, or a batch system's time is up, is kept.

    And after each point, by `keep`, whatever ends the process.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tridal.benchmarks.measuring import measure
    from tridal.benchmarks.results import row

    rows: list[dict[str, Any]] = []
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(asked) * (len(chosen) + 1))
        try:
            for point in asked:
                progress.update(task, description=f"{point.label} {point.dtype} {point.direction}")
                for measurement in measure(point, chosen, place):
                    rows.append(row(measurement))
                    progress.advance(task)
                keep(rows)
        except KeyboardInterrupt:
            console(stderr=True).print("interrupted: what was measured so far is kept")
    return rows


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does, once: `timeout` sends two, and the second comes while results are written."""

    def interrupt(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _host(chosen: Sequence[Provider], place: torch.device, op: str) -> list[dict[str, Any]]:
    from tridal.benchmarks.measuring import host_times, reason
    from tridal.benchmarks.results import host_row

    rows = []
    for provider in chosen:
        for grad in (False, True):
            try:
                timing, why = host_times(provider, place, op, grad), None
            except Exception as error:
                timing, why = None, reason(error)
            rows.append(host_row(provider.name, grad, timing, why))
    return rows


def _finish(found: Mapping[str, Any], output: Path, as_json: bool) -> None:
    """Writes the files and prints what a person, or a script, wants to see."""
    from tridal.benchmarks import plots, report, results

    label = _label(found["machine"])
    written = results.save(found, output)
    try:
        pictures = plots.draw(found, label, output)
    except ImportError:
        pictures = []
        console(stderr=True).print("no pictures: matplotlib is not installed (pip install 'tridal\\[bench]')")
    (output / "results.md").write_text(report.markdown(found, label, pictures))
    if as_json:
        print_json(found)
        return
    out = console()
    out.print(f"[bold]{escape(found['machine']['name'])}[/], {label}")
    _show(found)
    names = [file.name for file in (*written, output / "results.md", *pictures)]
    out.print(f"\nwritten to {output}/: {', '.join(names)}", soft_wrap=True)


def _label(machine: Mapping[str, Any]) -> str:
    import torch

    place = torch.device(machine["device"])
    if _accelerated(place) or place.type != registry.HOST:
        return "useful traffic, L2 flushed between calls"
    how = f"in the {machine['backend']}" if machine["backend"] else "by torch"
    return f"a CPU, where tridal's tensors are computed {how}: says nothing of a GPU"


def _show(found: Mapping[str, Any]) -> None:
    from tridal.benchmarks import report, summary
    from tridal.benchmarks.providers import COPY

    out, rows = console(), found["measurements"]
    names = [name for name in summary.providers(rows) if summary.standing(rows, name).measured]
    for title, wanted in report.blocks([row for row in rows if row["group"] == "grid"]):
        out.print(f"\n[bold]{title}[/], GB/s of useful traffic")
        lines = report.by_shape(rows, [COPY, *names], "gbps", **wanted)
        step = -(-len(lines) // _SHOWN)
        _print_table(["shape", COPY, *names], lines[::step])
        if step > 1:
            out.print(f"[dim]every {step}th of {len(lines)} shapes; the files have all[/]")
    suite = [row for row in rows if row["group"] != "grid"]
    if suite:
        out.print("\n[bold]Share of copy[/], typical in each class (geometric mean)")
        _print_table(["class", "dtype", "direction", *names], report.by_class(suite, names), text=3)
        missed = list(summary.shortfalls(suite))
        for shortfall in missed[:_SHOWN]:
            out.print(f"[yellow]below[/] {report.said(shortfall)}", soft_wrap=True)
        if len(missed) > _SHOWN:
            out.print(f"[dim]and {len(missed) - _SHOWN} more: results.md has all[/]")
    if found["host"]:
        out.print("\n[bold]Host time of a call on 8x128[/], microseconds")
        _print_table(*report.host(found["host"]))
    for name, why, count in report.left_out([*rows, *found["host"]]):
        out.print(f"[dim]left out {count} times: {name}: {escape(why)}[/]", soft_wrap=True)


def _print_table(headings: Sequence[str], lines: Iterable[Sequence[str]], text: int = 1) -> None:
    """A table whose columns hold numbers, but for the first."""
    made = table(*headings, right=tuple(headings[text:]))
    for line in lines:
        made.add_row(*line)
    console().print(made)


def _device(name: str | None) -> tuple[torch.device, Backend | None]:
    import torch

    from tridal.pytorch.devices import TORCH_TYPES

    backend, place = registry.resolve(name or settings.current().device, TORCH_TYPES)
    return torch.device(place), backend


def _accelerated(place: torch.device) -> bool:
    from tridal.benchmarks.measuring import is_accelerator

    return is_accelerator(place)


def _providers(names: str | None, accelerated: bool) -> list[Provider]:
    from tridal.benchmarks.providers import PROVIDERS

    if names:
        return [PROVIDERS[name] for name in _several("--providers", names, PROVIDERS)]
    return [found for found in PROVIDERS.values() if not found.missing and (accelerated or found.on_cpu)]


def _classes(names: str | None) -> list[str]:
    from tridal.benchmarks.points import CLASSES

    known = [found.name for found in CLASSES]
    return _several("--classes", names, known) if names else known


def _several(option: str, text: str, known: Iterable[str]) -> list[str]:
    return [_one_of(option, name.strip(), known) for name in text.split(",")]


def _one_of(option: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    if name not in names:
        raise typer.BadParameter(
            f"{name!r} is unknown{nearest(name, names)} (known: {', '.join(names)})", param_hint=option
        )
    return name


def _widths(text: str | None) -> Sequence[int] | None:
    """The columns that `--cols` asks for."""
    if text is None:
        return None
    try:
        if ":" in text:
            first, last, step = (int(part) for part in text.split(":"))
            found: Sequence[int] = range(first, last + 1, step)
        else:
            found = [int(part) for part in text.split(",")]
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise typer.BadParameter(f"{text!r}: expected widths such as 256,781 or 256:12672:128", param_hint="--cols")
    return found
