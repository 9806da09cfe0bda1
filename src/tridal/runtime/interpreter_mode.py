"""Triton's interpreter beside its compiler: both in one process, in any order.

Triton decides on import whether its own library (`tl.sum`, `tl.cdiv`, ...) is compiled or interpreted, and its
interpreter patches `triton.language` without taking everything back. So the library is always imported to be compiled,
and lent an interpreted twin of each of its functions for as long as a kernel is interpreted.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_VARIABLE = "TRITON_INTERPRET"


@contextlib.contextmanager
def interpreting(triton: ModuleType) -> Iterator[None]:
    """For the launch of an interpreted kernel. No other thread may compile or interpret meanwhile."""
    language = triton.language
    patched: list[Any] = [language, language.core, language.math, language.tensor, language.dtype]
    before = [dict(vars(owner)) for owner in patched]
    twins = () if interpreted_library(triton) else _twins(triton)
    try:
        for owner, name, _, twin in twins:
            setattr(owner, name, twin)
        with interpret_flag(True):
            yield
    finally:
        for owner, name, compiled, _ in twins:
            setattr(owner, name, compiled)
        for owner, members in zip(patched, before, strict=True):
            now = dict(vars(owner))
            for name in now.keys() - members.keys():
                delattr(owner, name)
            for name in (name for name, member in members.items() if now.get(name) is not member):
                setattr(owner, name, members[name])


def interpreted_library(triton: ModuleType) -> bool:
    """Whether Triton was imported with TRITON_INTERPRET=1, so that its own library can't be compiled."""
    return type(triton.language.cdiv).__name__ == "InterpretedFunction"


@contextlib.contextmanager
def interpret_flag(on: bool) -> Iterator[None]:
    """Sets TRITON_INTERPRET, which Triton reads when it decorates a function and while it interprets one."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1" if on else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


@functools.cache
def _twins(triton: ModuleType) -> tuple[tuple[ModuleType, str, Any, Any], ...]:
    """Module, name, compiled function and interpreted twin, for every function of Triton's library that is compiled."""
    from triton.runtime.interpreter import InterpretedFunction

    functions = [
        (owner, name, member)
        for owner in (triton.language, triton.language.standard)
        for name, member in vars(owner).items()
        if isinstance(member, triton.JITFunction)
    ]
    twins = {id(member): InterpretedFunction(member.fn) for _, _, member in functions}  # one each: compared by identity
    return tuple((owner, name, member, twins[id(member)]) for owner, name, member in functions)
