"""Records of computed calls: which backend, schedule or function of torch computed each call, and why."""

from __future__ import annotations

import atexit
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident

import torch

from tridal.devices import settings
from tridal.devices.lock import LOCK

VARIABLE = "TRIDAL_LOG_CALLS"
TORCH = "torch"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One computed call of an op or of its gradient."""

    op: str
    """The op, for example "softmax", or its gradient, for example "softmax_backward"."""
    shape: tuple[int, ...]
    """Shape of the first tensor; empty for nested tensors."""
    dtype: str
    """dtype of the first tensor: the input, or the gradient of the output."""
    device: str
    backend: str
    """The name of the backend, or "torch"."""
    schedule: str | None
    """The schedule of the kernel; None if torch computed the call."""
    reason: str | None
    """Why torch computed the call; None if a backend did."""

    @property
    def computed_by(self) -> str:
        """The backend and its schedule, or "torch" and the reason."""
        return f"{self.backend}: {self.schedule or self.reason}"

    def __str__(self) -> str:
        return f"{self.op} of {list(self.shape)} {self.dtype} on {self.device} by {self.computed_by}"


RECORDERS: list[Callable[[CallRecord], object]] = []
"""Functions that get each record. If the list is empty, a call only checks that it is empty."""


@contextmanager
def record_calls() -> Iterator[list[CallRecord]]:
    """Records the calls that all threads make in a `with` block: `with record_calls() as calls:`.

    The list receives a record once a backend or torch has been given the call. Calls in compiled functions are recorded
    if the compiled graph contains tridal's op. Replays of captured device graphs are not recorded.

    Example:
        >>> with tridal.record_calls() as calls:
        ...     y = tridal.softmax(torch.ones(2, 3))
        >>> print(calls[0])
        softmax of [2, 3] float32 on cpu by torch: no available backend serves cpu tensors
    """
    calls: list[CallRecord] = []

    def keep(call: CallRecord) -> None:
        calls.append(call)

    RECORDERS.append(keep)
    try:
        yield calls
    finally:
        RECORDERS.remove(keep)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Records no call in a `with` block of this thread, which also computes the backward passes of the block."""
    thread = get_ident()
    _UNRECORDED.append(thread)
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        _UNRECORDED.remove(thread)


_UNRECORDED: list[int] = []
"""The threads in a block of `unrecorded`."""


def record(call: CallRecord) -> None:
    """Passes a record to all recorders."""
    if get_ident() in _UNRECORDED:
        return
    for recorder in tuple(RECORDERS):
        recorder(call)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without "torch.", for example "float32"."""
    return str(dtype).removeprefix("torch.")


def record_torch(op: str, tensor: torch.Tensor, reason: str) -> None:
    """Records a call that torch computes."""
    shape = () if tensor.is_nested else tuple(tensor.shape)
    record(CallRecord(op, shape, dtype_name(tensor.dtype), str(tensor.device), TORCH, None, reason))


def start_from_environment() -> None:
    """Counts the calls of the whole process if TRIDAL_LOG_CALLS is true, and prints the counts when the process ends.

    Raises:
        SettingsError: the value of the variable is not a boolean.
    """
    if not settings.flag(VARIABLE):
        return
    counts: Counter[tuple[str, str]] = Counter()

    def count(call: CallRecord) -> None:
        with LOCK:
            counts[call.op, call.computed_by] += 1

    def report() -> None:
        lines = [f"{number} of {op} by {computed_by}" for (op, computed_by), number in counts.most_common()]
        print(*(f"tridal: {line}" for line in lines or ["no calls"]), sep="\n", file=sys.stderr)

    RECORDERS.append(count)
    atexit.register(report)
