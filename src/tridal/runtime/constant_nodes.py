"""Nodes of constants in a syntax tree: how they are written and read, and operations with them."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.LShift: operator.lshift, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_,
    ast.IsNot: operator.is_not, ast.Not: operator.not_, ast.USub: operator.neg,
}  # fmt: skip
UNKNOWN: Any = object()
"""The value of what is no constant, or of a name that is unknown."""


def literal(value: Any) -> Any:
    """Returns the node of a number, a string, None or a dtype of Triton, and None for anything else."""
    value = value.value if type(value).__name__ == "constexpr" else value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            return ast.Call(ast.Name("float", ast.Load()), [ast.Constant(str(value))], [])
        if math.copysign(1, value) < 0:
            return ast.UnaryOp(ast.USub(), ast.Constant(-value))
    if isinstance(value, (bool, int, float, str, type(None))):
        return ast.Constant(value)
    if type(value).__name__ == "dtype":
        return ast.Attribute(ast.Name("tl", ast.Load()), _dtype_name(value), ast.Load())
    return None


@functools.lru_cache(maxsize=64)
def _dtype_name(dtype: Any) -> str:
    import triton.language as tl

    return next(str(name) for name, value in vars(tl).items() if type(value) is type(dtype) and value == dtype)


def constant(node: Any) -> Any:
    """Returns the value of a node from `literal`, and `UNKNOWN` for other nodes and for dtypes."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -number if isinstance(number := constant(node.operand), (int, float)) else UNKNOWN
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float" and node.args:
        return float(text) if (text := constant(node.args[0])) in ("inf", "-inf", "nan") else UNKNOWN
    return UNKNOWN


def is_constant(node: ast.AST) -> bool:
    """Returns whether `literal` returns such a node."""
    is_dtype = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tl"
    return is_dtype or constant(node) is not UNKNOWN


def is_simple(node: ast.AST) -> bool:
    """Returns whether the compiler makes no operation of a node."""
    kinds = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.keyword)
    return isinstance(node, kinds) or is_constant(node) or (isinstance(node, ast.Attribute) and is_simple(node.value))


def operation(node: Any) -> Any:
    """Returns the result of an operation with one or two constants, and any other node as it is."""
    operands: list[ast.expr] = []
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        operands = [node.left, node.comparators[0]]
    elif isinstance(node, (ast.BinOp, ast.UnaryOp)):
        operands = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
    values = [constant(operand) for operand in operands]
    kind = type(node.ops[0] if isinstance(node, ast.Compare) else getattr(node, "op", None))
    if not values or UNKNOWN in values or kind not in _OPERATORS:
        return node
    try:
        return literal(_OPERATORS[kind](*values))
    except (ArithmeticError, TypeError, ValueError):  # Triton refuses it, unless a condition keeps it from it
        return node


def bool_operation(node: ast.BoolOp) -> Any:
    """Returns `and` or `or` without the constants that do not matter."""
    stops, kept = isinstance(node.op, ast.Or), list[ast.expr]()
    for value in node.values:
        found = constant(value)
        if found is UNKNOWN or bool(found) is stops:
            kept.append(value)
        if found is not UNKNOWN and bool(found) is stops:
            break
    if not kept:
        return literal(not stops)
    return kept[0] if len(kept) == 1 else changed(node, values=kept)


def changed(node: Any, **changes: Any) -> Any:
    """Returns a copy of a node with other fields."""
    new = node.__class__.__new__(node.__class__)  # `copy.copy` takes three times as long
    vars(new).update(vars(node), **changes)
    return new


def nodes_in(*roots: Any) -> list[Any]:
    """Returns nodes and all nodes in them, without contexts and operators. `ast.walk` takes more than twice as long."""
    found = [*roots]
    for node in found:  # grows
        for name in _fields_of(node.__class__):
            value = getattr(node, name, None)
            if value.__class__ is list:
                found += [item for item in value if item.__class__ is not str and item is not None]
            elif isinstance(value, ast.AST):
                found.append(value)
    return found


@functools.cache
def _fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    """Returns the fields that may hold nodes, without contexts and operators."""
    return () if kind is ast.Constant else tuple(name for name in kind._fields if name not in _WITHOUT_NODES)


_WITHOUT_NODES = frozenset(("ctx", "op", "ops", "id", "attr", "arg", "kind", "type_comment"))


def in_order(node: Any) -> Iterator[ast.AST]:
    """Yields the nodes of an expression in the order in which they are computed."""
    for child in ast.iter_child_nodes(node):
        yield from in_order(child)
    yield node


def last_line(statements: Sequence[Any]) -> int:
    """Returns the largest line of statements, or 0 if there are none."""
    blocks = (getattr(node, name, ()) for node in statements for name in ("body", "orelse"))
    return max([*(node.lineno for node in statements), *map(last_line, filter(None, blocks))], default=0)
