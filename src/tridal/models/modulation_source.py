"""Finds norm(x) * (1 + scale) + shift in the source of a forward, and writes a call of a function in its place.

The norm is a call of a module `self.NAME`, or a variable to which such a call is assigned, if all uses of the variable
are modulations and nothing between may change the input. Then the variable gets the input of the norm.
"""

from __future__ import annotations

import ast
import copy
import functools
import types
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from tridal.models.forwards import compiled, definition

FUNCTION = "_tridal_modulated"
_OTHERS = (
    ast.Try, ast.Lambda, ast.FunctionDef, ast.ClassDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
"""Nodes in which modulations are not looked for."""
_TESTS = (
    ast.Compare, ast.BoolOp, ast.UnaryOp, ast.boolop, ast.unaryop, ast.cmpop, ast.Attribute, ast.Name, ast.Load,
    ast.Constant, ast.List, ast.Tuple,
)  # fmt: skip
"""The nodes of a condition that depends only on attributes of the module."""
_METHODS = {"chunk", "expand", "flatten", "float", "reshape", "split", "squeeze", "to", "unbind", "unsqueeze", "view"}
"""Methods that do not change their tensor."""


class _Modulation(NamedTuple):
    norm: str
    x: ast.expr
    scale: ast.expr
    shift: ast.expr | None = None


def used_norms(function: types.FunctionType, module: Any, names: Collection[str]) -> tuple[str, ...]:
    """Returns which modules inside a module, of those with some names, its forward modulates.

    Leaves out branches that the module does not take.
    """
    writer = _Writer(function, names, module)
    if _has_factor(function):
        writer.write()
    return tuple(sorted(writer.used))


def rewritten(function: types.FunctionType, names: Collection[str]) -> ast.FunctionDef:
    """Returns the syntax tree of a forward with a call of `FUNCTION` for each modulation of modules by name."""
    return _Writer(function, names).write()


def with_function(function: types.FunctionType, names: Collection[str], compute: Any) -> Any:
    """Returns a forward that calls `compute(self, NAME, x, scale, shift)` for each modulation of modules by name."""
    return compiled(function, rewritten(function, names), {FUNCTION: compute})


@functools.cache
def _has_factor(function: types.FunctionType) -> bool:
    node = definition(function)
    return node is not None and any(_scale(expression) is not None for expression in ast.walk(node))


def _scale(factor: ast.AST) -> ast.expr | None:
    """Returns the scale of 1 + scale, with dims that are added after the sum. Returns None for others."""
    match factor:
        case ast.BinOp(left=ast.Constant(value=1), op=ast.Add(), right=other):
            return other
        case ast.BinOp(left=other, op=ast.Add(), right=ast.Constant(value=1)):
            return other
        case ast.Subscript(value=value, slice=index) if (scale := _scale(value)) and _adds_dims(index):
            return ast.Subscript(scale, index, ast.Load())
        case ast.Call(func=ast.Attribute(value=value, attr="unsqueeze")) if scale := _scale(value):
            return ast.Call(ast.Attribute(scale, "unsqueeze", ast.Load()), factor.args, factor.keywords)
    return None


def _adds_dims(index: ast.expr) -> bool:
    """Returns whether an index consists of `:`, `...` and `None`."""
    return all(ast.unparse(item) in (":", "...", "None") for item in getattr(index, "elts", [index]))


def _reached(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _OTHERS):
            yield from _reached(child)


def _names(node: ast.AST, variable: str, kind: type) -> list[ast.AST]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == variable and isinstance(n.ctx, kind)]


class _Writer(ast.NodeTransformer):
    """Writes a call for each modulation of the modules with some names."""

    def __init__(self, function: types.FunctionType, names: Collection[str], module: Any = None) -> None:
        self._definition, self._names, self._module = definition(function), names, module
        self._own, *_ = self._locals = function.__code__.co_varnames
        self._norm_of: dict[int, str] = {}
        """The name of a norm for each use of a variable that gets the input of the norm."""
        self.used: set[str] = set()

    def write(self) -> ast.FunctionDef:
        """Returns a changed copy of the function."""
        root = copy.deepcopy(self._definition)
        assert root is not None
        lists: list[Any] = [getattr(node, name, ()) for node in _reached(root) for name in ("body", "orelse")]
        for statements in lists:
            for index, statement in enumerate(statements if isinstance(statements, list) else ()):
                match statement:
                    case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Call() as call) if (
                        found := self._norm(call)
                    ) and self._has_only_modulations(root, statements[index + 1 :], variable, found[0]):
                        statement.value = found[1]
        root.body = [self.visit(statement) for statement in root.body]
        return root

    def visit(self, node: ast.AST) -> Any:
        """Changes an expression or a statement."""
        if isinstance(node, _OTHERS):
            return node
        if isinstance(node, ast.BinOp) and (found := self._modulation(node)):
            self.used.add(found.norm)
            inputs = (ast.Constant(None) if part is None else self.visit(part) for part in found[1:])
            arguments = [ast.Name(self._own, ast.Load()), ast.Constant(found.norm), *inputs]
            return ast.copy_location(ast.Call(ast.Name(FUNCTION, ast.Load()), arguments, []), node)
        if isinstance(node, ast.If) and (taken := self._taken(node.test)) is not None:
            for statement in node.body if taken else node.orelse:
                self.visit(statement)
            return node
        return self.generic_visit(node)

    def _has_only_modulations(self, root: ast.AST, following: list[ast.stmt], variable: str, norm: str) -> bool:
        """Returns whether all uses of a variable, before it is assigned again, are modulations that follow."""
        uses: list[ast.AST] = []
        products = 0
        ends = False
        for statement in following:
            if ends or not self._keeps_tensors(statement):
                break
            here = _names(statement, variable, ast.Load)
            uses += here
            self._norm_of |= dict.fromkeys(map(id, here), norm)
            found = (self._product(node) for node in _reached(statement) if isinstance(node, ast.BinOp))
            products += sum(product is not None and product.x in here for product in found)
            ends = bool(_names(statement, variable, ast.Store))
        if variable in self._locals and products == len(uses) > 0 and (
            ends or len(uses) == len(_names(root, variable, ast.Load))
        ):  # fmt: skip
            return True
        for use in uses:
            del self._norm_of[id(use)]
        return False

    def _keeps_tensors(self, statement: ast.stmt) -> bool:
        """Returns whether a statement assigns variables, and calls only norms and methods that change no tensor."""
        nodes = [*ast.walk(statement)]
        calls = [node for node in nodes if isinstance(node, ast.Call) and self._norm(node) is None]
        changes = any(isinstance(n, (ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Store) for n in nodes)
        return isinstance(statement, ast.Assign) and not changes and all(
            isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS for call in calls
        )  # fmt: skip

    def _modulation(self, node: ast.BinOp) -> _Modulation | None:
        for product, shift in ((node.left, node.right), (node.right, node.left)):
            if isinstance(node.op, ast.Add) and (found := self._product(product)):
                return found._replace(shift=shift)
        return self._product(node)

    def _product(self, node: ast.expr) -> _Modulation | None:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for factor, norm in ((node.left, node.right), (node.right, node.left)):
                if (scale := _scale(factor)) and (found := self._norm(norm)):
                    return _Modulation(*found, scale)
        return None

    def _norm(self, node: ast.expr) -> tuple[str, ast.expr] | None:
        """Returns the name of a norm and its input, or None for other expressions."""
        match node:
            case ast.Name() if id(node) in self._norm_of:
                return self._norm_of[id(node)], node
            case ast.Call(func=ast.Attribute(value=ast.Name(id=own), attr=name), args=[x], keywords=[]) if (
                own == self._own and name in self._names and not isinstance(x, ast.Starred)
            ):
                return name, x
        return None

    def _taken(self, test: ast.expr) -> bool | None:
        """Returns the value of a condition that depends only on attributes of the module, or None."""
        nodes = [*ast.walk(test)]
        variables = {node.id for node in nodes if isinstance(node, ast.Name)}
        if self._module is None or variables != {self._own} or not all(isinstance(node, _TESTS) for node in nodes):
            return None
        try:
            return bool(eval(ast.unparse(test), {"__builtins__": {}}, {self._own: self._module}))
        except Exception:  # an attribute may be missing
            return None
