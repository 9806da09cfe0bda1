"""`tridal bench`: measures implementations of an op, and `copy_`, on the same shapes."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from tridal.cli.bench_options import BenchOptions
from tridal.cli.bench_output import report_results
from tridal.cli.output import console, progress_bar
from tridal.devices import registry, settings

if TYPE_CHECKING:
    import torch

    from tridal.benchmarks.providers import Provider
    from tridal.benchmarks.results import Row
    from tridal.benchmarks.workloads import Workload


def bench(**values: Any) -> None:
    """Compare implementations of an op with `copy_` on the same shapes.

    The results are written to a folder, as tables, CSV, JSON and plots.
    """
    import torch

    from tridal.benchmarks import measuring, results
    from tridal.pytorch.devices import TORCH_TYPES

    options = BenchOptions(**values)
    if options.source is not None:
        report_results(results.load(options.source), options.output, options.as_json)
        return
    backend, name = registry.resolve(options.device or settings.current().device, TORCH_TYPES)
    device = torch.device(name)
    accelerated = measuring.is_accelerator(device)
    workloads, providers = options.make_workloads(accelerated), options.select_providers(accelerated)
    with _sigterm_as_interrupt(), settings.use(device=options.device) if options.device else nullcontext():
        host_rows = list(measuring.measure_host_times(providers, device, options.op)) if options.host else []
        document = partial(results.document, device, backend, providers, host_rows)
        rows = _measure(workloads, providers, device, lambda rows: results.save_partial(document(rows), options.output))
        report_results(document(rows), options.output, options.as_json)


# Typer reads the command's options from this signature: one for each field of BenchOptions.
bench.__signature__ = inspect.signature(BenchOptions, eval_str=True)  # type: ignore[attr-defined]


def _measure(
    workloads: Sequence[Workload],
    providers: Sequence[Provider],
    device: torch.device,
    save_partial: Callable[[list[Row]], None],
) -> list[Row]:
    """Measures every provider on every workload, and shows a progress bar.

    Calls `save_partial` with all rows after each workload, in case the process is killed. After a KeyboardInterrupt,
    returns the rows measured so far.
    """
    from tridal.benchmarks import measuring

    rows: list[Row] = []
    with progress_bar() as progress:
        task = progress.add_task("", total=len(workloads) * (len(providers) + 1))
        try:
            for workload in workloads:
                progress.update(task, description=f"{workload.label} {workload.dtype} {workload.direction}")
                for row in measuring.measure(workload, providers, device):
                    rows.append(row)
                    progress.advance(task)
                save_partial(rows)
        except KeyboardInterrupt:
            console(stderr=True).print("interrupted: the results so far are kept")
    return rows


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Turns the first SIGTERM into a KeyboardInterrupt, and ignores further ones.

    `timeout` sends two. The second must not interrupt the writing of the results.
    """

    def interrupt(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
