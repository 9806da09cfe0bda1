"""The results of benchmarks/models.py as lines, tables and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


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


def plot(results: Sequence[Result], providers: Sequence[str], path: Path) -> None:
    """Draws the speed of each provider relative to the unchanged model, and the peak memory of training.

    Models and kinds of work without a measurement are left out.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(r.model for r in results if r.tokens_per_second))
    shown = [p for p in providers if any(r.provider == p and r.tokens_per_second for r in results)]
    found = {(r.model, r.work, r.provider): r for r in results if r.tokens_per_second}
    panels = [
        (f"{work}: {what}", work, key)
        for work, key, what in (
            ("training", "tokens_per_second", "tokens per second"),
            ("decoding", "tokens_per_second", "tokens per second"),
            ("training", "peak_gib", "peak memory"),
        )
        if any(r.work == work and getattr(r, key) for r in results)
    ]
    if not panels:
        return
    figure, rows = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4.5), layout="constrained", squeeze=False)
    for axis, (title, work, key) in zip(rows[0], panels, strict=True):
        for index, provider in enumerate(shown):
            heights = []
            for model in models:
                result, base = found.get((model, work, provider)), found.get((model, work, "unchanged"))
                value = getattr(result, key) if result and base else None
                heights.append(value / getattr(base, key) if value else 0.0)
            width = 0.8 / max(1, len(shown))
            axis.bar([m + index * width for m in range(len(models))], heights, width, label=provider)
        axis.axhline(1, color="grey", linewidth=0.8)
        axis.set_xticks([m + 0.4 for m in range(len(models))], models)
        axis.set_title(f"{title}, unchanged = 1")
    figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
