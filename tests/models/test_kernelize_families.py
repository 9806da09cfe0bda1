"""Families of models of transformers: the same step as before, and a report that names all modules of each kind."""

from __future__ import annotations

import re

import pytest
import torch

import tridal
from model_families import FAMILIES, family
from model_helpers import assert_same_step, step

NAMED = re.compile("(Norm|NormGated|MLP|GatedActDense|Experts|Attention)$|^.*LayerNorm1P$")
"""Names of classes whose modules are in the report, except those of `UNNAMED`."""
UNNAMED = re.compile(
    "(Phi|Starcoder2|Persimmon|Nemotron|Arcee|Apertus|GptOss|NanoChat|GPTNeoX|GPT2|GPTJ|Falcon|Bloom)MLP|M?T5.*Attention|"
    "(GPT2|Bloom|OPT|NemotronH|RoFormer|Esm|Bart|Bert(Self)?|Roberta(Self)?|Electra(Self)?)Attention"
)
"""Classes without a gate or a rotary embedding, which are no candidates."""
FEW = ("Lfm2", "GptOss", "T5")
WIDER = pytest.mark.nightly("few families, and the tests of each kind of module")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FEW else WIDER) for name in FAMILIES])
def test_every_family_gives_the_same_step_and_a_whole_report(device: torch.device, name: str) -> None:
    torch.manual_seed(0)
    model = family(name).to(device).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 16)
    expected = step(model)
    report = tridal.kernelize(model)
    assert_same_step(step(model), expected)
    assert len(report.replaced) >= 1
    reported = {entry.name for entry in report.entries}
    assert "" in reported, "the loss"
    left = {type(module).__name__ for module_name, module in model.named_modules() if module_name not in reported}
    assert {kind for kind in left if NAMED.search(kind) and not UNNAMED.fullmatch(kind)} == set()
