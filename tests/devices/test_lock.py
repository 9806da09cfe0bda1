"""The lock: a forked child can compute while a thread of its parent interprets, compiles or loads plugins."""

from __future__ import annotations

import os
import textwrap
import threading

import pytest

from processes import python
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


def test_forked_children_compute_while_a_thread_interprets() -> None:
    pytest.importorskip("triton")
    program = """
        import faulthandler, os, threading, torch, tridal
        torch.set_num_threads(1)
        x = torch.randn(5, 37)
        with tridal.use(device="interpreter"):
            expected = tridal.softmax(x)
            started, stop = threading.Event(), threading.Event()

            def interpret():
                with tridal.use(device="interpreter"):  # each thread has its own settings
                    while not stop.is_set():
                        tridal.softmax(x)
                        started.set()

            thread = threading.Thread(target=interpret)
            thread.start()
            started.wait()
            children = []
            for width in range(30, 38):
                child = os.fork()
                if child == 0:
                    faulthandler.dump_traceback_later(60, exit=True)  # a child that hangs shows where, and fails
                    part = x[:, :width]
                    os._exit(0 if torch.allclose(tridal.softmax(part), torch.softmax(part, -1)) else 1)
                children.append(child)
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            stop.set()
            thread.join()
            print(codes, torch.equal(tridal.softmax(x), expected))
    """
    done = python("-c", textwrap.dedent(program))
    assert done.stdout.split("\n")[0] == f"{[0] * 8} True", done.stderr
