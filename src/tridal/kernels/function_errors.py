"""Describes an error of Triton in an op's function: the function, its file and line, and Triton's reason.

Triton's compiler raises a CompilationError for each call on the way to the fault. The errors are chained, and only the
last one has the reason. Triton's interpreter raises a chain of InterpreterErrors, whose last cause is the fault.
"""

from __future__ import annotations

import inspect
import linecache
import os
import traceback
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any


def called_functions(functions: Iterable[Any]) -> Iterator[tuple[Any, FunctionType]]:
    """Yields each Triton function, and each function that it calls, with its Python function. Callers come first.

    Functions of Triton's own library are left out.
    """
    pending, seen = list(functions), set()
    while pending:
        function = pending.pop()
        python = inspect.unwrap(getattr(function, "fn", function))
        code = getattr(python, "__code__", None)
        if code is None or code in seen:
            continue
        seen.add(code)
        yield function, python
        scope = [python.__globals__, *(vars(m) for m in python.__globals__.values() if isinstance(m, ModuleType))]
        called = (names[name] for names in scope for name in code.co_names if name in names)
        pending += [f for f in called if hasattr(f, "arg_names") and not f.__module__.startswith("triton.")]


def find_breakpoint(function: Any) -> str | None:
    """Looks for a `breakpoint()` in a function or in one that it calls, and gives its "file:line"."""
    for _, python in called_functions([function]):
        code = python.__code__
        if "breakpoint" in code.co_names:
            lines, first = inspect.getsourcelines(python)
            file = os.path.normpath(code.co_filename)  # an instance of a schedule has another folder
            return next(f"{file}:{first + i}" for i, line in enumerate(lines) if "breakpoint(" in line)
    return None


def describe(error: BaseException, functions: Iterable[Any]) -> str | None:
    """Returns "function, file:line: source: reason", or None if the fault is not in these functions or in callees."""
    known = [*called_functions(functions)]
    places = [place for link in error_chain(error) for place in (*_compiled(link, known), *_interpreted(link, known))]
    if not places:
        return None
    (outer, _), (function, line) = places[0], places[-1]
    name, file = function.__name__, os.path.normpath(function.__code__.co_filename)  # an instance has another folder
    caller = "" if function is outer else f", called by {outer.__name__}"
    return f"{name}{caller}, {file}:{line}: {linecache.getline(file, line).strip()!r}: {reason(error)}"


def describe_unhashable(functions: Iterable[Any]) -> str | None:
    """Returns the same for the first function whose source Triton cannot hash, without the source; None if it can."""
    for function, python in reversed([*called_functions(functions)]):
        try:
            getattr(function, "cache_key", None)
        except Exception as error:
            code = python.__code__
            return f"{python.__name__}, {code.co_filename}:{code.co_firstlineno}: {reason(error)}"
    return None


def reason(error: BaseException) -> str:
    """Takes the message of the first error in a chain of errors, in one line."""
    cause = error_chain(error)[-1]
    if hasattr(cause, "error_message"):  # a CompilationError, whose text contains the source
        return " ".join((cause.error_message or type(cause).__name__).split())
    return ": ".join(filter(None, (type(cause).__name__, " ".join(str(cause).split()))))


def error_chain(error: BaseException) -> list[BaseException]:
    """Follows the cause of an error, the cause of its cause, and so on."""
    chain, cause = [error], error.__cause__
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__
    context = chain[-1].__context__  # Triton hides the cause of the last CompilationError
    return [*chain, context] if context and repr(context) == getattr(chain[-1], "error_message", None) else chain


def _compiled(error: Any, known: Iterable[tuple[Any, FunctionType]]) -> Iterator[tuple[FunctionType, int]]:
    """Yields the function and the line of a CompilationError, which has the function's source and a syntax node."""
    for function, python in known if hasattr(error, "node") else ():
        if getattr(function, "src", None) == error.src:
            lines, first = inspect.getsourcelines(python)
            decorators = next(i for i, line in enumerate(lines) if line.lstrip().startswith("def "))
            yield python, first + decorators + getattr(error.node, "lineno", 1) - 1
            return


def _interpreted(error: BaseException, known: Iterable[tuple[Any, FunctionType]]) -> Iterator[tuple[FunctionType, int]]:
    """Yields the functions and lines in a traceback. Triton's interpreter compiles functions again, by name."""
    named = {(python.__code__.co_filename, python.__name__): python for _, python in known}
    for frame in traceback.extract_tb(error.__traceback__):
        if (frame.filename, frame.name) in named:
            yield named[frame.filename, frame.name], frame.lineno or 0
