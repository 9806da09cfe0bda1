"""Rows and documents of results for tests of the benchmark's reports and pictures."""

from __future__ import annotations

from typing import Any

from tridal.benchmarks.measuring import make_row
from tridal.benchmarks.op_benchmark import benchmark_of
from tridal.benchmarks.providers import COPY
from tridal.benchmarks.results import Row
from tridal.benchmarks.timing import Timing
from tridal.benchmarks.workloads import Workload


def result_row(provider: str, share: float, workload: Workload) -> Row:
    """Returns a row in which a provider reaches a share of `copy_`'s rate."""
    traffic = benchmark_of(workload.op).traffic[workload.direction]
    ms = 1.0 if provider == COPY else traffic / 2 / share
    return make_row(workload, provider, traffic, Timing(1.0, 0.99, 1.01), Timing(ms, ms, ms))


def make_document(rows: list[Row], device: str = "x:0") -> dict[str, Any]:
    """Returns the document of a run with these rows."""
    machine = {"name": "A GPU", "device": device, "backend": None, "interpreted": False, "python": "3", "torch": "2"}
    return {
        "measurements": rows, "host": [], "machine": {**machine, "triton": "3", "tridal": "0"}, "op": "softmax",
        "providers": {"quack": "0.6"}, "command": "tridal bench", "date": "now", "interrupted": False,
        "aims": benchmark_of("softmax").aims, "passes": {"forward": 2, "backward": 3},
    }  # fmt: skip
