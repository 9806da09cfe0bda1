"""`tridal check`: compares the kernels with float64 on one device, and shows the plans for other architectures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tridal.cli.op_option import OPS, Device, Json, check_op, choose_device, requested
from tridal.cli.output import FAIL, PASS, console, count, escape, print_json, table, track
from tridal.cli.plan import plan_as_dict, plan_table
from tridal.devices import registry, settings
from tridal.devices.types import Backend
from tridal.errors import DeviceUnavailableError, TridalError

if TYPE_CHECKING:
    from tridal.testing import Implementation, Result

_MAX_SHOWN = 20
"""The largest number of failures that are printed."""

_ALLOWED = 0.501e-4
"""Half a unit of the fourth decimal of the worked example, plus the rounding error of float32."""


def check(
    device: Device = None,
    whole_suite: Annotated[bool, typer.Option("--all", help="Also run the conformance suite of all ops.")] = False,
    op: Annotated[
        list[str] | None,
        typer.Option(help=f"Run the conformance suite of this op only. May be repeated. The ops: {OPS}."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Run only a few small cases of the suite, which together cover each pair of traits.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check the kernels on a device, or in Triton's interpreter if there is no accelerator.

    The exit code is 1 if a check fails.
    """
    from tridal import testing

    ops = [check_op(name) for name in op or ()]
    if quick and not (whole_suite or ops):
        raise typer.BadParameter("it limits the suite; add --all or --op", param_hint="--quick")
    backend, index, why = choose(device)
    out = console(quiet=as_json)
    with testing.implementation(backend, index=index) as implementation:
        name, chosen = backend.properties(index or 0).name, str(implementation.device)
        report: dict[str, Any] = {"backend": backend.name, "device": chosen, "name": name, "why": why}
        out.print(f"[bold]{name}[/], backend {backend.name}")
        out.print(f"[dim]{escape(why)}[/]", soft_wrap=True)
        report["unit_test"] = _run_unit_test(implementation, out)
        report["worked_example"] = _run_example(implementation, out)
    report["plans"] = _make_plans(out)
    passed = [result["passed"] for result in (*report["unit_test"]["results"], report["worked_example"])]
    if whole_suite or ops:
        suite, passed_in_suite = _run_suite(backend, ops or None, quick, out)
        report |= suite
        passed += passed_in_suite
    failed = passed.count(False)
    report["passed"] = failed == 0
    if as_json:
        print_json(report)
    if failed:
        out.print(f"\n{FAIL} {failed} of {len(passed)} checks, see the messages above", soft_wrap=True)
        raise typer.Exit(1)
    hint = "" if whole_suite or ops else "; `tridal check --all` runs the whole conformance suite"
    out.print(f"\n{PASS} all {len(passed)} checks passed{hint}", soft_wrap=True)


def choose(name: str | None) -> tuple[Backend, int | None, str]:
    """Chooses the backend to check for a device name. None means the device that the settings select.

    Returns the backend, the device index or None, and the reason for this choice. Raises DeviceUnavailableError if
    there is neither an accelerator nor an interpreter, and all errors of `choose_device`.
    """
    chosen = settings.current()
    why = requested(name, "--device") if name else requested(chosen.device, chosen.sources["device"])
    backend, device = choose_device(name)
    device_type, _, index = device.partition(":")
    if backend is not None:
        return backend, int(index) if index else None, why
    unserved = f"no backend computes {device} tensors ({why})"
    interpreter = next((backend for backend in registry.loaded() if backend.interpreted), None)
    if interpreter is None or interpreter.device_type != device_type:
        raise DeviceUnavailableError(f"nothing to check: {unserved}; `tridal doctor` shows what is missing")
    if (reason := interpreter.unavailable()) is not None:
        raise DeviceUnavailableError(
            f"nothing to check: {unserved}, and backend {interpreter.name!r} is not available: {reason}. "
            f"Requirements: {interpreter.install}"
        )
    return interpreter, None, f"Running the kernels in Triton's interpreter, because {unserved}"


def _run_unit_test(implementation: Implementation, out: Console) -> dict[str, Any]:
    """Compares the first op of the 1823 x 781 tensor of Triton's tutorial with float64, and with torch."""
    import torch

    from tridal import testing
    from tridal.ops import table
    from tridal.testing.cases import DIRECTIONS, TUTORIAL_SHAPE

    op = table.first()
    cases = [testing.Case(op.name, direction, TUTORIAL_SHAPE) for direction in DIRECTIONS]
    results = [testing.check(case, implementation) for case in track(cases, lambda case: case.name, "unit test")]
    rows, cols = TUTORIAL_SHAPE
    out.print(f"\n[bold]Unit test[/]: {op.name} of {rows} x {cols}")
    difference = None
    if op.torch_function is not None and all(result.passed for result in results):
        x = torch.randn(TUTORIAL_SHAPE, generator=torch.Generator().manual_seed(0)).to(implementation.device)
        difference = (implementation.function(op.name)(x, -1) - op.torch_function(x, -1)).abs().max().item()
        out.print(f"largest difference from torch.{op.name}: {difference:.3g}")
    for result in results:
        message = f": {escape(result.message)}" if result.message else ""
        compared = f"{result.name}, compared with float64 in {result.seconds:.2f} s{message}"
        out.print(f"{PASS if result.passed else FAIL} {compared}")
    checks = [asdict(result) for result in results]
    return {"shape": TUTORIAL_SHAPE, "difference_to_torch": difference, "results": checks}


def _run_example(implementation: Implementation, out: Console) -> dict[str, Any]:
    """Computes the first example of an op and its gradient that was calculated by hand, and compares them."""
    import torch

    from tridal import testing
    from tridal.ops import table as ops_table
    from tridal.testing.raised import raised

    start = time.perf_counter()
    op = next(op for op in ops_table.ops().values() if op.example is not None)
    x, dy, y, dx = map(torch.tensor, op.example or ())
    computed, error = [torch.zeros(0, 0)] * 2, float("nan")
    try:
        input = x.to(implementation.device).requires_grad_()
        result = implementation.function(op.name)(input, -1)
        (gradient,) = torch.autograd.grad(result, input, dy.to(implementation.device))
        computed = [result.detach().cpu(), gradient.cpu()]
        error = max(float((found - by_hand).abs().max()) for found, by_hand in zip(computed, (y, dx), strict=True))
        message = None if error <= _ALLOWED else f"{error:.2g} from the worked numbers, {_ALLOWED:.1g} allowed"
    except Exception as exception:  # an exception is a failure of the example
        message = raised(exception)
    shown = {"X": x.tolist(), "dY": dy.tolist(), "Y": computed[0].tolist(), "dX": computed[1].tolist()}
    out.print(f"\n[bold]Worked example[/]: Y = {op.name}(X), and the gradient dX for dY")
    lines = [
        (name if i == 0 else "", *(f"{number:8.4f}" for number in row))
        for name, numbers in shown.items()
        for i, row in enumerate(numbers)
    ]
    out.print(table(("", *(f"column {i}" for i in range(x.shape[1]))), lines))
    passed = f"{PASS} equal to the values calculated by hand, to four decimals"
    out.print(passed if message is None else f"{FAIL} {escape(message)}")
    name, seconds = f"worked {'x'.join(map(str, x.shape))} example", time.perf_counter() - start
    report = testing.Result(name, message is None, error, _ALLOWED, message, seconds)
    return {"y": shown["Y"], "dx": shown["dX"], **asdict(report)}


def _make_plans(out: Console) -> list[dict[str, Any]]:
    """Plans the unit test for the first architecture of each backend that compiles kernels. Prints the plans."""
    from tridal.ops import planning
    from tridal.testing.cases import TUTORIAL_SHAPE

    plans = []
    for arch, (backend, _) in planning.example_architectures().items():
        if backend.interpreted:
            continue
        try:
            planned = planning.planned(*TUTORIAL_SHAPE, arch=arch)
        except TridalError as error:
            plans.append({"backend": backend.name, "arch": arch, "plan": None, "problem": str(error)})
            out.print(f"\n[bold]No launch plan for {arch}[/]: {escape(str(error))}", soft_wrap=True)
        else:
            plans.append({"arch": arch, **plan_as_dict(*planned), "problem": None})
            out.print(f"\n[bold]Launch plan of the unit test on {planned[1].name}[/] (the device need not be present)")
            out.print(plan_table(*planned))
    return plans


def _run_suite(
    backend: Backend, ops: Sequence[str] | None, quick: bool, out: Console
) -> tuple[dict[str, Any], list[bool]]:
    """Checks the declarations, and runs the cases, or few if `quick`, of the ops whose declarations are right.

    Prints the results. Returns the report, and whether each check passed.
    """
    from tridal import testing
    from tridal.ops import table as ops_table
    from tridal.testing.raised import raised

    declarations = testing.check_declarations(
        ops, lambda checks: track(checks, lambda check: check[0], "checking declarations")
    )
    report: dict[str, Any] = {"declarations": [asdict(result) for result in declarations]}
    _show_failures(declarations, out)
    wrong = [result.name.partition(" ")[0] for result in declarations if not result.passed]
    skipped = dict.fromkeys(wrong, "its declaration is wrong")
    names = [name for name in ops or ops_table.ops() if name not in skipped]
    if names and not wrong:
        out.print(f"\n{PASS} {count(len(declarations), 'check')} of declarations", soft_wrap=True)
    faults = {}
    for name in names:
        try:
            testing.cases(backend, [name])
        except Exception as error:  # of the declaration of a third party
            faults[name] = raised(error)
    suite: list[Result] = []
    if names := [name for name in names if name not in faults]:
        cases = testing.quick_cases(backend, names) if quick else testing.cases(backend, names)
        suite = [testing.run_case(case, backend) for case in track(cases, lambda case: case.name, "conformance")]
        _show_suite(suite, out)
        report["suite"] = [asdict(result) for result in suite]
    origins = {entry.name: entry.origin for entry in ops_table.registered()}
    report["skipped"] = skipped | faults
    for name, why in report["skipped"].items():
        out.print(f"{FAIL} the suite skipped {name} ({origins[name]}): {escape(why)}", soft_wrap=True)
    return report, [result.passed for result in (*declarations, *suite)] + [False] * len(faults)


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
