"""The blocks of figures of README.md, docs/index.md and docs/models.md."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from figures import benchmark_pages
from figures.stored import Document, Results
from tridal.benchmarks.providers import OURS
from tridal.benchmarks.report import EQUAL, Rows, as_lines, comparisons, geometric_mean, is_slower, providers, values
from tridal.benchmarks.results import distinct, select
from tridal.library import OPS

CLASSES = (
    ("softmax", "rows", "softmax, 32 to 32,768 columns"),
    ("softmax", "wide", "softmax, 65,536 columns and more"),
    ("softmax", "odd", "softmax, odd widths and slices"),
    ("softmax", "few small", "softmax of few rows, and of small tensors"),
    ("softmax", "inner outer", "softmax over a dim that is not the last"),
    ("rms_norm", "hidden", "RMSNorm, 1,024 to 8,192 columns"),
    ("rms_norm", "hidden_between", "RMSNorm, 1,152 to 7,168 columns"),
    ("rms_norm", "hidden_wide hidden_65536 hidden_262144", "RMSNorm, 16,384 columns and more"),
    ("rms_norm", "hidden_odd", "RMSNorm, odd widths"),
    ("rms_norm", "heads", "RMSNorm of heads, 128 columns"),
    ("layer_norm", "hidden", "LayerNorm, 1,024 to 8,192 columns"),
    ("layer_norm", "hidden_between", "LayerNorm, 1,152 to 7,168 columns"),
    ("layer_norm", "hidden_wide hidden_65536 hidden_262144", "LayerNorm, 16,384 columns and more"),
    ("layer_norm", "hidden_odd", "LayerNorm, odd widths"),
    ("layer_norm", "heads", "LayerNorm of heads, 128 columns"),
    ("cross_entropy", "vocabulary vocabulary_odd", "cross-entropy, 32,000 to 262,144 classes"),
    ("cross_entropy", "few_classes", "cross-entropy, few classes"),
)
"""Op, classes of shapes and title of each line of the table of ops. The lines have all measured shapes."""
TRAINING = {
    "eager PyTorch": "unchanged", "tridal": "kernelize+fused_loss", "torch.compile": "compile", "Liger-Kernel": "liger",
}  # fmt: skip
"""The provider of benchmarks/models.py for each column of the table of models."""
MODELS = {"llama": "LLaMA (1.2B)", "qwen3": "Qwen 3 (1.0B)", "gpt2": "GPT-2 (355M)"}
NAMES = {
    "unchanged": "eager PyTorch",
    "override_torch": "`override_torch`",
    "kernelize": "`kernelize`",
    "kernelize+fused_loss": "`kernelize`, fused loss",
    "liger": "Liger-Kernel's patch",
    "compile": "`torch.compile`",
    "compile+kernelize": "`torch.compile` and `kernelize`",
    "compile+kernelize+fused_loss": "`torch.compile` and `kernelize`, fused loss",
}
"""The name of each provider of benchmarks/models.py."""


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Returns a table of texts as lines of Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *lines)]


def workloads(results: Results, op: str, groups: str, direction: str) -> Rows:
    """Returns the measurements of an op in bfloat16 in some classes of shapes, whose names are separated by spaces."""
    rows = select(results.ops[op]["measurements"], dtype="bfloat16", direction=direction)
    return [row for row in rows if row["group"] in groups.split()]


def share(rows: Rows, provider: str) -> float:
    """Returns the geometric mean of a provider's shares of copy on some workloads."""
    mean = geometric_mean(values(rows, provider=provider))
    assert mean is not None, provider
    return mean


def best_other(rows: Rows) -> tuple[float, str]:
    """Returns the highest mean of the other providers that computed all the workloads, and its provider."""
    complete = [
        name
        for name in providers(rows, skipped=False)
        if name != OURS and all(row["ms"] for row in select(rows, provider=name))
    ]
    return max((share(rows, name), name) for name in complete)


def gains(results: Results) -> list[str]:
    """The gain of tridal in a sentence."""
    speeds = {model: f"{results.speed(model, TRAINING[OURS]):.2f}x" for model in MODELS}
    peaks = {model: f"{results.memory(model, TRAINING[OURS]):.0%}" for model in MODELS}
    (first, title), *others = MODELS.items()
    rest = " and ".join(f"{other} {speeds[model]} in {peaks[model]}" for model, other in others)
    return [
        f"On an NVIDIA H100, a forward and backward of {title} with tridal's fused loss is {speeds[first]} as fast as "
        f"in eager PyTorch, in {peaks[first]} of the memory; {rest}."
    ]


def models(results: Results) -> list[str]:
    """A table of training steps."""
    lines, titles = [], MODELS | {"gemma": "Gemma (1.8B)"}
    for model, title in titles.items():
        rates, peaks = [f"{title}: tokens/s"], [f"{title}: peak memory"]
        for provider in TRAINING.values():
            step = results.models[model, "training", provider]
            if step["tokens_per_second"] is None:
                rates.append("no patch")
                peaks.append("no patch")
            else:
                rates.append(f"{step['tokens_per_second']:,.0f} ({results.speed(model, provider):.2f}x)")
                peaks.append(f"{step['peak_gib']:.1f} GiB")
        lines += [rates, peaks]

    def plain(model: str) -> str:
        step = results.models[model, "training", "kernelize"]
        return f"{results.speed(model, 'kernelize'):.2f}x in {step['peak_gib']:.1f} GiB"

    without = ", ".join(f"{title.partition(' (')[0]} {plain(model)}" for model, title in titles.items())
    batch = (
        "A step is a forward and a backward over 8,192 tokens (Gemma: 4,096) with random weights on an H100, without "
        f"an optimizer ([method](SPEED)). The column of tridal has `fused_loss=True`. Without it: {without}."
    )
    return [*table(["training step, bfloat16", *TRAINING], lines), "", batch]


def ops(results: Results) -> list[str]:
    """A table of shares of copy, and how often tridal is the fastest."""
    lines = []
    for op, document in results.ops.items():
        shown = {group for name, groups, _ in CLASSES if name == op for group in groups.split()}
        assert shown == {*distinct(document["measurements"], "group")}, f"{op}: CLASSES must have all classes of shapes"
    for op, groups, title in CLASSES:
        cells = []
        for direction in ("forward", "backward"):
            rows = workloads(results, op, groups, direction)
            ours = f"{share(rows, OURS):.2f}"
            mean, name = best_other(rows)
            cells += [f"**{ours}**" if float(ours) > round(mean, 2) else ours, f"{mean:.2f} {name}"]
        lines.append([title, *cells])
    pairs = [pair for document in results.ops.values() for pair in comparisons(document["measurements"])]
    slower = [(row, peer) for row, peer in pairs if peer and is_slower(row, peer)]
    names = sorted({peer["provider"] for _, peer in slower})
    most = max((row["ms"] / peer["ms"] for row, peer in slower), default=1)
    return [
        *table(["share of copy", "forward", "best other", "backward", "best other"], lines),
        "",
        "On the H200, over all dtypes and shapes of these four ops, tridal is the fastest or within "
        f"{EQUAL:.0%} of the fastest at {len(pairs) - len(slower)} of {len(pairs)} points.",
        f"At the other {len(slower)} points, {', '.join(names[:-1])} or {names[-1]} is up to {most:.2f}x as fast.",
        *all_ops(results),
    ]


def all_ops(results: Results) -> list[str]:
    """How often tridal is the fastest among all measured ops on each GPU, and the op with the largest gap."""
    won, gaps = [], []
    for gpu, measured in results.gpus.items():
        counts = [outcome(document) for document in measured.ops.values()]
        fastest, points = (sum(count[number] for count in counts) for number in (0, 1))
        won.append(f"at {fastest} of {points} points on the [{gpu.upper()}]({gpu.upper()})")
        gaps += [(*count[2:], op, gpu, count) for op, count in zip(measured.ops, counts, strict=True)]
    most, other, op, gpu, (fastest, points, *_) = max(gaps)
    return [
        f"Over {len(measured.ops)} ops, it leads or ties {' and '.join(won)}. The largest gap is that of "
        f"{benchmark_pages.NAMES[op]} on the {gpu.upper()}: {other} is up to {most:.2f}x as fast at one "
        f"of {points} points; tridal leads or ties at {fastest} of them.",
    ]


def outcome(document: Document) -> tuple[int, int, float, str]:
    """Returns at how many points tridal leads or ties, the number of points, and how much faster which other one is."""
    pairs = list(comparisons(document["measurements"]))
    slower = [(row, peer) for row, peer in pairs if peer and is_slower(row, peer)]
    most = max(((benchmark_pages.slowdown(pair), pair[1]["provider"]) for pair in slower), default=(1.0, ""))
    return len(pairs) - len(slower), len(pairs), *most


def libraries(results: Results) -> list[str]:
    """A table that says which library suits which purpose."""
    ours, compiled, liger = (TRAINING[name] for name in (OURS, "torch.compile", "Liger-Kernel"))
    both = "compile+kernelize+fused_loss"

    def step(provider: str) -> str:
        peak = results.models["llama", "training", provider]["peak_gib"]
        return f"{results.speed('llama', provider):.2f}x in {peak:.1f} GiB"

    gains = [f"{title.partition(' (')[0]} {results.speed(model, ours):.2f}x" for model, title in MODELS.items()]
    odd = workloads(results, "softmax", "odd", "forward")
    best, other = best_other(odd)
    widths = f"softmax of odd widths at {share(odd, OURS):.2f} of a copy's speed, {other} at {best:.2f}"
    lines = (
        (
            "eager training of Hugging Face models",
            OURS,
            f"with the fused loss, {', '.join(gains)}; each class of transformers is compared before it is replaced",
        ),
        ("odd widths, wide rows, slices, any strides", OURS, widths),
        (
            "your own row op, or your own device",
            OURS,
            "Triton functions of an element or a row, or one file of numbers; tridal writes the kernel",
        ),
        (
            "the least memory in eager training of LLaMA and similar models",
            "Liger-Kernel",
            f"{step(liger)}, tridal {step(ours)}",
        ),
        (
            "a compiled model",
            "torch.compile",
            f"LLaMA {step(compiled)}, or {step(both)} with tridal's fused loss",
        ),
        ("replacements for hundreds of PyTorch's operators", "FlagGems", f"tridal has {len(OPS)} ops"),
        (
            "softmax of few and very wide rows on NVIDIA Hopper or Blackwell",
            "quack",
            "faster there ([figures](QUACK)), but rejects odd widths",
        ),
    )
    return table(["you want", "use", "reason"], lines)


def training(results: Results, work: str = "training", title: str = "training") -> list[str]:
    """A table of all training steps."""
    lines = []
    for each in results.measured(work):
        model, provider = each["model"], each["provider"]
        speed, memory = f"{results.speed(model, provider, work):.2f}", f"{each['peak_gib']:.1f}"
        lines.append([f"{model}, {NAMES[provider]}", f"{each['tokens_per_second']:,.0f}", speed, memory])
    return as_lines(([title, "tokens/s", "relative", "peak memory, GiB"], lines))


def adamw(results: Results) -> list[str]:
    """A table of training steps that end with a step of AdamW."""
    return training(results, "adamw", "training with AdamW")


def decoding(results: Results) -> list[str]:
    """A table of decoding, with half of the range between the quartiles in percent of the median."""
    lines = []
    for each in results.measured("decoding"):
        low, _, high = statistics.quantiles(each["times"], n=4) if each["times"] else (0, 0, 0)
        spread = f"{50 * (high - low) / each['milliseconds']:.0f}" if each["times"] else ""
        lines.append([f"{each['model']}, {NAMES[each['provider']]}", f"{each['tokens_per_second']:,.0f}", spread])
    return as_lines((["decoding", "tokens/s", "±%"], lines))


BLOCKS = {function.__name__: function for function in (gains, models, ops, libraries, training, adamw, decoding)}
"""The functions that write blocks. They get all results."""
