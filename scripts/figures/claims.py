"""The figures in sentences of the pages, computed from the stored results.

make_figures.py writes tables and pictures. Sentences are written by hand, so each figure in `CLAIMS` is computed
and looked up on its page. A claim that says which implementation is faster is checked in the results first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from figures.stored import ROOT, Results
from tridal.benchmarks.providers import OURS
from tridal.benchmarks.report import values

FUSED, COMPILED, LIGER = "kernelize+fused_loss", "compile", "liger"


def span(found: list[float], form: str = ".2f") -> str:
    """Formats the smallest and the largest number."""
    return f"{min(found):{form}} to {max(found):{form}}"


def steps(results: Results, provider: str, quantity: str, other: str) -> dict[str, float]:
    """Returns a quantity of a provider's training step divided by that of another one, for each model that has both."""
    models = {model for model, work, _ in results.models if work == "training"}
    pairs = {
        model: [results.models[model, "training", name][quantity] for name in (provider, other)] for model in models
    }
    return {model: ours / theirs for model, (ours, theirs) in pairs.items() if ours and theirs}


def of_models(results: Results) -> Iterator[str]:
    """docs/models.md: speed and memory of the fused loss, relative to Liger-Kernel and torch.compile."""
    for other in (COMPILED, LIGER):
        assert min(steps(results, FUSED, "tokens_per_second", other).values()) > 1, f"{other} is faster"
        alone = steps(results, "kernelize", "tokens_per_second", other)
        assert {model for model, ratio in alone.items() if ratio < 1} <= {"gpt2"}, "the page names gpt2 only"
    yield span([*steps(results, FUSED, "peak_gib", LIGER).values()])
    both = f"compile+{FUSED}"
    yield span([1 / ratio for ratio in steps(results, both, "tokens_per_second", COMPILED).values()])
    yield span([1 - ratio for ratio in steps(results, both, "peak_gib", COMPILED).values()], ".0%")


def of_questions(results: Results) -> Iterator[str]:
    """docs/getting-started.md: the answers about torch.compile and Liger-Kernel."""
    for provider in (FUSED, COMPILED, LIGER, f"compile+{FUSED}"):
        yield f"{results.speed('llama', provider):.2f}x"
        yield f"{results.models['llama', 'training', provider]['peak_gib']:.1f}"


def shares(results: Results, gpu: str, op: str, **workload: str) -> list[float]:
    """Returns tridal's shares of copy for an op on a GPU."""
    return values(results.gpus[gpu].ops[op]["measurements"], provider=OURS, **workload)


def of_glu(results: Results) -> Iterator[str]:
    """docs/glu.md: GeGLU's forward of 128 columns in bfloat16 is the exception on an H200."""
    (slow,) = shares(results, "h200", "geglu", dtype="bfloat16", direction="forward", group="heads")
    others = [share for op in ("swiglu", "geglu") for share in shares(results, "h200", op)]
    others.remove(slow)
    assert min(others) > 0.97, "another one is slower than a copy"
    yield span(others)
    yield f"{slow:.2f}"


def of_rotary(results: Results) -> Iterator[str]:
    """docs/rotary.md: contiguous tensors on an H100."""
    yield span(shares(results, "h100", "rotary_embedding"))


def of_log_probs(results: Results) -> Iterator[str]:
    """docs/log-probs.md: vocabularies on an H100."""
    for direction in ("forward", "backward"):
        groups = ("vocabulary", "vocabulary_odd")
        found = [share for g in groups for share in shares(results, "h100", "log_probs", group=g, direction=direction)]
        yield span(found).replace("0.", ".", 1)


CLAIMS: dict[str, Callable[[Results], Iterator[str]]] = {
    "models.md": of_models,
    "getting-started.md": of_questions,
    "glu.md": of_glu,
    "rotary.md": of_rotary,
    "log-probs.md": of_log_probs,
}
"""For each page of docs/, the function that yields the figures of its sentences."""


def faults(results: Results) -> list[str]:
    """Returns a line for each figure that is not on its page, and for each claim that is not true."""
    found = []
    for page, claim in CLAIMS.items():
        text = " ".join((ROOT / "docs" / page).read_text().split())
        try:
            found += [f"docs/{page}: the results give {figure}" for figure in claim(results) if figure not in text]
        except AssertionError as error:
            found.append(f"docs/{page}: {error}")
    return found
