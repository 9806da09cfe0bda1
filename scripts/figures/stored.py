"""The stored results: measurements of ops (`tridal bench`) and of models (benchmarks/models.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tridal.benchmarks.results import load

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "docs" / "benchmarks"
OPS = {"softmax": ".", "rms_norm": "rms_norm", "layer_norm": "layer_norm", "cross_entropy": "cross_entropy"}
"""The folder of each op's results."""

Document = Mapping[str, Any]
"""The results of an op, as `tridal bench` writes them."""


class Models:
    """The stored results of models in a file."""

    def __init__(self, file: Path) -> None:
        self.models_record: Mapping[str, Any] = json.loads(file.read_text())
        found = self.models_record["results"]
        self.models = {(each["model"], each["work"], each["provider"]): each for each in found}

    def measured(self, work: str) -> list[Mapping[str, Any]]:
        """Returns the measurements of training or decoding."""
        return [each for each in self.models.values() if each["work"] == work and each["tokens_per_second"]]

    def speed(self, model: str, provider: str) -> float:
        """Returns the tokens per second of a training step, relative to the unchanged model."""
        return self._relative(model, provider, "tokens_per_second")

    def memory(self, model: str, provider: str) -> float:
        """Returns the peak memory of a training step, relative to the unchanged model."""
        return self._relative(model, provider, "peak_gib")

    def _relative(self, model: str, provider: str, quantity: str) -> float:
        values = [self.models[model, "training", name][quantity] for name in (provider, "unchanged")]
        return float(values[0] / values[1])


class Results(Models):
    """The stored results in a folder: those of ops and models on an H200, and those of models on an H100."""

    def __init__(self, folder: Path = BENCHMARKS) -> None:
        super().__init__(folder / "models" / "models.json")
        self.ops: dict[str, Document] = {op: load(folder / name / "results.json") for op, name in OPS.items()}
        self.h100 = Models(folder / "models" / "h100.json")
