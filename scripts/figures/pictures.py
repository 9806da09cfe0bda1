"""The pictures in docs/benchmarks/, the pages of results beside them, and the descriptions of pictures in pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import model_plots
from model_tables import Result

from figures.stored import BENCHMARKS, Results
from tridal.benchmarks import plot_style, plots, report
from tridal.benchmarks.results import select

SHOWN_OF_OTHER_GPUS = ("suite-bfloat16-forward", "suite-bfloat16-backward")
"""The pictures of ops on other GPUs than the H200. The tables have all results."""
IMAGE = re.compile(r'(?P<before>!\[|<img alt=")[^\]"]*(?P<after>\]\(|" src=")(?P<path>[^)"\s]+\.svg)')
"""A picture in Markdown, or in HTML with its description before its path."""


def plot_front(document: Mapping[str, Any]) -> plot_style.Picture:
    """Plots the share of copy of softmax's forward in bfloat16 by the number of columns."""
    rows = select(document["measurements"], dtype="bfloat16", direction="forward")
    rows = [row for row in rows if row["group"] in ("rows", "wide")]
    title = f"{document['op']}, bfloat16, on {document['machine']['name']}"
    return plots.plot_by_columns("front", title, rows, "share_of_copy", document)


def make_pictures(stored: Results) -> tuple[dict[Path, str], dict[Path, str]]:
    """Returns the text of each picture and of each page of results, and the description of each picture."""
    files: dict[Path, str] = {}
    descriptions: dict[Path, str] = {}

    def add(folder: Path, picture: plot_style.Picture) -> None:
        light, dark = plot_style.svg_texts(picture.figure)
        files.update({folder / f"{picture.name}.svg": light, folder / f"{picture.name}-dark.svg": dark})
        descriptions[folder / f"{picture.name}.svg"] = picture.description

    with plot_style.style():
        for gpu in (stored, *stored.gpus.values()):
            for op, document in gpu.ops.items():
                folder = gpu.folders[op]
                for picture in plots.make_pictures(document):
                    if gpu is stored or picture.name in SHOWN_OF_OTHER_GPUS:
                        add(folder, picture)
                pictures = {file: text for file, text in descriptions.items() if file.parent == folder}
                files[folder / "results.md"] = report.markdown(document, pictures)
        add(BENCHMARKS, plot_front(stored.ops["softmax"]))
        record = stored.models_record
        results = [Result(**result) for result in record["results"] if result["work"] == "training"]
        for picture in model_plots.make_pictures(results, record["device"], record["versions"]):
            add(BENCHMARKS / "models", picture)
    return files, descriptions


def describe_images(page: Path, text: str, descriptions: Mapping[Path, str]) -> str:
    """Returns the text of a page, in which each picture with a description has it as its text."""

    def describe(image: re.Match[str]) -> str:
        description = descriptions.get((page.parent / image["path"]).resolve())
        return image[0] if description is None else image["before"] + description + image["after"] + image["path"]

    return IMAGE.sub(describe, text)
