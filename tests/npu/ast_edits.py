"""Edits of a Triton function's syntax tree, to seed faults. Every search fails if it finds nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)


class EditError(Exception):
    """An edit no longer applies to the source."""


def parse(expression: str) -> ast.expr:
    """Parses an expression."""
    return ast.parse(expression, mode="eval").body


def find_function(module: ast.Module, name: str) -> ast.FunctionDef:
    """Returns the function with this name."""
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return only(functions, f"function {name}")


def find(function: ast.AST, kind: type[Node], matches: Callable[[Node], bool], description: str) -> list[Node]:
    """Returns all nodes of a kind that match."""
    nodes = [node for node in ast.walk(function) if isinstance(node, kind) and matches(node)]
    if not nodes:
        raise EditError(f"found no {description}")
    return nodes


def find_calls(function: ast.AST, name: str, first_argument: str | None = None) -> list[ast.Call]:
    """Returns the calls of a function, for example "tl.store" or "merge", with this first argument if it is given."""

    def matches(call: ast.Call) -> bool:
        arguments = [ast.unparse(argument) for argument in call.args[:1]]
        return ast.unparse(call.func) == name and (first_argument is None or arguments == [first_argument])

    return find(function, ast.Call, matches, f"call of {name} with first argument {first_argument}")


def find_assignments(function: ast.AST, target: str, called: str | None = None) -> list[ast.Assign]:
    """Returns the assignments to a name, whose value is a call of `called` if that is given."""

    def matches(node: ast.Assign) -> bool:
        right = called is None or (isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == called)
        return right and [ast.unparse(name) for name in node.targets] == [target]

    return find(function, ast.Assign, matches, f"assignment of {called or 'a value'} to {target}")


def replace(function: ast.AST, old: Iterable[ast.AST], new: Callable[[ast.AST], ast.expr]) -> None:
    """Replaces each of the old expressions by `new(old)`."""
    targets = {id(node) for node in old}

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            node = self.generic_visit(node)
            return new(node) if id(node) in targets else node

    Replace().visit(function)


def replace_expression(function: ast.AST, old: str, new: str) -> None:
    """Replaces every expression that is equal to `old`, however it is formatted."""
    wanted = ast.unparse(parse(old))
    nodes = find(function, ast.expr, lambda node: ast.unparse(node) == wanted, f"expression {old}")
    nodes = [node for node in nodes if not isinstance(getattr(node, "ctx", None), ast.Store)]
    replace(function, nodes, lambda _: parse(new))


def replace_argument(calls: Iterable[ast.Call], old: str, *new: str) -> None:
    """Replaces the positional argument `old` of each call by others."""
    for call in calls:
        positions = [index for index, argument in enumerate(call.args) if ast.unparse(argument) == old]
        position = only(positions, f"argument {old} of {ast.unparse(call.func)}")
        call.args[position : position + 1] = map(parse, new)


def replace_keyword(calls: Iterable[ast.Call], name: str, value: str | None) -> None:
    """Sets a keyword argument of each call, or removes it if `value` is None."""
    for call in calls:
        keyword = only([k for k in call.keywords if k.arg == name], f"keyword {name} of {ast.unparse(call.func)}")
        if value is None:
            call.keywords.remove(keyword)
        else:
            keyword.value = parse(value)


def remove(function: ast.AST, statements: Iterable[ast.stmt]) -> None:
    """Removes statements."""
    targets = {id(statement) for statement in statements}

    class Remove(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return ast.Pass() if id(node) in targets else self.generic_visit(node)

    Remove().visit(function)


def only(found: list, description: str):
    """Returns the only element of a list."""
    if len(found) != 1:
        raise EditError(f"expected one {description}, found {len(found)}")
    return found[0]
