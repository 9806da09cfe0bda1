"""Writes the kernels of a run into a folder, for the setting `dump`. Several processes may write at the same time."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from tridal.runtime.compiler import source
from tridal.runtime.specialization import Specialization


def write_source(folder: str, specialization: Specialization, arch: str) -> Path:
    """Writes the source of a kernel, unless the folder has it, and returns the file. Its name has a hash of the source.

    The file is written under another name first, so that it is never incomplete.

    Raises:
        OSError: the folder cannot be made, or the file cannot be written.
    """
    text, path = source(specialization), Path(folder).expanduser()
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    file = path / f"{re.sub(r'[^a-zA-Z0-9_]+', '_', f'{specialization.kernel.name}-{arch}')}-{digest}.py"
    if not file.exists():
        path.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path)
        try:
            with open(handle, "w") as stream:
                stream.write(text)
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    return file
