"""The lock of tridal's caches, settings and registry, and of Triton's compiler and interpreter.

A fork waits until no other thread holds the lock. Otherwise a child, say a worker of a DataLoader, would inherit
a lock whose owner it does not have, and a `triton.language` that the interpreter has patched.
"""

import os
import threading

LOCK = threading.RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)
