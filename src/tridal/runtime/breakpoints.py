"""Finds a `breakpoint()` that was left in a kernel. Only Triton's interpreter can run it, and a compiler cannot."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any


def find_breakpoint(*functions: Any) -> str | None:
    """Returns the "file:line" of a `breakpoint()` in Triton functions or in functions that they call, or None."""
    pending, seen = list(functions), set()
    while pending:
        function = pending.pop()
        python = inspect.unwrap(getattr(function, "fn", function))
        code = getattr(python, "__code__", None)
        if code is None or code in seen:
            continue
        seen.add(code)
        if "breakpoint" in code.co_names:
            lines, first = inspect.getsourcelines(python)
            return next(f"{code.co_filename}:{first + i}" for i, line in enumerate(lines) if "breakpoint(" in line)
        scope = [python.__globals__, *(vars(m) for m in python.__globals__.values() if isinstance(m, ModuleType))]
        called = (names[name] for names in scope for name in code.co_names if name in names)
        pending += [f for f in called if hasattr(f, "arg_names") and not f.__module__.startswith("triton.")]
    return None
