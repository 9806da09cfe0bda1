"""The stored results: measurements of ops (`tridal bench`) and of models (benchmarks/models.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tridal.benchmarks.results import load

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "docs" / "benchmarks"
OPS = {"softmax": ".", "rms_norm": "rms_norm", "layer_norm": "layer_norm", "cross_entropy": "cross_entropy"}
"""The folder of each op's results on an H200, with FlagGems and quack."""
GPUS = ("h100", "h200")
"""The folders with a folder for each op's results on a GPU, with the newest plans."""
MODELS = ("models.json", "adamw.json")
"""The results of models: steps of training and decoding on an H100, and steps with AdamW on an H200."""

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
    """The stored results in a folder: those of ops on each GPU, and those of models."""

    def __init__(self, folder: Path = BENCHMARKS) -> None:
        super().__init__({op: folder / name for op, name in OPS.items()})
        files = {gpu: sorted((folder / gpu).glob("*/results.json")) for gpu in GPUS}
        self.gpus = {gpu: Ops({file.parent.name: file.parent for file in files[gpu]}, f"{gpu}.md") for gpu in GPUS}
        records = (json.loads((folder / "models" / name).read_text()) for name in MODELS)
        self.models_records: Sequence[Mapping[str, Any]] = list(records)
        found = [each for record in self.models_records for each in record["results"]]
        self.models = {(each["model"], each["work"], each["provider"]): each for each in found}

    def measured(self, work: str) -> list[Mapping[str, Any]]:
        """Returns the measurements of models in one kind of work, such as training."""
        return [each for each in self.models.values() if each["work"] == work and each["tokens_per_second"]]

    def speed(self, model: str, provider: str, work: str = "training") -> float:
        """Returns the tokens per second of a training step, relative to the unchanged model."""
        return self._relative(model, provider, "tokens_per_second", work)

    def memory(self, model: str, provider: str) -> float:
        """Returns the peak memory of a training step, relative to the unchanged model."""
        return self._relative(model, provider, "peak_gib", "training")

    def _relative(self, model: str, provider: str, quantity: str, work: str) -> float:
        values = [self.models[model, work, name][quantity] for name in (provider, "unchanged")]
        return float(values[0] / values[1])
