"""Counts the classes of the installed transformers that `tridal.kernelize` replaces, and makes the table of families.

    python scripts/model_coverage.py [--json FILE] [--page docs/supported-models.md] [--check] [--family NAME]

Makes a module of each class from a default configuration on the device "meta", and calls the same functions as
`tridal.kernelize`. What a class computes is read from its source, and does not depend on what tridal recognizes:

- norms: classes with the name of an RMSNorm, LayerNorm or L2Norm, and a forward of their own
- gated MLPs: classes that multiply an activation with another tensor, between linear layers
- experts: classes with the weights of several experts
- rotary: classes whose forward calls a function or a method for a rotary embedding
- routers: classes that choose the largest of several experts
- losses: models with a causal language model's head that take labels

--page writes the table between its markers, and that of diffusers if it is installed. With --check, it writes nothing,
and fails if a table would change.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import warnings
from typing import Any, NamedTuple

import torch
import transformers

import diffusers_coverage
from model_classes import OPEN, classes, kind_of, make, stub
from tridal.models import candidates, glu, rotary, router_comparison, routers

KINDS = ("norms", "gated MLPs", "experts", "rotary", "routers", "losses")
LOSS = "tridal.cross_entropy for the loss"
BEGIN, END = "<!-- model coverage -->\n", "<!-- end of model coverage -->\n"
SHORT = (
    ("takes \\(\\w+, gate\\)", "a gate"), ("calls the modules (.*), and a norm", r"also has \1"),
    ("no linear layers", "other layers"), ("no candidate", "another form"), ("between training and", "another mode"),
    ("takes \\((.*?)\\),? and (?:not|a gated|a router)", r"arguments (\1)"), ("is a method", "a method"),
    ("order of rounding", "order of rounding"), ("it returns torch", "dtype of the result"),
    ("differs", "another function"), ("has the modules (.*?) beside", r"also has \1"),
    ("has the tensors (.*?) beside", r"also has \1"), ("does not return logits", "other results"),
    ("its logits are not", "other logits"), ("has the method _apply_gate", "no method `_apply_gate`"),
    ("reads the (buffer|attribute) (\\w+)", r"reads the \1 \2"),
    ("parameters of its own", "other parameters"), ("its loss_function is", "another loss"),
    ("in its own forward", "a loss of its own"), ("comparison raised", "another form"), ("buffer", "a buffer"),
)  # fmt: skip


class Found(NamedTuple):
    """A class of transformers."""

    kind: str
    family: str
    name: str
    taken: str | None
    """The function of tridal, or None."""
    reason: str | None
    """Why the class is left unchanged, or None."""


def find(what: str, module: Any, kind: Any) -> Any:
    """Returns what kernelize finds for a class: a form, or the reason why it is left."""
    if what == "rotary":
        return rotary.find_form(stub(kind))
    if what == "losses":
        model = object.__new__(kind)
        transformers.PreTrainedModel.__init__(model, kind.config_class())
        return candidates._why_not_loss(model) or LOSS
    instance = make(kind, module)
    if isinstance(instance, str):
        return f"not made: {instance}"
    if getattr(instance, "top_k", 0) is None:  # the default configuration of DeepSeek-V2 leaves it open
        instance.top_k = OPEN["num_experts_per_tok"]
    matches, find_form = {
        "norms": (candidates._NORMS.matches, candidates._NORMS.find_form),
        "gated MLPs": (glu.may_be_glu, glu.find_form),
        "experts": (glu.may_be_experts, glu.find_form_of_experts),
        "routers": (routers.may_be_router, router_comparison.find_form),
    }[what]
    return find_form(instance) if matches(instance) else "it is no candidate"


def survey(family: str | None = None) -> list[Found]:
    """Returns what kernelize does with each class, of all folders of models or of one."""
    rows = []
    for folder, module, kind in classes(family or "*"):
        if (what := kind_of(kind)) is not None:
            found = find(what, module, kind)
            taken = not isinstance(found, str) or found is LOSS
            rows.append(Found(what, folder, kind.__name__, str(found) if taken else None, None if taken else found))
    return rows


def short(reason: str) -> str:
    """Returns a reason in a few words."""
    for pattern, words in SHORT:
        if match := re.search(pattern, reason):
            return match.expand(words)
    return reason.split(":")[0]


def _cell(rows: list[Found]) -> str:
    left = [row for row in rows if row.taken is None]
    if not left:
        return "all" if rows else ""
    reasons = "; ".join(sorted({short(str(row.reason)) for row in left}))
    return f"{len(rows) - len(left)} of {len(rows)}" + f": {reasons}" * bool(reasons)


def table(rows: list[Found]) -> list[str]:
    """Returns the lines of both tables: the numbers of all classes, and those of each family."""
    lines = ["| classes of | number | replaced | share |", "| --- | ---: | ---: | ---: |"]
    for kind in KINDS:
        own = [row for row in rows if row.kind == kind]
        taken = sum(row.taken is not None for row in own)
        lines.append(f"| {kind} | {len(own)} | {taken} | {taken / max(len(own), 1):.0%} |")
    lines += ["", "| family | " + " | ".join(KINDS) + " |", "| --- " * (len(KINDS) + 1) + "|"]
    for family in sorted({row.family for row in rows}):
        cells = (_cell([row for row in rows if (row.family, row.kind) == (family, kind)]) for kind in KINDS)
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    return lines


def with_table(page: str, lines: list[str]) -> str:
    """Returns the text of a page with these lines between its markers."""
    before, rest = page.split(BEGIN)
    text = f"transformers {transformers.__version__}:\n\n" + "\n".join(lines)
    return f"{before}{BEGIN}\n{text}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Prints the numbers and the classes that are left, and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="writes what kernelize does with each class")
    parser.add_argument("--page", type=pathlib.Path, help="writes the table between the markers of a page")
    parser.add_argument("--check", action="store_true", help="writes nothing, and fails if the page would change")
    parser.add_argument("--family", help="counts the classes of one folder of transformers.models")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # the tensors are small
    rows = survey(given.family)
    lines = table(rows)
    print("\n".join(lines[: 2 + len(KINDS)]))
    if given.json is not None:
        given.json.write_text(json.dumps([row._asdict() for row in rows], indent=1))
    if given.page is not None:
        written = diffusers_coverage.with_table(with_table(given.page.read_text(), lines))
        if given.check:
            sys.exit(written != given.page.read_text())
        given.page.write_text(written)


if __name__ == "__main__":
    main()
