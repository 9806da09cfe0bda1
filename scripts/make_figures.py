"""Makes the figures of README.md and docs/ from the results that are stored in docs/benchmarks.

    python scripts/make_figures.py [--check]

Reads docs/benchmarks/**/results.json (`tridal bench`) and docs/benchmarks/models/models.json (benchmarks/models.py).

- Writes each picture as NAME.svg for a light page and NAME-dark.svg for a dark one, and a results.md beside each
  results.json. Deletes all other pictures in docs/benchmarks/.
- Writes the descriptions of these pictures in README.md and docs/.
- Writes the text between `<!-- figures: NAME OP on GPU -->` and `<!-- end of figures -->` in these pages. NAME is a
  function of a module of figures. It gets the results of OP, or all results if OP is
  absent. Without "on GPU", these are the results on an H200, and those of models.

A second run changes nothing. Also computes the figures in sentences, and lists those that are not on their page
(figures/claims.py); the exit code is then 1. With --check, nothing is written, and the exit code is 1 if a file would
change. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path[1:1] = [str(Path(__file__).parents[1] / folder) for folder in ("src", "benchmarks")]

from figures import benchmark_pages, claims, device_table, families, front_page, pictures, requirements  # noqa: E402
from figures.stored import BENCHMARKS, ROOT, Results  # noqa: E402
from tridal.benchmarks import plot_style  # noqa: E402

PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "results.md")]
MODULES = (benchmark_pages, front_page, families, device_table, requirements)
BLOCKS = {name: write for module in MODULES for name, write in module.BLOCKS.items()}
BLOCK = re.compile(
    r"(?P<begin><!-- figures: (?P<name>\w+)(?: (?!on )(?P<op>\w+))?(?: on (?P<gpu>\w+))? -->\n)"
    r".*?(?P<end><!-- end of figures -->\n)",
    re.DOTALL,
)
LINKS = {
    "(QUACK)": "docs/benchmarks/softmax.md#quack", "(SPEED)": "docs/models.md#speed",
    "(SUPPORTED)": "docs/supported-models.md", "(H200)": "docs/benchmarks/h200.md", "(H100)": "docs/benchmarks/h100.md",
}  # fmt: skip
"""Links in blocks, relative to the repository."""


def with_blocks(page: Path, text: str, results: Results) -> str:
    """Returns the text of a page with new blocks of figures."""

    def replace(block: re.Match[str]) -> str:
        if block["name"] not in BLOCKS:
            sys.exit(f"{page}: no figures are called {block['name']!r}; known: {', '.join(BLOCKS)}")
        found = results.gpus[block["gpu"]] if block["gpu"] else results
        lines = BLOCKS[block["name"]](found.ops[block["op"]] if block["op"] else found)
        written = "\n".join([block["begin"], *lines, "", block["end"]])
        for name, target in LINKS.items():
            written = written.replace(name, f"({os.path.relpath(ROOT / target, page.parent)})")
        return written

    return BLOCK.sub(replace, text)


def make_pages(results: Results, descriptions: Mapping[Path, str]) -> dict[Path, str]:
    """Returns the text of each page. `descriptions` are those of the pictures."""
    pages = pictures.results_pages(results, descriptions)
    for page in PAGES:
        pages[page] = with_blocks(page, pictures.describe_images(page, page.read_text(), descriptions), results)
    return pages


def make_files(results: Results) -> dict[Path, str]:
    """Returns the text of each picture and page."""
    files: dict[Path, str] = {}
    with plot_style.style():
        drawn = pictures.all_pictures(results)
        for file, picture in drawn.items():
            files |= pictures.texts(file, picture)
    return files | make_pages(results, {file: picture.description for file, picture in drawn.items()})


def main() -> None:
    """Writes the files that have changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file would change")
    check = parser.parse_args().check
    results = Results()
    files = make_files(results)
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
    faults = claims.faults(results)
    print(*faults, sep="\n", end="\n" * bool(faults))
    sys.exit(bool(faults or (check and (changed or found - files.keys()))))


if __name__ == "__main__":
    main()
