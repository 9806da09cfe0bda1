"""The blocks of README.md about models: the families that readers ask for, and the comparison with torch.compile.

The families are read from docs/supported-models.md, which scripts/model_coverage.py writes.
"""

from __future__ import annotations

from figures.stored import ROOT, Results

MODELS = {
    "llama": "LLaMA", "mistral": "Mistral", "qwen2": "Qwen 2", "qwen3": "Qwen 3", "gemma2": "Gemma 2",
    "gemma3": "Gemma 3", "phi3": "Phi 3", "gemma4": "Gemma 4", "qwen3_moe": "Qwen 3 MoE",
    "deepseek_v3": "DeepSeek V3", "mixtral": "Mixtral", "t5": "T5", "modernbert": "ModernBERT", "gpt2": "GPT-2",
    "bert": "BERT",
}  # fmt: skip
"""The shown families, and the names of their models."""
TORCH_NORMS = {"modernbert", "gpt2", "bert"}
"""The shown families whose norms are torch.nn.LayerNorm, which docs/supported-models.md does not count."""
CLASSES = ("norms", "gated MLPs", "experts", "rotary", "routers", "losses")


def coverage() -> dict[str, dict[str, str]]:
    """Returns the cells of each family in docs/supported-models.md, by the names of the columns."""
    text = (ROOT / "docs" / "supported-models.md").read_text().partition("| family |")
    names, _, *lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in (text[1] + text[2]).split("\n\n")[0].splitlines()
    ]
    return {family: dict(zip(names[1:], cells, strict=True)) for family, *cells in lines}


def cell(text: str) -> str:
    """Returns a cell without its reasons: "yes", "no", a part such as "1 of 2", or "-" if there is no such class."""
    count = text.partition(":")[0]
    return {"all": "yes", "": "-"}.get(count, "no" if count.startswith("0 of") else count)


def families(results: Results) -> list[str]:
    """A line per group of models with the same cells: which of their classes are replaced."""
    known, groups = coverage(), dict[tuple[str, ...], list[str]]()
    for family, title in MODELS.items():
        cells = {name: cell(known[family][name]) for name in CLASSES}
        if family in TORCH_NORMS:
            assert cells["norms"] == "-", family
            cells["norms"] = "yes"
        groups.setdefault(tuple(cells.values()), []).append(title)
    lines = [["models", *CLASSES[:-1], "causal LM loss"], ["---"] * (1 + len(CLASSES))]
    lines += [[", ".join(titles), *cells] for cells, titles in groups.items()]
    return [
        *(f"| {' | '.join(cells)} |" for cells in lines),
        "",
        '"-": the model has no such class; "no": its class is left unchanged; "1 of 2": one of its two classes is '
        f"replaced. [Supported models](SUPPORTED) has all {len(known)} families and the reasons.",
    ]


def compiler(results: Results) -> list[str]:
    """The comparison with torch.compile in a paragraph."""

    def step(provider: str, model: str = "llama") -> str:
        peak = results.models[model, "training", provider]["peak_gib"]
        return f"{results.speed(model, provider):.2f}x in {peak:.1f} GiB"

    fused = "kernelize+fused_loss"
    alone, compiled = (f"{results.speed('gpt2', name):.2f}x" for name in ("kernelize", "compile"))
    return [
        "**Why not torch.compile?** tridal does not compile the model, so shapes may change, and LLaMA's step is "
        f"faster: {step(fused)}, against {step('compile')} with torch.compile. If a model has to be compiled, "
        f"tridal's fused loss saves memory: {step(f'compile+{fused}')}. Without the fused loss, torch.compile alone "
        f"is the better choice for compiled models, and faster than tridal on GPT-2 ({compiled} against {alone}; with "
        f"the fused loss, tridal reaches {results.speed('gpt2', fused):.2f}x).",
    ]


BLOCKS = {function.__name__: function for function in (families, compiler)}
"""The functions that write blocks. They get all results."""
