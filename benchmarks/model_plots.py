"""The pictures of benchmarks/models.py: speed and peak memory of each provider as bars, grouped by model."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.colors import to_rgba
from model_results import Result

from tridal.benchmarks.plot_style import QUIET, SMALL, Picture, emphasis, look_of, make_figure
from tridal.benchmarks.providers import OURS

SHOWN = {
    "unchanged": ("unchanged", "eager PyTorch"),
    "kernelize": ("tridal", "tridal"),
    "kernelize+fused_loss": ("tridal", "tridal, fused loss"),
    "liger": ("Liger-Kernel", "Liger-Kernel"),
    "compile": ("torch.compile", "torch.compile"),
}
"""The look and the title of each provider that pictures show. The tables have all providers."""
NAMES = {
    "llama": "LLaMA", "gemma": "Gemma", "gemma3": "Gemma 3", "qwen3": "Qwen 3", "gpt2": "GPT-2", "torch": "PyTorch",
    "transformers": "Transformers", "liger-kernel": "Liger-Kernel", "triton": "Triton",
}  # fmt: skip
TITLES = {
    "training": "Training steps, forward and backward",
    "adamw": "Training steps, forward, backward and AdamW",
    "graph": "The same steps as replays of a CUDA graph",
    "decoding": "Greedy decoding with a cache",
}
PANELS = {"tokens_per_second": "tokens/s, eager PyTorch = 1", "peak_gib": "peak memory, GiB"}
NOTE = "tridal: tridal.kernelize(model), and with fused_loss=True. Medians, random weights."
ROW = 0.22  # height of a row in inches
REASON = 34  # letters


class Bar(NamedTuple):
    """A bar at `y` with a text at its end."""

    y: float
    provider: str
    value: float
    text: str


def draw_bars(axis: Any, bars: Sequence[Bar], limit: float, names: Mapping[int, tuple[str, str]]) -> None:
    """Draws horizontal bars with their values, from the top down. The panel's width is the value `limit`.

    `names` are the texts to the left of the panel at each y, in the style of a provider: (provider, text). A text of no
    provider is a heading.
    """
    axis.set_yticks(list(names), [text for _, text in names.values()])
    for tick, (provider, _) in zip(axis.get_yticklabels(), names.values(), strict=True):
        tick.set(**(emphasis(provider) if provider else {"fontweight": "bold"}))
    axis.set(xlim=(0, limit), ylim=(max(names) + 0.5, -0.5))
    axis.xaxis.set_visible(False)
    axis.grid(visible=False)
    axis.spines["bottom"].set_visible(False)
    place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center_baseline"}
    for bar in bars:
        color = look_of(bar.provider).light
        strength = 1.0 if bar.provider == OURS else 0.45
        axis.barh(bar.y, bar.value, 0.66, facecolor=to_rgba(color, strength), edgecolor=color, lw=0.8)
        axis.annotate(bar.text, (bar.value, bar.y), annotation_clip=False, **place, **emphasis(bar.provider))


def make_pictures(results: Sequence[Result], device: str, versions: Mapping[str, str]) -> Iterator[Picture]:
    """Yields a picture for each kind of work. Models without a measurement of the unchanged model are left out."""
    found = ", ".join(f"{NAMES.get(name, name)} {text.partition('+')[0]}" for name, text in versions.items())
    for work in dict.fromkeys(result.work for result in results):
        chosen = [result for result in results if result.work == work and result.provider in SHOWN]
        bases = {r.model: r.tokens_per_second for r in chosen if r.provider == "unchanged" and r.tokens_per_second}
        if bases:
            yield _plot_work(work, [r for r in chosen if r.model in bases], bases, device, f"{NOTE} {found}.")


def _plot_work(work: str, results: Sequence[Result], bases: Mapping[str, float], device: str, caption: str) -> Picture:
    """Draws a panel with the speed relative to that of the unchanged model, and for training one with the memory."""
    keys = [key for key in PANELS if any(getattr(r, key) for r in results) and (work, key) != ("decoding", "peak_gib")]
    rows: list[str | Result] = []
    for model in bases:
        rows += [model, *(result for result in results if result.model == model)]
    subtitle = f"Hugging Face models on {device}"
    figure, axes = make_figure(TITLES[work], subtitle, caption, [ROW * len(rows)], columns=len(keys))
    texts: dict[int, list[str]] = {}
    for axis, key in zip(axes, keys, strict=True):
        bars, reasons = [], {}
        for y, row in enumerate(rows):
            if isinstance(row, str):
                continue
            value = getattr(row, key)
            if value is None:
                reasons[y] = textwrap.shorten((row.problem or "").partition(": ")[2] or "not measured", REASON)
                continue
            value = value / bases[row.model] if key == "tokens_per_second" else value
            text = f"{value:.2f}" if key == "tokens_per_second" else f"{value:.1f}"
            bars.append(Bar(y, SHOWN[row.provider][0], value, text))
            texts.setdefault(y, []).append(text if key == "tokens_per_second" else f"{text} GiB")
        axis.set_title(PANELS[key])
        names = {
            y: ("", NAMES.get(row, row)) if isinstance(row, str) else SHOWN[row.provider] for y, row in enumerate(rows)
        }
        draw_bars(axis, bars, max(bar.value for bar in bars), names)
        if axis is not axes[0]:
            axis.set_yticklabels([])
            continue
        for y, reason in reasons.items():
            axis.text(0, y, f" {reason}", color=QUIET, fontsize=SMALL, va="center_baseline")
    return Picture(work, _describe(work, rows, texts), lambda: figure)


def _describe(work: str, rows: Sequence[str | Result], texts: Mapping[int, Sequence[str]]) -> str:
    """Returns the values of each model as text for readers who cannot see the picture."""
    text = f"{TITLES[work]}, tokens per second relative to eager PyTorch"
    text += " and peak memory" if work != "decoding" else ""
    for y, row in enumerate(rows):
        if isinstance(row, str):
            text += f". {NAMES.get(row, row)}: "
        elif y in texts:
            text += ("" if text.endswith(": ") else "; ") + f"{SHOWN[row.provider][1]} {' and '.join(texts[y])}"
    return text + "."
