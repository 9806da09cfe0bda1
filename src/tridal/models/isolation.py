"""Runs comparisons so that no mode, setting or random state of the program changes their results."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any, TypeVar

import torch

from tridal.devices.settings import use
from tridal.models.replacements import COMPARING
from tridal.pytorch.call_records import unrecorded

Result = TypeVar("Result")


def isolated(function: Callable[..., Result], *arguments: Any) -> Result:
    """Calls a function in a new thread, and returns its result.

    Autocast, grad mode, other modes, transforms, hooks of saved tensors and blocks of `tridal.use` belong to a thread.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *arguments).result()


@contextmanager
def plain_mode(device: torch.device | str) -> Iterator[None]:
    """A context that sets what all threads share to torch's defaults. It also leaves out records and warnings."""
    device, thread = torch.device(device), get_ident()
    others, kinds = ([], {}) if device.type == "cpu" else ([device], {"device_type": device.type})
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(others, **kinds))
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed accelerators, too
        if (dtype := torch.get_default_dtype()) is not torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, dtype)
        if torch.are_deterministic_algorithms_enabled():
            warns = torch.is_deterministic_algorithms_warn_only_enabled()
            torch.use_deterministic_algorithms(False)
            stack.callback(torch.use_deterministic_algorithms, True, warn_only=warns)
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        stack.enter_context(use(fallback="torch"))
        stack.enter_context(unrecorded())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # torch warns about dtypes that the program may never use
        COMPARING.append(thread)
        stack.callback(COMPARING.remove, thread)
        yield
