"""Loads a written kernel, for Triton's compiler or its interpreter, and prints it as a text that runs alone.

The text and the files with functions that it calls are executed in one scope, with their constants. The functions of
the op are those of its module, `maths`.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import tridal.kernels
from tridal.kernels.op_functions import maths_of, triton_functions
from tridal.kernels.row_kernel import RowKernel
from tridal.kernels.written import WrittenKernel
from tridal.runtime.interpreter_mode import load_interpreted
from tridal.runtime.standalone import standalone


class KernelSource:
    """The source of a kernel."""

    def __init__(self, kernel: RowKernel, entry: str, arguments: tuple[str, ...], constants: dict[str, Any]) -> None:
        """See `WrittenKernel`."""
        self._kernel, self._entry = kernel, entry
        self._written = WrittenKernel(kernel, entry, arguments, constants)

    def load(self) -> Any:
        """Returns the Triton function of the kernel."""
        import triton.language as tl

        constants = self._written.constants.items()
        scope = self._scope({name: value if callable(value) else tl.constexpr(value) for name, value in constants})
        files = [*self._files()]
        # Triton 3.2 does not hash all that a function uses. All versions hash the comment with this hash.
        used = repr(
            ([function.cache_key for function in triton_functions(self._kernel)], files, self._written.constants)
        )
        path, text = files.pop()
        files.append((path, re.sub(rf"(?ms)^(def {self._entry}\(.*?\):)$", rf"\1  # {_digest(used)}", text, count=1)))
        for path, text in files:
            exec(_code(path, text), scope)
        return scope[self._entry]

    def load_interpreted(self) -> Any:
        """Returns the same function for Triton's interpreter."""
        scope = self._scope(self._written.constants)
        files = [*self._files()]
        for path, text in files:
            _code(path, text)
        load_interpreted([(text, path, re.findall(r"(?m)^def (\w+)", text)) for path, text in files], scope)
        return scope[self._entry]

    def _scope(self, constants: dict[str, Any]) -> dict[str, Any]:
        import triton
        import triton.language as tl

        maths = maths_of(self._kernel)
        return {**constants, "triton": triton, "tl": tl, "maths": maths, "__name__": "tridal.kernels.written_kernel"}

    def _files(self) -> Iterator[tuple[str, str]]:
        """Yields the path and the text of each part. The kernel is the last one.

        Texts of a file differ between kernels, so the path has a folder that does not exist, and which
        `os.path.normpath` and pdb remove.
        """
        for name, text in self._written.helpers.items():
            yield str(Path(tridal.kernels.__path__[0], _digest(text), "..", f"{name}.py")), text
        yield f"<{self._kernel.name}-{_digest(self._written.text)}>", self._written.text

    @property
    def alone(self) -> str:
        """The kernel with all functions that it calls, which runs without tridal."""
        return standalone(self._kernel, self._written)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@functools.lru_cache(maxsize=1024)
def _code(path: str, text: str) -> CodeType:
    """Returns code whose text a debugger and `inspect` find in the line cache."""
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    return compile(text, path, "exec")
