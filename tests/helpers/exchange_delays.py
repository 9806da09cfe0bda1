"""Copies of the kernels' modules with a random delay before each step of the exchange, for tests on a GPU.

A step is a statement of `exchange` or `tile_counter` with an access of the workspace or a barrier. Each warp of each
program waits for its own time: most times less than 1 us, at times up to 33 us.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tridal.kernels import written
from tridal.runtime import compiler, launch

STEPS = {"load", "store", "atomic_xchg", "atomic_add", "debug_barrier"}
shipped_text = written.helper_text
DELAYED = ("exchange", "tile_counter")

DELAY = '''
_SLEEP = tl.constexpr("""
{
    .reg .u32 a, b, c;
    .reg .pred long;
    mov.u32 a, %tid.x;
    shr.u32 a, a, 5;
    mov.u32 b, %ctaid.x;
    mad.lo.u32 a, b, 64, a;
    mad.lo.u32 a, a, 0x9E3779B1, $1;
    mov.u32 b, %clock;
    mad.lo.u32 a, b, 0x85EBCA6B, a;
    shr.u32 b, a, 15;
    xor.b32 a, a, b;
    mul.lo.u32 a, a, 0xC2B2AE35;
    shr.u32 b, a, 22;
    and.b32 c, a, 7;
    setp.eq.u32 long, c, 0;
    @long shr.u32 b, a, 17;
    nanosleep.u32 b;
    mov.u32 $0, b;
}
""")


@triton.jit
def _delay(STEP: tl.constexpr):
    tl.inline_asm_elementwise(
        _SLEEP, "=r,r", [tl.full([], STEP, tl.int32)], dtype=tl.int32, is_pure=False, pack=1
    )
'''
"""A hash of the step, the program, the warp and the clock gives the time in nanoseconds. All lanes of a warp are equal,
because they read the clock together."""


class _Delays(ast.NodeTransformer):
    """Inserts a call of `_delay` before each step."""

    def __init__(self, seed: int) -> None:
        self.steps = seed * 1_000_003 % 2**30

    def visit(self, node: ast.AST) -> Any:
        node = super().visit(node)
        if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef) and _has_step(node):
            self.steps += 1
            return [ast.parse(f"_delay({self.steps})").body[0], node]
        return node


def _has_step(statement: ast.stmt) -> bool:
    """Returns whether a statement itself, without the statements in it, has a step."""
    parts = [part for part in ast.iter_child_nodes(statement) if not isinstance(part, ast.stmt)]
    calls = [node.func for part in parts for node in ast.walk(part) if isinstance(node, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr in STEPS for call in calls)


def delayed_source(module: str, seed: int) -> str:
    """Returns the source of a module of kernels with delays."""
    tree = ast.fix_missing_locations(_Delays(seed).visit(ast.parse(shipped_source(module))))
    last_import = max(i for i, node in enumerate(tree.body) if isinstance(node, (ast.Import, ast.ImportFrom)))
    tree.body[last_import + 1 : last_import + 1] = ast.parse(DELAY).body
    return ast.unparse(tree)


def shipped_source(module: str) -> str:
    """Returns the source of a module of kernels."""
    return shipped_text(module, ())


@contextmanager
def delayed_kernels(seed: int) -> Iterator[None]:
    """Context manager in which `tridal.runtime.compiler` compiles the kernels with delays."""

    def delayed(module: str, parameters: tuple[str, ...]) -> str:
        return delayed_source(module, seed) if module in DELAYED else shipped_text(module, parameters)

    compiler._entry.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(written, "helper_text", delayed)
        patch.setattr(compiler, "compile_kernel", compiler.compile_kernel.__wrapped__)  # the cache has the others
        patch.setattr(launch, "_load", _load)
        yield
    compiler._entry.cache_clear()


_loaded = []


def _load(*arguments: Any) -> Any:
    """Loads a kernel without the cache, and keeps it in memory."""
    _loaded.append(launch_load(*arguments))
    return _loaded[-1]


launch_load = launch._load.__wrapped__
