"""Turns a written kernel into generators that yield each step of the exchange (see `language`).

The schedule of tridal writes the kernel, so the model changes with it. The package `tridal` itself is not imported,
and neither torch nor Triton is needed. A fault is an edit of the kernel's text or of a file whose functions it calls.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

from exchange_model.language import Language

STEPS = {"load", "store", "atomic_xchg", "atomic_add", "debug_barrier", "max", "min", "sum"}
"""Functions of `triton.language` that are generators in the model."""


@dataclass(frozen=True)
class Edit:
    """A change of a kernel's source: the text `old` of a part becomes `new`. It has to occur exactly once."""

    part: str
    """The name of a file with functions, or "whole_row", the kernel."""
    old: str
    new: str


class _Generators(ast.NodeTransformer):
    """Makes each function a generator, and marks loops that wait."""

    def visit_Module(self, node: ast.Module) -> ast.AST:
        imports = (ast.Import, ast.ImportFrom)  # `kernel` provides their names
        body = [statement for statement in node.body if not isinstance(statement, imports)]
        node.body = [self.visit(s) if isinstance(s, ast.FunctionDef) else s for s in body]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.decorator_list = []
        node.body.insert(0, ast.parse("if False: yield").body[0])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "to":
            return ast.Call(ast.parse("tl.cast", mode="eval").body, [function.value, *node.args], [])
        step = isinstance(function, ast.Attribute) and function.attr in STEPS
        return ast.YieldFrom(node) if step or isinstance(function, ast.Name) else node

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        """Yields ("wait",) before the loop, ("retry",) before each iteration but the first, and ("done",) after it.

        A retry may forget the iteration, because it starts from the same values: each name that an iteration assigns is
        assigned again before it is read.
        """
        self.generic_visit(node)
        assigned: set[str] = set()
        names = [name for statement in node.body for name in _names(statement)]
        targets = {name for name, is_target in names if is_target}
        for name, is_target in names:
            assert is_target or name in assigned or name not in targets, (
                f"a loop that waits reads {name} of the last one"
            )
            assigned |= {name} if is_target else set()
        before, after = ast.parse("yield 'wait',\n_again = False").body, ast.parse("yield 'done',").body
        node.body[:0] = ast.parse("if _again: yield 'retry',\n_again = True").body
        return [*before, node, *after]


def _names(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yields the names that a node reads or assigns (True), in the order of execution."""
    assert not isinstance(node, ast.AugAssign)
    if isinstance(node, ast.Name):
        yield node.id, isinstance(node.ctx, ast.Store)
    for child in [node.value, *node.targets] if isinstance(node, ast.Assign) else ast.iter_child_nodes(node):
        yield from _names(child)


OP_MATH = SimpleNamespace(square=lambda x: x * x, first=lambda total: total, second=lambda squares: squares)
"""The functions of an op with two statistics, each of which is also an output."""
OP_MATH.square.arg_names, OP_MATH.first.arg_names, OP_MATH.second.arg_names = ["x"], ["total"], ["squares"]


@functools.cache
def _folder() -> Path:
    """Returns the folder of the package `tridal`."""
    spec = importlib.util.find_spec("tridal")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@functools.cache
def _written(constants: tuple[tuple[str, Any], ...], arguments: tuple[str, ...]) -> dict[str, str]:
    """Returns the text of each part of the kernel, the kernel itself last."""
    if "tridal" not in sys.modules:
        package = ModuleType("tridal")
        package.__path__ = [str(_folder())]
        sys.modules["tridal"] = package
    from tridal.kernels.row_kernel import RowKernel, Statistic
    from tridal.kernels.written import WrittenKernel

    sys.modules["exchange_model.op_math"] = OP_MATH  # type: ignore[assignment]
    statistics = Statistic("total", "sum", "x"), Statistic("squares", "sum", "square")
    op = RowKernel("model", "exchange_model.op_math", ("x",), statistics, ("first", "second"), neutral_padding=True)
    written = WrittenKernel(op, "whole_row", arguments, dict(constants))
    return {**written.helpers, "whole_row": written.text}


@functools.cache
def _code(
    part: str, edits: tuple[Edit, ...], constants: tuple[tuple[str, Any], ...], arguments: tuple[str, ...]
) -> CodeType:
    """Returns the code of a part of the kernel as generators."""
    text = _written(constants, arguments)[part]
    for edit in edits:
        if edit.part == part:
            if text.count(edit.old) != 1:
                raise ValueError(f"{part} contains {text.count(edit.old)} times, not once: {edit.old!r}")
            text = text.replace(edit.old, edit.new)
    return compile(ast.fix_missing_locations(_Generators().visit(ast.parse(text))), f"/kernels/{part}", "exec")


def kernel(
    language: Callable[[bool], Language],
    edits: tuple[Edit, ...],
    block: int,
    constants: dict[str, Any],
    arguments: tuple[str, ...],
) -> Any:
    """Returns the generator function `whole_row` for one warp.

    `language(spread)` makes the functions of `triton.language` for the reductions of tiles and for everything else.
    `block` is the number of slots that a program reads at once. `constants` are those of the kernel, and `arguments`
    the names of its run-time arguments.
    """
    names: dict[str, Any] = {**constants, "FIRST": "sum", "SECOND": "sum", "COUNTS": False, "op_math": OP_MATH}
    given, exchange = (tuple(constants.items()), arguments), names
    for part in _written(*given):
        names = {**names, "tl": language(part == "whole_row")}
        exec(_code(part, edits, *given), names)
        if part == "exchange":
            assert {"BLOCK", "WARP"} <= names.keys()
            names |= {"BLOCK": block, "WARP": constants["WARP"]}
            exchange = names
    exchange["rebase_statistic"] = names["rebase_statistic"]
    return names["whole_row"]


def workspace_slots(config: Any, tiles: int, programs: int) -> int:
    """Returns the number of slots of the workspace, as `tridal.runtime.specialization` counts them."""
    file = Path(_folder(), "runtime", "specialization.py")
    wanted = {"exchanges", "workspace_slots"}
    nodes = ast.walk(ast.parse(file.read_text()))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in wanted]
    for function in functions:
        function.returns = None
        for argument in function.args.args:
            argument.annotation = None
    names: dict[str, Any] = {}
    exec(compile(ast.Module([*functions], []), str(file), "exec"), names)
    kernel = SimpleNamespace(computed=("first", "second"))
    call = SimpleNamespace(kernel=kernel, tiles=lambda config, rows: tiles, programs=lambda plan, rows: programs)
    return names["workspace_slots"](call, SimpleNamespace(config=config))  # type: ignore[no-any-return]
