"""The block with the requirements, made from pyproject.toml and the tested versions."""

from __future__ import annotations

import re

from figures.stored import ROOT, Results
from tridal.cli.tested_versions import PAIRS


def requirements(results: Results) -> list[str]:
    """A line per requirement."""
    found = re.search(r'^requires-python = ">=(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    lines = (
        ("system", "Linux"),
        ("Python", f"{found[1]} or newer"),
        ("torch and Triton, all tests pass on a CPU", ", ".join(f"{torch} and {triton}" for torch, triton in PAIRS)),
        ("NVIDIA GPU", "compute capability 8.0 or newer"),
        ("`kernelize`", "transformers"),
    )
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in lines)]


BLOCKS = {requirements.__name__: requirements}
"""The function that writes the block. It gets all results."""
