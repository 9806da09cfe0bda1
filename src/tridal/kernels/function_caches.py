"""The caches of what follows from the Triton functions of kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_caches: list[Any] = []


def cached_by_functions(function: _Function) -> _Function:
    """Caches what follows from the Triton functions of a kernel, until `forget_functions`."""
    _caches.append(functools.lru_cache(maxsize=1024)(function))
    return _caches[-1]  # type: ignore[no-any-return]


def forget_functions() -> None:
    """Clears what follows from the Triton functions of kernels, because a module has other functions."""
    for cache in _caches:
        cache.cache_clear()
