"""The conformance suite in `tridal check`: runs the checks of declarations and the cases, and prints the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tridal.cli.output import FAIL, PASS, count, escape, table, track
from tridal.devices.types import Backend

if TYPE_CHECKING:
    from tridal.testing import Result

_MAX_SHOWN = 20
"""The largest number of failures that are printed."""


def run_suite(
    backend: Backend, ops: Sequence[str] | None, quick: bool, out: Console
) -> tuple[dict[str, Any], list[bool]]:
    """Checks the declarations, and runs the cases of the ops whose declarations are right. Prints the results.

    If `quick`, runs few cases.

    Returns the report, and whether each check passed.
    """
    from tridal import testing
    from tridal.ops import table as ops_table

    declarations = testing.check_declarations(
        ops, lambda checks: track(checks, lambda check: check[0], "checking declarations")
    )
    report: dict[str, Any] = {"declarations": [asdict(result) for result in declarations]}
    _show_failures(declarations, out)
    wrong = dict.fromkeys(_op(result) for result in declarations if not result.passed)
    skipped = dict.fromkeys(wrong, "its declaration is wrong")
    names = [name for name in ops or ops_table.ops() if name not in skipped]
    if names and not wrong:
        out.print(f"\n{PASS} {count(len(declarations), 'check')} of declarations", soft_wrap=True)
    faults = _faults(backend, names)
    suite: list[Result] = []
    names = [name for name in names if name not in faults]
    if names:
        cases = testing.quick_cases(backend, names) if quick else testing.cases(backend, names)
        suite = [testing.run_case(case, backend) for case in track(cases, lambda case: case.name, "conformance")]
        _show_suite(suite, out)
        report["suite"] = [asdict(result) for result in suite]
    origins = {entry.name: entry.origin for entry in ops_table.registered()}
    report["skipped"] = skipped | faults
    for name, why in report["skipped"].items():
        out.print(f"{FAIL} the suite skipped {name} ({origins[name]}): {escape(why)}", soft_wrap=True)
    return report, [result.passed for result in (*declarations, *suite)] + [False] * len(faults)


def _op(result: Result) -> str:
    return result.name.partition(" ")[0]


def _faults(backend: Backend, names: Sequence[str]) -> dict[str, str]:
    """Returns why the cases of an op cannot be made, by its name."""
    from tridal import testing
    from tridal.testing.raised import raised

    found = {}
    for name in names:
        try:
            testing.cases(backend, [name])
        except Exception as error:  # of the declaration of a third party
            found[name] = raised(error)
    return found


def _show_failures(results: Sequence[Result], out: Console) -> None:
    """Prints the first failures."""
    failures = [result for result in results if not result.passed]
    for result in failures[:_MAX_SHOWN]:
        out.print(f"{FAIL} {result.name}: {escape(result.message or '')}", soft_wrap=True)
    if len(failures) > _MAX_SHOWN:
        out.print(f"and {len(failures) - _MAX_SHOWN} more; the option --json lists them all")


def _show_suite(results: Sequence[Result], out: Console) -> None:
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        op, direction, _ = result.name.split(" ", 2)
        groups.setdefault((op, direction), []).append(result)
    lines = []
    for (op, direction), group in sorted(groups.items()):
        failed = sum(not result.passed for result in group)
        largest = "see below"
        if not failed:
            share, name = max((r.error / r.tolerance, r.name) for r in group if r.tolerance)
            largest = f"{share:.0%} [dim]{name.removeprefix(f'{op} {direction} ')}[/]"
        shown_failed = f"[red]{failed}[/]" if failed else "0"
        seconds = f"{sum(result.seconds for result in group):.1f}"
        lines.append((op, direction, str(len(group) - failed), shown_failed, largest, seconds))
    headings = ("op", "direction", "passed", "failed", "largest error, in % of its tolerance", "seconds")
    out.print("\n[bold]Conformance suite[/], compared with float64")
    out.print(table(headings, lines, right=("passed", "failed", "seconds")))
    _show_failures(results, out)
