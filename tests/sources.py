"""Makes interpreted kernels faster in tests: Triton finds the functions of their source, and rewrites them, once."""

from __future__ import annotations

import functools
import inspect
from contextlib import suppress
from typing import Any


def read_once() -> None:
    """Remembers what `inspect` and Triton's interpreter found in equal sources. Kernels share most of their source."""
    if hasattr(inspect.getblock, "remembers"):
        return
    find = functools.lru_cache(maxsize=None)(inspect.getblock)

    def getblock(lines: Any) -> Any:
        return find(tuple(lines))

    getblock.remembers = inspect.getblock = getblock  # type: ignore[attr-defined]
    with suppress(ImportError, AttributeError):  # without Triton, and with another version of it
        from triton.runtime.interpreter import FunctionRewriter

        transform, trees = FunctionRewriter._transform_ast, dict[Any, Any]()

        def transformed(self: Any, source: str) -> Any:
            key = source, self.def_file_lineno
            if key not in trees:
                trees[key] = transform(self, source)
            return trees[key]

        FunctionRewriter._transform_ast = transformed
