"""Writes the figures of README.md, docs/index.md and docs/models.md from the results in docs/benchmarks.

    python scripts/front_page.py [--check]

A page contains the text of a table between the comments `<!-- figures: NAME -->` and `<!-- figures: end -->`. With
--check, nothing is written, and the exit code is 1 if a page would change.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tridal.benchmarks.providers import COPY, OURS
from tridal.benchmarks.report import geometric_mean, providers, shares
from tridal.benchmarks.results import Row, select

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "models.md")
BLOCK = re.compile(r"(<!-- figures: (?P<name>\w+) -->\n).*?(<!-- figures: end -->)", re.DOTALL)

OPS = {"softmax": "results.json", **{op: f"{op}/results.json" for op in ("rms_norm", "layer_norm", "cross_entropy")}}
CLASSES = (
    ("softmax", "rows", "softmax, 32 to 32,768 columns"),
    ("softmax", "odd", "softmax, odd widths and slices"),
    ("rms_norm", "hidden", "RMSNorm, 1,024 to 8,192 columns"),
    ("layer_norm", "hidden", "LayerNorm, 1,024 to 8,192 columns"),
    ("cross_entropy", "vocabulary", "cross-entropy, 32,000 to 262,144 classes"),
)
"""Op, class of shapes and title of each line of the table of ops."""
EQUAL = 1.02
"""Times whose ratio is smaller count as equal."""
TRAINING = {
    "PyTorch": "unchanged", "tridal": "kernelize+fused_loss", "torch.compile": "compile", "Liger-Kernel": "liger",
}  # fmt: skip
"""The provider of benchmarks/models.py for each column of the table of models."""
MODELS = {"llama": "LLaMA (1.2B)", "gpt2": "GPT-2 (355M)"}
NAMES = {
    "unchanged": "PyTorch",
    "override_torch": "`override_torch`",
    "kernelize": "`kernelize`",
    "kernelize+fused_loss": "`kernelize`, fused loss",
    "liger": "Liger-Kernel's patch",
    "compile": "`torch.compile`",
    "compile+kernelize": "`torch.compile` and `kernelize`",
    "compile+kernelize+fused_loss": "`torch.compile` and `kernelize`, fused loss",
}
"""The name of each provider of benchmarks/models.py."""


class Results:
    """The measurements of ops and of models."""

    def __init__(self, folder: Path) -> None:
        self.ops = {op: json.loads((folder / file).read_text()) for op, file in OPS.items()}
        models = json.loads((folder / "models" / "models.json").read_text())
        self.models = {(each["model"], each["work"], each["provider"]): each for each in models["results"]}

    def training(self, model: str, provider: str) -> Mapping[str, Any] | None:
        """Returns the measured training step of a model, or None if the provider cannot compute it."""
        found = self.models[model, "training", provider]
        return found if found["tokens_per_second"] else None

    def measured(self, work: str) -> list[Mapping[str, Any]]:
        """Returns the measurements of training or decoding."""
        return [each for each in self.models.values() if each["work"] == work and each["tokens_per_second"]]

    def speed(self, model: str, provider: str) -> float:
        """Returns the tokens per second of a training step, relative to the unchanged model."""
        tokens = [self.models[model, "training", name]["tokens_per_second"] for name in (provider, "unchanged")]
        return float(tokens[0] / tokens[1])

    def memory(self, model: str, provider: str) -> str:
        """Returns the peak memory of a training step."""
        return f"{self.models[model, 'training', provider]['peak_gib']:.1f} GiB"

    def memory_ratio(self, model: str, provider: str) -> float:
        """Returns the peak memory of a training step, relative to the unchanged model."""
        peaks = [self.models[model, "training", name]["peak_gib"] for name in (provider, "unchanged")]
        return float(peaks[0] / peaks[1])

    def share(self, op: str, provider: str, **workload: str) -> float:
        """Returns the geometric mean of a provider's shares of copy on some workloads."""
        mean = geometric_mean(shares(self.ops[op]["measurements"], provider=provider, **workload))
        assert mean is not None, (op, provider, workload)
        return mean

    def best_other(self, op: str, **workload: str) -> tuple[float, str]:
        """Returns the highest mean of the other providers that computed all the workloads, and its provider."""
        rows = self.ops[op]["measurements"]
        complete = [
            name
            for name in providers(rows, skipped=False)
            if name != OURS and all(row["ms"] for row in select(rows, provider=name, **workload))
        ]
        return max((self.share(op, name, **workload), name) for name in complete)

    def ranks(self) -> Iterator[float]:
        """Yields tridal's time divided by that of the fastest other provider, for each workload."""
        for document in self.ops.values():
            fastest: dict[tuple[str, ...], float] = {}
            rows = [row for row in document["measurements"] if row["ms"]]
            for row in rows:
                if row["provider"] not in (OURS, COPY):
                    fastest[key(row)] = min(row["ms"], fastest.get(key(row), row["ms"]))
            yield from (row["ms"] / fastest[key(row)] for row in select(rows, provider=OURS))


def key(row: Row) -> tuple[str, ...]:
    """Returns what identifies the workload of a measurement."""
    return tuple(row[name] for name in ("group", "dtype", "direction", "shape"))


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Formats a Markdown table."""
    rows = [headings, ["---"] * len(headings), *lines]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def models(results: Results) -> str:
    """Returns the table of training steps, and the gain of tridal as a sentence."""
    lines, gains = [], []
    for model, title in MODELS.items():
        speed, memory = results.speed(model, TRAINING[OURS]), results.memory_ratio(model, TRAINING[OURS])
        gains.append(f"{title} {speed:.2f} times as fast in {memory:.2f} of the memory")
        for measure in ("tokens/s", "peak memory"):
            cells = []
            for provider in TRAINING.values():
                found = results.training(model, provider)
                if found is None:
                    cells.append("no patch")
                elif measure == "tokens/s":
                    cells.append(f"{found['tokens_per_second']:,.0f} ({results.speed(model, provider):.2f}x)")
                else:
                    cells.append(results.memory(model, provider))
            lines.append([f"{title}: {measure}", *cells])
    sentence = f"On an NVIDIA H200, it trains {', and '.join(gains)} ([method](SPEED)):\n\n"
    return sentence + table(["training step, bfloat16", *TRAINING], lines)


def ops(results: Results) -> str:
    """Returns the table of ops, and how often tridal is the fastest."""
    lines = []
    for op, group, title in CLASSES:
        cells = []
        for direction in ("forward", "backward"):
            workload = {"group": group, "dtype": "bfloat16", "direction": direction}
            share, name = results.best_other(op, **workload)
            cells += [f"**{results.share(op, OURS, **workload):.2f}**", f"{share:.2f} {name}"]
        lines.append([title, *cells])
    ranks = list(results.ranks())
    won, missed = sum(rank <= EQUAL for rank in ranks), sum(rank > EQUAL for rank in ranks)
    return table(["share of copy, bfloat16", "forward", "best other", "backward", "best other"], lines) + (
        f"\ntridal is the fastest, or within 2% of the fastest, at {won} of {won + missed} measured points.\n"
        f"At the other {missed}, torch.compile, Liger-Kernel or FlagGems is up to {max(ranks):.2f} times as fast.\n"
    )


def libraries(results: Results) -> str:
    """Returns the table that says which library suits which purpose."""
    tridal, compiled, both = TRAINING[OURS], TRAINING["torch.compile"], "compile+kernelize"
    llama, gpt2 = (
        {name: f"{results.speed(model, name):.2f}x" for name in (tridal, compiled, both)} for model in MODELS
    )
    lines = (
        ("to run a model in eager mode, on GPUs of several vendors", OURS, "one line, and a report of each module"),
        (
            "odd widths, wide rows, slices, any dim, any strides",
            OURS,
            "other libraries are half as fast there, or reject them",
        ),
        ("your own row op on every device", OURS, "one file of maths, no kernel"),
        (
            "a compiled model",
            "torch.compile",
            f"tridal adds nothing: LLaMA {llama[compiled]} alone and {llama[both]} with it; "
            f"GPT-2 {gpt2[compiled]}, and {gpt2[tridal]} with tridal in eager mode",
        ),
        (
            "the least memory for LLaMA and similar models on a GPU",
            "Liger-Kernel",
            f"it fuses the feed-forward layers, too: {results.memory('llama', TRAINING['Liger-Kernel'])}, "
            f"{results.memory('llama', tridal)} with tridal",
        ),
        ("replacements for hundreds of PyTorch's operators", "FlagGems", "tridal has six ops"),
        (
            "softmax of few and very wide rows on NVIDIA Hopper or Blackwell",
            "quack",
            "faster there ([figures](QUACK)); it rejects odd widths",
        ),
    )
    return table(["you want", "use", "reason"], lines)


def training(results: Results) -> str:
    """Returns the table of all training steps."""
    lines = []
    for each in results.measured("training"):
        model, provider = each["model"], each["provider"]
        speed, memory = f"{results.speed(model, provider):.2f}", f"{each['peak_gib']:.1f}"
        lines.append([model, NAMES[provider], f"{each['tokens_per_second']:,.0f}", speed, memory])
    return table(["training", "", "tokens/s", "relative", "peak memory, GiB"], lines)


def decoding(results: Results) -> str:
    """Returns the table of decoding, with half of the range between the quartiles in percent of the median."""
    lines = []
    for each in results.measured("decoding"):
        low, _, high = statistics.quantiles(each["times"], n=4) if each["times"] else (0, 0, 0)
        spread = f"{50 * (high - low) / each['milliseconds']:.0f}" if each["times"] else ""
        lines.append([each["model"], NAMES[each["provider"]], f"{each['tokens_per_second']:,.0f}", spread])
    return table(["decoding", "", "tokens/s", "±%"], lines)


FIGURES = {"models": models, "ops": ops, "libraries": libraries, "training": training, "decoding": decoding}


def updated(page: Path, results: Results) -> str:
    """Returns the text of a page with new figures. Links are relative to the page."""
    folder = "" if page.parent.name == "docs" else "docs/"
    links = {"(QUACK)": f"({folder}benchmarks.md#quack)", "(SPEED)": f"({folder}models.md#speed)"}

    def replace(block: re.Match[str]) -> str:
        text = FIGURES[block["name"]](results)
        for name, link in links.items():
            text = text.replace(name, link)
        return block[1] + text + block[3]

    return BLOCK.sub(replace, page.read_text())


def main() -> None:
    """Writes or checks the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page would change")
    check, results = parser.parse_args().check, Results(RESULTS)
    changed = {page: text for page in PAGES if (text := updated(page, results)) != page.read_text()}
    for page, text in changed.items():
        print(f"{page.relative_to(ROOT)}: {'the figures are not those of the results' if check else 'written'}")
        if not check:
            page.write_text(text)
    sys.exit(bool(changed) and check)


if __name__ == "__main__":
    main()
