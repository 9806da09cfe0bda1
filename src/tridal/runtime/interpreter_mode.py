"""Runs Triton's interpreter and its compiler in one process, in any order.

Triton decides whether a function is compiled or interpreted when the function is decorated. Its interpreter patches
`triton.language` and does not restore everything. Here every function is decorated for the compiler. `interpreted`
makes interpreted twins of a kernel and of all functions that it calls. While a kernel runs, `interpreting` replaces the
functions of Triton's own library (`tl.sum`, `tl.cdiv`, ...) by interpreted twins.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

_VARIABLE = "TRITON_INTERPRET"


def interpreted(function: Any) -> Any:
    """Makes the interpreted twin of a Triton or Python function. The twin calls interpreted twins, too."""
    from triton.runtime.interpreter import InterpretedFunction

    python = getattr(function, "fn", function)
    if python not in _twins_of:
        scope = {"triton_language": import_module("triton.language"), **python.__globals__}  # the interpreter needs it
        twin = FunctionType(python.__code__, scope, python.__name__, python.__defaults__)
        _twins_of[python] = InterpretedFunction(twin)  # before the next line, because a function may call itself
        _interpret_called(python.__code__, scope)
    return _twins_of[python]


_twins_of: dict[Any, Any] = {}


def _interpret_called(code: CodeType, scope: dict[str, Any]) -> None:
    """Replaces the Triton functions that a function calls by their twins, in its globals."""
    for name in code.co_names:
        called = scope.get(name)
        if _is_kernel(called):
            scope[name] = interpreted(called)
        elif isinstance(called, ModuleType) and not called.__name__.startswith("triton"):
            members = vars(called).items()
            scope[name] = SimpleNamespace(**{key: interpreted(m) if _is_kernel(m) else m for key, m in members})


def load_interpreted(parts: Iterable[tuple[str, str, Sequence[str]]], scope: dict[str, Any]) -> None:
    """Executes source text in `scope`, and makes interpreted functions of the functions in it.

    Each part has a text, the path of its file, and the names of its functions. Triton's interpreter would read and
    rewrite the source of each function alone, which takes several times as long as the launch of a small kernel.
    """
    from triton.runtime import interpreter

    own: list[FunctionType] = []
    for text, path, names in parts:
        exec(_rewritten(text, path), scope)
        own += [scope[name] for name in names]
    for function in own:
        _interpret_called(function.__code__, scope)
    for name, member in vars(interpreter).items():
        scope.setdefault(name, member)  # rewritten functions use some of them
    for function in own:
        twin = scope[function.__name__] = interpreter.InterpretedFunction(function)
        twin.rewritten_fn[function] = function


@functools.lru_cache(maxsize=1024)
def _rewritten(text: str, path: str) -> CodeType:
    """Rewrites functions as Triton's interpreter does. Kernels share the text of some files."""
    from triton.runtime.interpreter import FunctionRewriter

    tree = ast.parse(text)
    for number, node in enumerate(tree.body):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
            tree.body[number] = FunctionRewriter.ast_transformer.visit(node)
    return compile(ast.fix_missing_locations(tree), path, "exec")


def can_load_interpreted() -> bool:
    """Tells whether Triton's interpreter has the members that `load_interpreted` uses."""
    from triton.runtime import interpreter

    rewriter = getattr(interpreter, "FunctionRewriter", None)
    return hasattr(rewriter, "ast_transformer") and hasattr(interpreter.InterpretedFunction, "rewritten_fn")


def _is_kernel(value: object) -> bool:
    """Returns whether a value is a Triton function outside Triton's own library, compiled or interpreted."""
    return hasattr(value, "arg_names") and not str(getattr(value, "__module__", "")).startswith("triton.language")


@contextlib.contextmanager
def interpreting(triton: ModuleType) -> Iterator[None]:
    """Context manager for one launch of an interpreted kernel. No other thread may compile or interpret meanwhile.

    Triton patches its language at every call of a function. Here, all of it is patched once per launch.
    """
    from triton.runtime import interpreter

    changes, builder, patch = _changes(triton), interpreter.interpreter_builder, interpreter._patch_lang
    before = [(owner, name, vars(owner).get(name, _ABSENT)) for owner, name, _ in changes]
    options: Any = getattr(builder, "options", None)
    try:
        for owner, name, member in changes:
            setattr(owner, name, member)
        interpreter._patch_lang = lambda function: SimpleNamespace(restore=lambda: None)
        if _checks_in_vain(options):
            builder.options = replace(options, sanitize_overflow=False)
        with interpret_flag(True):
            yield
    finally:
        if options is not None:
            builder.options = options
        interpreter._patch_lang = patch
        _restore(before)


@functools.cache
def _changes(triton: ModuleType) -> list[tuple[Any, str, Any]]:
    """Lists (owner, name, interpreted member) for all of Triton that differs while a kernel is interpreted."""
    from triton.runtime import interpreter

    language, builder = triton.language, type(interpreter.interpreter_builder)
    owners: list[Any] = [language, language.core, language.math, language.standard, language.tensor, language.dtype]
    owners += [builder, *filter(None, [getattr(language.core, "tensor_descriptor_base", None)])]
    before = [(owner, name, member) for owner in owners for name, member in vars(owner).copy().items()]
    if not interpreted_library(triton):
        _interpret_library(triton)
    for module in (language, language.core):  # a function that sees one of them may call one that sees the other
        interpreter._patch_lang(SimpleNamespace(__globals__={"language": module}))
    if hasattr(builder, "create_splat") and hasattr(interpreter, "TensorHandle"):
        builder.create_splat = _with_bool_type(interpreter.TensorHandle, language.int1, builder.create_splat)
    known = {(id(owner), name): member for owner, name, member in before}
    changes = [
        (owner, name, member)
        for owner in owners
        for name, member in vars(owner).items()
        if known.get((id(owner), name), _ABSENT) is not member
    ]
    _restore([(owner, name, known.get((id(owner), name), _ABSENT)) for owner, name, _ in changes])
    return changes


def _restore(members: Iterable[tuple[Any, str, Any]]) -> None:
    for owner, name, member in members:
        if member is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, member)


_ABSENT = object()


def int64(triton: ModuleType, value: int) -> Any:
    """Passes a number as an argument with 64 bits. Triton's interpreter gives it 32 bits where these suffice."""
    import numpy
    from triton.runtime.interpreter import TensorHandle

    kind = triton.language.int64
    return triton.language.tensor(TensorHandle(numpy.array([value], numpy.int64), kind), kind)


def _checks_in_vain(options: Any) -> bool:
    """Tells whether Triton's interpreter looks for overflows of integers and ignores what it finds.

    Each sum, difference and product of integers is then computed twice, and compared with the largest integer.
    """
    return getattr(options, "sanitize_overflow", False) and not getattr(options, "debug", True)


def _with_bool_type(handle: Any, bool_type: Any, create: Any) -> Any:
    """Returns `create` for handles of booleans that have the type int1.

    In Triton's interpreter, a comparison has the type of its operands, for example int32. `create_splat` would convert
    its booleans to that type, and Triton 3.9 rejects a mask that is not boolean.
    """

    def create_with_bool_type(*args: Any) -> Any:
        return create(
            *(handle(a.data, bool_type) if isinstance(a, handle) and a.data.dtype == bool else a for a in args)
        )

    return create_with_bool_type


def interpreted_library(triton: ModuleType) -> bool:
    """Tells whether Triton was imported with TRITON_INTERPRET=1. Its library cannot be compiled then."""
    return type(triton.language.cdiv).__name__ == "InterpretedFunction"


def interpret_flag(on: bool) -> AbstractContextManager[None]:
    """Sets TRITON_INTERPRET in a context. Triton reads it when it decorates a function and when it interprets one."""
    return with_item(os.environ, _VARIABLE, "1" if on else "0")


@contextlib.contextmanager
def with_item(mapping: MutableMapping[str, Any], key: str, value: Any) -> Iterator[None]:
    """Sets one item in a context. `patch.dict` would also remove items that are added in the context."""
    before = mapping.get(key)
    mapping[key] = value
    try:
        yield
    finally:
        if before is None:
            del mapping[key]
        else:
            mapping[key] = before


def _interpret_library(triton: ModuleType) -> None:
    """Replaces each compiled function of Triton's library by its interpreted twin."""
    from triton.runtime.interpreter import InterpretedFunction

    functions = [
        (owner, name, member)
        for owner in (triton.language, triton.language.standard)
        for name, member in vars(owner).items()
        if isinstance(member, triton.JITFunction)
    ]
    # A function that has two names gets one twin, because functions are compared by identity.
    twins = {id(member): InterpretedFunction(member.fn) for _, _, member in functions}
    for owner, name, member in functions:
        setattr(owner, name, twins[id(member)])
