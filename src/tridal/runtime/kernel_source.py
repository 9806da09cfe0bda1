"""Loads a written kernel, for Triton's compiler or its interpreter.

The text and the files with functions that it calls are executed in one scope, with their constants. The functions of
the op are those of its module, `op_math`.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import re
from pathlib import Path
from types import CodeType
from typing import Any

import tridal.kernels
from tridal.kernels.op_functions import op_math_of, triton_functions
from tridal.kernels.row_kernel import RowKernel
from tridal.kernels.written import WrittenKernel
from tridal.runtime.interpreter_mode import load_interpreted


def load(kernel: RowKernel, entry: str, written: WrittenKernel, interpret: bool) -> Any:
    """Loads the function `entry` of a written kernel for Triton's compiler or for its interpreter."""
    import triton
    import triton.language as tl

    files, constants = _files(kernel, written), written.constants
    scope = {"triton": triton, "tl": tl, "op_math": op_math_of(kernel), "__name__": "tridal.kernels.written_kernel"}
    if interpret:
        scope = {**constants, **scope}
        for path, text in files.items():
            _code(path, text)
        load_interpreted([(text, path, re.findall(r"(?m)^def (\w+)", text)) for path, text in files.items()], scope)
        return scope[entry]
    scope = {**{name: value if callable(value) else tl.constexpr(value) for name, value in constants.items()}, **scope}
    # Triton 3.2 does not hash all that a function uses. All versions hash the comment with this hash.
    used = repr(([function.cache_key for function in triton_functions(kernel)], [*files.items()], constants))
    path, text = files.popitem()
    files[path] = re.sub(rf"(?ms)^(def {entry}\(.*?\):)$", rf"\1  # {_digest(used)}", text, count=1)
    for path, text in files.items():
        exec(_code(path, text), scope)
    return scope[entry]


def _files(kernel: RowKernel, written: WrittenKernel) -> dict[str, str]:
    """Returns the text of each part by its path. The kernel is the last one.

    Texts of a file differ between kernels, so the path has a folder that does not exist, and which `os.path.normpath`
    and pdb remove.
    """
    folder: str = tridal.kernels.__path__[0]
    helpers = {str(Path(folder, _digest(text), "..", f"{name}.py")): text for name, text in written.helpers.items()}
    return {**helpers, f"<{kernel.name}-{_digest(written.text)}>": written.text}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@functools.lru_cache(maxsize=1024)
def _code(path: str, text: str) -> CodeType:
    """Compiles a text, and puts it into the line cache, where a debugger and `inspect` find it."""
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    return compile(text, path, "exec")
