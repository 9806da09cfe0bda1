"""Writes the kernels of a run into a folder, for the setting `dump`. Several processes may write at the same time."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from pathlib import Path

from tridal.runtime.compiler import source
from tridal.runtime.specialization import Specialization


def write_source(folder: str, specialization: Specialization, arch: str) -> Path:
    """Writes the source of a kernel, unless the folder has it, and returns the file. Its name has a hash of the source.

    Raises:
        OSError: the folder cannot be made, or the file cannot be written.
    """
    text, path = source(specialization), Path(os.path.expanduser(folder))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    file = path / f"{re.sub(r'[^a-zA-Z0-9_]+', '_', f'{specialization.kernel.name}-{arch}')}-{digest}.py"
    if not file.exists():
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text)
    return file


def write_atomically(file: Path, text: str) -> None:
    """Writes a file under another name first, so that it is never incomplete. An error keeps the former content."""
    new = file.with_name(f".{file.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        new.write_text(text)
        os.replace(new, file)
    finally:
        new.unlink(missing_ok=True)
