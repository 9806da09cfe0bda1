"""`tridal check`: proves here that the kernels compute what they should, and shows how they would run elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tridal.cli.output import FAIL, PASS, console, escape, print_json, table
from tridal.cli.plan import as_data, described, make
from tridal.devices import registry, settings
from tridal.errors import DeviceUnavailableError, TridalError

if TYPE_CHECKING:
    from tridal.devices.types import Backend
    from tridal.testing import Result, Worked

_SHOWN = 20  # failures that are shown in full


def check(
    device: Annotated[
        str | None, typer.Option(help="The device to check; default: the one that the settings choose.")
    ] = None,
    whole_suite: Annotated[bool, typer.Option("--all", help="Run the whole conformance suite.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the kernels on a device; without an accelerator, in Triton's interpreter. Exit code 1 if anything fails."""
    from tridal import testing

    backend, index, why = choose(device)
    with testing.subject(backend, index=index) as subject:
        unit = _unit_test(subject)
        worked = testing.worked_example(subject)
    report: dict[str, Any] = {
        "backend": backend.name,
        "device": str(subject.device),
        "name": backend.properties(index or 0).name,
        "why": why,
        "unit_test": unit,
        "worked_example": {"y": worked.y, "dx": worked.dx, **asdict(worked.result)},
    }
    if not as_json:
        _show_device(report)
        _show_unit_test(unit)
        _show_example(worked)
    report["plans"] = _plans(show=not as_json)
    results = [*unit["results"], asdict(worked.result)]
    if whole_suite:
        suite = _run_suite(backend)
        report["suite"] = [asdict(result) for result in suite]
        results += report["suite"]
        if not as_json:
            _show_suite(suite)
    report["passed"] = all(result["passed"] for result in results)
    if as_json:
        print_json(report)
    else:
        _show_verdict(report["passed"], len(results), whole_suite)
    if not report["passed"]:
        raise typer.Exit(1)


def choose(name: str | None) -> tuple[Backend, int | None, str]:
    """The backend and the device index to check, and why it is that one.

    Raises DeviceUnavailableError where there is neither an accelerator nor an interpreter, and what `registry` raises
    for a name that is none.
    """
    from tridal.pytorch.devices import TORCH_TYPES

    asked = (
        f"--device {name}"
        if name
        else f"device: {settings.current().device}, by {settings.current().sources['device']}"
    )
    backend, place = registry.resolve(name or settings.current().device, TORCH_TYPES)
    if backend is not None:
        _, _, index = place.partition(":")
        return backend, int(index) if index else None, asked
    interpreter = next(
        (e.backend for e in registry.registered() if e.backend is not None and e.backend.interpreted), None
    )
    why = f"{asked}; no backend serves {place} tensors unasked"
    if interpreter is None or interpreter.device_type != place.partition(":")[0]:
        raise DeviceUnavailableError(
            f"nothing to check: {why}, so torch computes them; `tridal doctor` says what is missing"
        )
    if (reason := registry.unavailable(interpreter)) is not None:
        raise DeviceUnavailableError(
            f"nothing to check: {why}, and the {interpreter.name} is not available: {reason}. "
            f"To get it: {interpreter.install}"
        )
    return interpreter, None, f"{why}, so the kernels run in Triton's {interpreter.name}"


def _unit_test(subject: Any) -> dict[str, Any]:
    """The unit test of Triton's tutorials: 1823 x 781, against torch on the same device and against float64."""
    import torch

    from tridal import testing
    from tridal.testing.cases import DIRECTIONS, UNIT_TEST

    results = [testing.check(testing.Case("softmax", direction, UNIT_TEST), subject) for direction in DIRECTIONS]
    difference = None
    if all(result.passed for result in results):
        x = torch.randn(UNIT_TEST, generator=torch.Generator().manual_seed(0)).to(subject.device)
        difference = (subject.softmax(x, -1) - torch.softmax(x, -1)).abs().max().item()
    return {"shape": UNIT_TEST, "difference_to_torch": difference, "results": [asdict(result) for result in results]}


def _plans(show: bool) -> list[dict[str, Any]]:
    """The unit test's plan on one architecture of every backend that compiles."""
    from tridal.testing.cases import UNIT_TEST

    found = []
    for entry in registry.registered():
        if entry.backend is None or entry.problem or entry.backend.interpreted:
            continue
        arch = next(iter(entry.backend.architectures()), None)
        if arch is None:
            continue
        try:
            made = make(*UNIT_TEST, arch=arch)
        except TridalError as error:
            found.append({"backend": entry.name, "arch": arch, "plan": None, "problem": str(error)})
            if show:
                console().print(f"\n[bold]Launch plan for {arch}[/]: {escape(str(error))}", soft_wrap=True)
            continue
        found.append({"arch": arch, **as_data(*made), "problem": None})
        if show:
            console().print(f"\n[bold]Launch plan on {made[1].name}[/] (which needn't be here)")
            console().print(described(*made))
    return found


def _run_suite(backend: Backend) -> list[Result]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tridal import testing

    cases = testing.cases(backend)
    columns = (
        TextColumn("conformance"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    results = []
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(task, description=case.name)
            results.append(testing.run_case(case, backend))
            progress.advance(task)
    return results


def _show_device(report: dict[str, Any]) -> None:
    console().print(f"[bold]{report['name']}[/], backend {report['backend']}")
    console().print(f"[dim]{escape(report['why'])}[/]", soft_wrap=True)


def _show_unit_test(unit: dict[str, Any]) -> None:
    out = console()
    rows, cols = unit["shape"]
    out.print(f"\n[bold]Unit test[/] softmax of {rows} x {cols}")
    if unit["difference_to_torch"] is not None:
        out.print(f"largest difference to torch.softmax: {unit['difference_to_torch']:.3g}")
    for result in unit["results"]:
        verdict, message = PASS if result["passed"] else FAIL, escape(result["message"] or "")
        out.print(f"{verdict} {result['name']}, against float64 in {result['seconds']:.2f} s {message}")


def _show_example(worked: Worked) -> None:
    from tridal.testing import example

    out = console()
    out.print("\n[bold]Worked example[/] softmax and its gradient, by hand")
    rows = table("", *[f"column {i}" for i in range(len(example.X[0]))])
    for name, numbers in (("X", example.X), ("dY", example.DY), ("Y", worked.y), ("dX", worked.dx)):
        for i, row in enumerate(numbers):
            rows.add_row(name if i == 0 else "", *[f"{number:8.4f}" for number in row])
    out.print(rows)
    out.print(
        f"{PASS} as worked out by hand" if worked.result.passed else f"{FAIL} {escape(worked.result.message or '')}"
    )


def _show_suite(results: list[Result]) -> None:
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        op, direction, _ = result.name.split(" ", 2)
        groups.setdefault((op, direction), []).append(result)
    summary = table(
        "op", "direction", "passed", "failed", "nearest to its bound", "seconds", right=("passed", "failed", "seconds")
    )
    for (op, direction), group in sorted(groups.items()):
        failed = [result for result in group if not result.passed]
        share, name = max((r.error / r.tolerance, r.name) for r in group if r.tolerance) if not failed else (1, "")
        summary.add_row(
            op, direction, str(len(group) - len(failed)), f"[red]{len(failed)}[/]" if failed else "0",
            f"{share:.0%} [dim]{name.removeprefix(f'{op} {direction} ')}[/]" if not failed else "exceeded",
            f"{sum(result.seconds for result in group):.1f}",
        )  # fmt: skip
    out = console()
    out.print("\n[bold]Conformance suite[/] against float64")
    out.print(summary)
    failures = [result for result in results if not result.passed]
    for result in failures[:_SHOWN]:
        out.print(f"{FAIL} {result.name}: {escape(result.message or '')}", soft_wrap=True)
    if len(failures) > _SHOWN:
        out.print(f"and {len(failures) - _SHOWN} more: --json has all")


def _show_verdict(passed: bool, checks: int, whole_suite: bool) -> None:
    more = "" if whole_suite else "; `tridal check --all` runs the whole conformance suite"
    console().print(f"\n{PASS} all {checks} checks passed{more}" if passed else f"\n{FAIL} see above", soft_wrap=True)
