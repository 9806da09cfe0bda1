"""Finds a `breakpoint()` that was left in a kernel. Only Triton's interpreter can run it, and a compiler cannot."""

from __future__ import annotations

import inspect
import os
from typing import Any

from tridal.kernels.function_errors import called_functions


def find_breakpoint(*functions: Any) -> str | None:
    """Returns the "file:line" of a `breakpoint()` in Triton functions or in functions that they call, or None."""
    for _, python in called_functions(functions):
        code = python.__code__
        if "breakpoint" in code.co_names:
            lines, first = inspect.getsourcelines(python)
            file = os.path.normpath(code.co_filename)  # an instance of a schedule has another folder
            return next(f"{file}:{first + i}" for i, line in enumerate(lines) if "breakpoint(" in line)
    return None
