"""The names that the code of a module's forward uses, inside its decorators."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import torch


def own_forward(module: torch.nn.Module) -> Any:
    """Returns the function of a class's forward without its decorators, or None if it is no function of Python."""
    forward = inspect.unwrap(type(module).forward)
    return forward if isinstance(forward, types.FunctionType) else None


def forward_names(module: torch.nn.Module) -> list[str]:
    """Returns the globals and attributes that the forward of a module's class uses."""
    forward = own_forward(module)
    return [] if forward is None else [*names_in(forward.__code__)]


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yields the globals and attributes that a code uses, also in functions inside."""
    yield from code.co_names
    for inside in code.co_consts:
        if isinstance(inside, types.CodeType):
            yield from names_in(inside)
