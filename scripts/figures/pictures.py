"""The pictures in docs/benchmarks/, the pages of results beside them, and the descriptions of pictures in pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import model_plots
from model_results import Result

from figures.stored import BENCHMARKS, Results
from tridal.benchmarks import plot_style, plots, report
from tridal.benchmarks.results import select

SHOWN = ("suite-bfloat16-forward", "suite-bfloat16-backward")
"""The pictures of ops. The tables have all results."""
IMAGE = re.compile(r'(?P<before>!\[|<img alt=")[^\]"]*(?P<after>\]\(|" src=")(?P<path>[^)"\s]+\.svg)')
"""A picture in Markdown, or in HTML with its description before its path."""


def plot_front(document: Mapping[str, Any]) -> plot_style.Picture:
    """Plots the share of copy of softmax's forward in bfloat16 by the number of columns."""
    rows = select(document["measurements"], dtype="bfloat16", direction="forward")
    rows = [row for row in rows if row["group"] in ("rows", "wide")]
    title = f"{document['op']}, bfloat16, on {document['machine']['name']}"
    return plots.plot_by_columns("front", title, rows, "share_of_copy", document)


def all_pictures(stored: Results) -> dict[Path, plot_style.Picture]:
    """Returns each picture by the path of its file for a light page."""
    found: dict[Path, plot_style.Picture] = {}
    for gpu in (stored, *stored.gpus.values()):
        for op, document in gpu.ops.items():
            shown = (picture for picture in plots.make_pictures(document) if picture.name in SHOWN)
            found |= {gpu.folders[op] / f"{picture.name}.svg": picture for picture in shown}
    found[BENCHMARKS / "front.svg"] = plot_front(stored.ops["softmax"])
    for record in stored.models_records:
        results = [Result(**result) for result in record["results"] if result["work"] != "decoding"]
        for picture in model_plots.make_pictures(results, record["device"], record["versions"]):
            found[BENCHMARKS / "models" / f"{picture.name}.svg"] = picture
    return found


def texts(file: Path, picture: plot_style.Picture) -> dict[Path, str]:
    """Returns the text of a picture's file for a light page, and of that for a dark page."""
    light, dark = plot_style.svg_texts(picture.draw())
    return {file: light, file.with_name(f"{file.stem}-dark.svg"): dark}


def results_pages(stored: Results, descriptions: Mapping[Path, str]) -> dict[Path, str]:
    """Returns the text of the page of results beside each results.json."""
    pages = {}
    for gpu in (stored, *stored.gpus.values()):
        for op, document in gpu.ops.items():
            shown = {file: text for file, text in descriptions.items() if file.parent == gpu.folders[op]}
            shown.pop(BENCHMARKS / "front.svg", None)
            pages[gpu.folders[op] / "results.md"] = report.markdown(document, shown)
    return pages


def describe_images(page: Path, text: str, descriptions: Mapping[Path, str]) -> str:
    """Returns the text of a page, in which each picture with a description has it as its text."""

    def describe(image: re.Match[str]) -> str:
        description = descriptions.get((page.parent / image["path"]).resolve())
        return image[0] if description is None else image["before"] + description + image["after"] + image["path"]

    return IMAGE.sub(describe, text)
