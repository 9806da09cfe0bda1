"""Adds the README and the addresses of the project to the package's metadata.

PyPI shows the README without the repository. So if the environment variable REPOSITORY_URL is the address of the
repository, as GitHub shows it, relative links become absolute.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Metadata(MetadataHookInterface):
    """Sets the fields that pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets `readme`, and `urls` if the address of the repository is known."""
        text = Path(self.root, "README.md").read_text()
        if repository := os.environ.get("REPOSITORY_URL"):
            text = re.sub(r"(!\[[^\]]*\]\(|(?:src|srcset)=\")(?!https:)", rf"\g<1>{repository}/raw/HEAD/", text)
            text = re.sub(r"(\]\()(?!https:)", rf"\g<1>{repository}/blob/HEAD/", text)
            metadata["urls"] = {
                "Source": repository,
                "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
