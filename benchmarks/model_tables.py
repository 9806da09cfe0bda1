"""The results of benchmarks/models.py as lines and tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Result:
    """One measurement, or the reason why there is none."""

    model: str
    work: str
    """"training" or "decoding"."""
    provider: str
    tokens_per_second: float | None = None
    milliseconds: float | None = None
    """The median time of a step, or of a new token."""
    times: list[float] = field(default_factory=list)
    """The time of each step, or of a new token in each step, in milliseconds."""
    peak_gib: float | None = None
    """The peak of allocated memory, with the weights. None on the CPU."""
    loss: float | None = None
    problem: str | None = None


def line(result: Result) -> str:
    """Returns a result as a line of text."""
    numbers = result.problem or f"{result.tokens_per_second:12,.0f} tokens/s {result.milliseconds:9.2f} ms"
    numbers += f" {result.peak_gib:7.2f} GiB" if result.peak_gib is not None else ""
    return f"{result.model:6} {result.work:9} {result.provider:37} {numbers}"


def spread(result: Result) -> str:
    """Returns half of the range between the quartiles of the times, in percent of the median."""
    if len(result.times) < 2 or not result.milliseconds:
        return ""
    low, _, high = statistics.quantiles(result.times, n=4)
    return f"{50 * (high - low) / result.milliseconds:.1f}"


def markdown(results: Sequence[Result]) -> str:
    """Returns a table for each kind of work, with the speed of each provider relative to the unchanged model."""
    text = []
    unchanged = {(r.model, r.work): r.tokens_per_second for r in results if r.provider == "unchanged"}
    for work in dict.fromkeys(r.work for r in results):
        text += [f"| {work} | | tokens/s | ±% | relative | peak memory, GiB |", "|---|---|---|---|---|---|"]
        for r in (r for r in results if r.work == work):
            base = unchanged.get((r.model, work))
            if r.tokens_per_second is None:
                text.append(f"| {r.model} | {r.provider} | {r.problem} | | | |")
                continue
            relative = f"{r.tokens_per_second / base:.2f}" if base else ""
            peak = "" if r.peak_gib is None else f"{r.peak_gib:.1f}"
            text.append(
                f"| {r.model} | {r.provider} | {r.tokens_per_second:,.0f} | {spread(r)} | {relative} | {peak} |"
            )
        text.append("")
    return "\n".join(text)
