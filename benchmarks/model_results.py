"""A result of benchmarks/models.py, its line of text, and a table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Result:
    """One measurement, or the reason why there is none."""

    model: str
    work: str
    """"training", "adamw", "graph" or "decoding"."""
    provider: str
    tokens_per_second: float | None = None
    milliseconds: float | None = None
    """The median time of a step, or of a new token."""
    times: list[float] = field(default_factory=list)
    """The time of each step, or of a new token in each step, in milliseconds."""
    peak_gib: float | None = None
    """The peak of allocated memory, with the weights. None on the CPU."""
    loss: float | None = None
    """The loss of the first step."""
    last_loss: float | None = None
    problem: str | None = None


def line(result: Result) -> str:
    """Returns a result as a line of text."""
    numbers = result.problem or f"{result.tokens_per_second:12,.0f} tokens/s {result.milliseconds:9.2f} ms"
    numbers += f" {result.peak_gib:7.2f} GiB" if result.peak_gib is not None else ""
    return f"{result.model:6} {result.work:9} {result.provider:37} {numbers}"


def table(results: Sequence[Result]) -> str:
    """Returns the results as a table in Markdown. The speed is also relative to that of the unchanged model."""
    lines = [
        "| work | provider | tokens/s | relative | ms | GiB | first and last loss |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    bases = {(r.model, r.work): r.tokens_per_second for r in results if r.provider == "unchanged"}
    for r in results:
        name = f"| {r.model}, {r.work} | {r.provider} |"
        if r.tokens_per_second is None:
            lines.append(f"{name} {r.problem} | | | | |")
            continue
        base = bases.get((r.model, r.work))
        relative = f"{r.tokens_per_second / base:.2f}" if base else ""
        memory = "" if r.peak_gib is None else f"{r.peak_gib:.1f}"
        losses = "" if r.loss is None else f"{r.loss:.3f}, {r.last_loss:.3f}"
        lines.append(f"{name} {r.tokens_per_second:,.0f} | {relative} | {r.milliseconds:.2f} | {memory} | {losses} |")
    return "\n".join(lines)
