"""A result of benchmarks/models.py, and its line of text."""

from __future__ import annotations

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
