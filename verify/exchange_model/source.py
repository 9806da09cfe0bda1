"""Turns the kernels' own source into generators that yield each step of the exchange (see `language`).

The functions are read from the files of the package `tridal`, which is not imported. So neither torch nor Triton is
needed, and the model changes with the kernels. A fault is an edit of this source.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

from exchange_model.language import Language

MODULES = ("reductions", "tiles", "scale_mask", "column_sums", "exchange", "tile_counter", "whole_row")
"""The modules of the kernel, each after those that it imports."""
STEPS = {"load", "store", "atomic_xchg", "atomic_add", "debug_barrier", "max", "min", "sum"}
"""Functions of `triton.language` that are generators in the model."""


@dataclass(frozen=True)
class Edit:
    """A change of a kernel's source: the text `old` of a module becomes `new`. It has to occur exactly once."""

    module: str
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


def _read(module: str, edits: Sequence[Edit] = ()) -> tuple[str, Path]:
    """Returns the source of a module of `tridal`, with the edits of a fault, and its file."""
    spec = importlib.util.find_spec("tridal")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent.joinpath(*module.split(".")).with_suffix(".py")
    text = file.read_text()
    for edit in edits:
        if module.endswith(f".{edit.module}"):
            if text.count(edit.old) != 1:
                raise ValueError(f"{file} contains {text.count(edit.old)} times, not once: {edit.old!r}")
            text = text.replace(edit.old, edit.new)
    return text, file


class _Packs(dict[str, tuple[str, ...]]):
    """The packs of an op with two statistics, each of which is also an output. All other packs have no items."""

    def __missing__(self, name: str) -> tuple[str, ...]:
        return ()


OUT_STRIDES = "out_outer, out_inner, out_col"
PACKS = _Packs(
    each_pointer=("first_ptr", "second_ptr", "x_ptr"), each_element=("x",), each_element_ptr=("x_ptr",),
    each_at=("x_at",), each_loaded=("loaded",), each_strides=("in_outer, in_inner, in_col",), each_aligned=("False",),
    each_first=("first",), each_first_term=("x",), each_part_first=("part_first",),
    each_early=("second",), each_early_term=("x * x",), each_early_reduce=("'sum'",),
    each_later=("second",), each_later_term=("x * x",), each_later_reduce=("'sum'",), each_exchanged=("second",),
    each_group_stride=("in_outer", "in_inner", "in_col", "out_outer", "out_inner", "out_col"),
    each_result=("first_ptr", "second_ptr"), each_result_at=("first_at", "second_at"),
    each_result_strides=(OUT_STRIDES,) * 2, each_addend_strides=(OUT_STRIDES,) * 2,
    each_edge=("x",), each_edge_at=("x_at",), each_edge_first_term=("x",), each_edge_early=("second",),
    each_edge_early_term=("x",), each_edge_result_at=("first_at", "second_at"), each_edge_formula=("first", "second"),
    each_formula=("first", "second"), each_addend=("None", "None"), each_streamed=("False", "False"),
)  # fmt: skip


@functools.cache
def _code(module: str, edits: tuple[Edit, ...], parameters: frozenset[str]) -> CodeType:
    """Returns the code of a module of kernels as generators. `parameters` are those of the kernel."""
    text, file = _read(f"kernels.{module}", edits)
    expanded = _expand()(text, PACKS, module if module == "whole_row" else "", parameters)
    return compile(ast.fix_missing_locations(_Generators().visit(ast.parse(expanded))), str(file), "exec")


@functools.cache
def _expand() -> Callable[..., str]:
    """Returns the function with which the runtime expands packs. It is loaded without the package."""
    text, file = _read("runtime.packs")
    names: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), names)
    return names["expand"]  # type: ignore[no-any-return]


def kernel(
    language: Callable[[bool], Language],
    edits: tuple[Edit, ...],
    block: int,
    constants: dict[str, Any],
    parameters: frozenset[str],
) -> Any:
    """Returns the generator function `whole_row` for one warp.

    `language(spread)` makes the functions of `triton.language` for the reductions of tiles and for everything else.
    `block` is the number of slots that a program reads at once. `constants` are those of the kernel.
    """
    names: dict[str, Any] = dict(constants)
    for module in MODULES:
        names = {**names, "tl": language(module == "reductions")}
        exec(_code(module, edits, parameters), names)
        if module == "exchange":
            assert {"BLOCK", "WARP"} <= names.keys()
            names |= {"BLOCK": block, "WARP": constants["WARP"]}
    return names["whole_row"]


def workspace_slots(config: Any, tiles: int, programs: int) -> int:
    """Returns the number of slots of the workspace, as `tridal.runtime.specialization` counts them."""
    text, file = _read("runtime.specialization")
    wanted = {"exchanges", "workspace_slots"}
    nodes = ast.walk(ast.parse(text))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in wanted]
    for function in functions:
        function.returns = None
        for argument in function.args.args:
            argument.annotation = None
    names: dict[str, Any] = {}
    exec(compile(ast.Module([*functions], []), str(file), "exec"), names)
    kernel = SimpleNamespace(statistics=("first", "second"))
    call = SimpleNamespace(kernel=kernel, tiles=lambda config, rows: tiles, programs=lambda plan, rows: programs)
    return names["workspace_slots"](call, SimpleNamespace(config=config))  # type: ignore[no-any-return]
