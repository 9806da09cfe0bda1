"""Runs each function of an op on a small tile in Triton's interpreter, and checks the shape of its result.

A schedule combines results with tiles by broadcasting. A function that forgets `AXIS` then gives wrong results for some
shapes, and an error of the compiler for others. The tiles of a trial have other numbers of rows than of columns.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

from tridal.devices.lock import LOCK
from tridal.errors import PluginError
from tridal.kernels.function_caches import cached_by_functions
from tridal.kernels.function_errors import error_chain
from tridal.kernels.row_kernel import RowKernel
from tridal.runtime import compiler
from tridal.runtime.interpreter_mode import interpreting
from tridal.runtime.specialization import Specialization

ROWS, COLS = 4, 8
_TRIALS = ({"AXIS": 1, "PARTS": False}, {"AXIS": 0, "PARTS": False}, {"AXIS": 1, "PARTS": True})
_PLAN = {
    "ROWS": ROWS, "COLS": COLS, "ACC_DTYPE": "fp32", "EXP2_BIAS": None, "PROGRAMS_PER_ROW": 1, "PEEL": False,
    "REST_COLS": 0, "VECTOR": 1, "INT64_OFFSETS": False, "ZERO_MASKED_ROWS": False,
}  # fmt: skip
_HINT = (
    f". A tile of {ROWS} rows and {COLS} columns has the shape ({ROWS}, {COLS}), or ({COLS}, {ROWS}) if columns come "
    f"first; a number per row has the shape ({ROWS},): expand it with tl.expand_dims(number, AXIS)"
)
_STATISTICS = ("term", "rebase")
_BROADCAST = ("writes", "row_value", "row_writes", "top_writes")


@cached_by_functions
def check_functions(kernel: RowKernel) -> None:
    """Checks the functions of a third party's kernel once. Does nothing if the interpreter is not installed.

    Raises:
        PluginError: Triton's interpreter cannot run a function, or its result has a wrong shape or dtype.
    """
    installed = all(importlib.util.find_spec(package) is not None for package in ("triton", "numpy"))
    if installed and not is_own(kernel):
        try_functions(kernel)


def is_own(kernel: RowKernel) -> bool:
    """Whether the functions of a kernel are tridal's. Tests run their trials, so they need none before use."""
    return kernel.module.startswith(("tridal.kernels.", "tridal.library."))


def try_functions(kernel: RowKernel) -> None:
    """Runs the trials of a kernel's functions. Raises PluginError as `check_functions` does."""
    import numpy

    triton = compiler.import_triton()
    for trial in _TRIALS[:2] if kernel.whole_rows else _TRIALS:
        constants = (*_PLAN.items(), *trial.items(), ("report", functools.partial(_report, kernel)))
        specialization = Specialization(kernel, "trial", (), constants, (), 4, 1, None, False)
        launch = compiler.entry(specialization, interpret=True)[(1,)]
        named = compiler.naming_functions(specialization, "Triton's interpreter cannot run")
        try:
            with LOCK, interpreting(triton), numpy.errstate(all="ignore"), named:
                launch()
        except PluginError as error:
            shapes = any(word in str(error) for word in ("dimensions", "broadcast", "shape"))
            raise PluginError(f"{error}{_HINT if shapes else ''}") from error.__cause__
        except Exception as error:
            ended = error_chain(error)[-1]
            if isinstance(ended, PluginError):
                raise ended from None
            raise


def _report(kernel: RowKernel, role: str, name: str, result: Any, expected: Any) -> None:
    """The function `report` of a trial. Raises PluginError if a result has another shape or dtype than expected."""
    subject = f"kernel {kernel.name!r}: {name} of {kernel.module}"
    if role == "empty":
        if _has_nan(result):
            raise PluginError(
                f"{subject} returned NaN for an empty part of a row: expected a number. The maximum of a part "
                "without elements, or of a row of -inf, is -inf, and sums and part_count are 0"
            )
        return
    shape, wanted = _shape(result), _sizes(expected.shape)
    if shape is None:
        found = "None" if result is None else f"a {type(result).__name__}"
        raise PluginError(f"{subject} returned {found}: expected a tensor of the shape {wanted}")
    if shape != wanted and not (role in _BROADCAST and _fits(shape, wanted)):
        raise PluginError(f"{subject} returned the shape {shape}: expected {wanted}{_HINT}")
    if role in _STATISTICS and str(getattr(result, "dtype", "fp32")) != "fp32":
        raise PluginError(f"{subject} returned {result.dtype}: expected the dtype of its arguments, fp32")


def _has_nan(result: Any) -> bool:
    data = getattr(getattr(result, "handle", None), "data", None)
    return data is not None and bool((data != data).any())


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor, () for a number, and None for anything else."""
    if isinstance(value, (int, float)):
        return ()
    # An attribute of Triton's own class `tuple` raises ValueError if it does not exist.
    shape = None if type(value).__name__ == "tuple" else getattr(value, "shape", None)
    return None if shape is None else _sizes(shape)


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(int(getattr(size, "value", size)) for size in shape)


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a schedule broadcasts a shape to the wanted one without a wrong result."""
    return not shape or (len(shape) == len(wanted) and all(s in (1, w) for s, w in zip(shape, wanted, strict=True)))
