"""Makes the pictures of docs/, and the pages of results, from the results that are stored there.

    python scripts/make_figures.py [--check]

Reads docs/benchmarks/**/results.json (`tridal bench`) and docs/benchmarks/models/models.json (benchmarks/models.py).
Writes each picture as NAME.svg for a light page and NAME-dark.svg for a dark one, and a results.md beside each
results.json. Updates the descriptions of these pictures in README.md and docs/. Deletes all other pictures in
docs/benchmarks/. A second run changes nothing. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

import model_plots  # noqa: E402
from model_tables import Result  # noqa: E402

from tridal.benchmarks import line_plot, plot_style, plots, report  # noqa: E402
from tridal.benchmarks.plot_text import UNITS, compact, describe_rates, describe_run, summarise  # noqa: E402
from tridal.benchmarks.results import distinct, load, select  # noqa: E402

BENCHMARKS = ROOT / "docs" / "benchmarks"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
IMAGE = re.compile(r'(?P<before>!\[|<img alt=")[^\]"]*(?P<after>\]\(|" src=")(?P<path>[^)"\s]+\.svg)')
"""A picture in Markdown, or in HTML with its description before its path."""


def plot_front(document: Mapping[str, Any]) -> plots.Picture:
    """Plots the share of copy of softmax's forward in bfloat16 against the number of columns."""
    rows = select(document["measurements"], dtype="bfloat16", direction="forward")
    rows = sorted((row for row in rows if row["group"] in ("rows", "wide")), key=lambda row: row["cols"])
    names, cols = report.providers(rows, skipped=False), distinct(rows, "cols")
    title = f"{document['op']} forward, bfloat16, on {document['machine']['name']}"
    caption = f"{describe_rates(document['machine'], 'share_of_copy')} {line_plot.SPREAD} {describe_run(document)}"
    figure, (axis,) = plot_style.make_figure(
        title, f"{UNITS['share_of_copy']}, by columns of a row", caption, [(250, 30)], above=14
    )
    axis.set_xscale("log", base=2)
    axis.set_xlim(cols[0] * 0.8, cols[-1] * 1.1)
    ticks = [width for width in cols if width & (width - 1) == 0]
    axis.set_xticks(ticks, [compact(width) for width in ticks])
    line_plot.scale_axis(axis, rows, "share_of_copy")
    lines = {name: [(row["cols"], row) for row in select(rows, provider=name)] for name in names}
    line_plot.plot_lines(axis, [lines], "share_of_copy")
    description = f"{title}: share of copy of rows with {compact(cols[0])} to {compact(cols[-1])} columns; "
    return plots.Picture("front", figure, description + summarise(rows, names, "share_of_copy") + ".")


def make_files() -> dict[Path, str]:
    """Returns the text of each picture and page."""
    files: dict[Path, str] = {}
    descriptions: dict[Path, str] = {}

    def add(folder: Path, picture: plots.Picture) -> None:
        light, dark = plot_style.svg_texts(picture.figure)
        files.update({folder / f"{picture.name}.svg": light, folder / f"{picture.name}-dark.svg": dark})
        descriptions[folder / f"{picture.name}.svg"] = picture.description

    with plot_style.style():
        for source in sorted(BENCHMARKS.rglob("results.json")):
            document, folder = load(source), source.parent
            for picture in plots.make_pictures(document):
                add(folder, picture)
            pictures = {file: text for file, text in descriptions.items() if file.parent == folder}
            files[folder / "results.md"] = report.markdown(document, pictures)
            if folder == BENCHMARKS:
                add(folder, plot_front(document))
        record = json.loads((BENCHMARKS / "models" / "models.json").read_text())
        results = [Result(**result) for result in record["results"] if result["work"] == "training"]
        for picture in model_plots.make_pictures(results, record["device"], record["versions"]):
            add(BENCHMARKS / "models", picture)
    for page in PAGES:
        files[page] = describe_images(page, descriptions)
    return files


def describe_images(page: Path, descriptions: Mapping[Path, str]) -> str:
    """Returns the text of a page, in which each picture with a description has it as its text."""

    def describe(image: re.Match[str]) -> str:
        text = descriptions.get((page.parent / image["path"]).resolve())
        return image[0] if text is None else image["before"] + text + image["after"] + image["path"]

    return IMAGE.sub(describe, page.read_text())


def main() -> None:
    """Writes the files that have changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file would change")
    check = parser.parse_args().check
    files = make_files()
    found = {file for pattern in ("*.svg", "*.png") for file in BENCHMARKS.rglob(pattern)}
    changed = sorted(file for file, text in files.items() if not file.exists() or file.read_text() != text)
    for file in sorted(found - files.keys()):
        print(f"deletes {file.relative_to(ROOT)}")
        if not check:
            file.unlink()
    for file in changed:
        print(f"writes {file.relative_to(ROOT)}")
        if not check:
            file.write_text(files[file])
    sys.exit(bool(check and (changed or found - files.keys())))


if __name__ == "__main__":
    main()
