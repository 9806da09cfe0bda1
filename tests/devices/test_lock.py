"""The lock: a forked child can compute while a thread of its parent interprets, compiles or loads plugins."""

from __future__ import annotations

import os
import threading

import pytest

from tridal.devices.lock import LOCK

pytestmark = pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="this system cannot fork")


def test_a_fork_waits_until_another_thread_releases_the_lock() -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with LOCK:
            held.set()
            release.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    threading.Timer(0.2, release.set).start()
    child = os.fork()
    if child == 0:
        os._exit(0 if LOCK.acquire(timeout=10) else 1)
    assert release.is_set(), "the fork waited"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join(10)
    assert LOCK.acquire(timeout=10)
    LOCK.release()
