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
"""The folder of each op's results on an H200."""
H100 = "h100"
"""The folder with a folder for each op's results on an H100."""

Document = Mapping[str, Any]
"""The results of an op, as `tridal bench` writes them."""


class Ops:
    """The stored results of ops on a GPU.

    `folders` has the folder of each op. `page` is the page of all ops in docs/benchmarks/; without it, each op has one.
    """

    def __init__(self, folders: Mapping[str, Path], page: str | None = None) -> None:
        self.folders, self.page = folders, page
        self.ops: dict[str, Document] = {op: load(folder / "results.json") for op, folder in folders.items()}


class Results(Ops):
    """The stored results in a folder: those of ops on an H200 and on an H100, and those of models."""

    def __init__(self, folder: Path = BENCHMARKS) -> None:
        super().__init__({op: folder / name for op, name in OPS.items()})
        found = sorted((folder / H100).glob("*/results.json"))
        self.gpus = {H100: Ops({file.parent.name: file.parent for file in found}, f"{H100}.md")}
        self.models_record: Mapping[str, Any] = json.loads((folder / "models" / "models.json").read_text())
        found = self.models_record["results"]
        self.models = {(each["model"], each["work"], each["provider"]): each for each in found}

    def measured(self, work: str) -> list[Mapping[str, Any]]:
        """Returns the measurements of models in training or decoding."""
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
