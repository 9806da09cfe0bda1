"""Ctrl-C while a command of tridal imports its modules: the process ends with 130, without a traceback.

Importing torch takes seconds. Some libraries catch KeyboardInterrupt meanwhile, so that the command would go on.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

EXIT_CODE = 130
"""The exit code of a process that Ctrl-C ends."""


def _exit(*_: Any) -> None:
    os._exit(EXIT_CODE)


def exit_at_interrupt() -> None:
    """Lets SIGINT end the process, unless another handler than Python's is set. For the main thread only."""
    unchanged = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if unchanged and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _exit)


def raise_at_interrupt() -> None:
    """Lets SIGINT raise KeyboardInterrupt again. Undoes `exit_at_interrupt`."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)
