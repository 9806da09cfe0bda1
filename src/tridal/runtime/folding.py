"""Folds the constants in the Triton functions of a kernel, and removes dead branches.

A parameter that is the same constant in all calls of a function becomes a constant of it, too. A function of a
schedule of which one expression remains is written into its callers. The op's functions stay, because errors name them.
Statements keep the numbers of their lines, so a loop of `tl.static_range` is unrolled only if the lines stay in order.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from tridal.runtime.constant_nodes import (
    UNKNOWN,
    bool_operation,
    changed,
    constant,
    in_order,
    is_constant,
    is_simple,
    last_line,
    literal,
    nodes_in,
    operation,
)
from tridal.runtime.triton_functions import Function, definition_of, is_tritons

_LEAVES = ast.Constant, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop
"""The nodes that hold no other nodes."""
_SHORT = 6
"""Statements of a function that may be written into its callers, with its docstring."""


class Folding:
    """The functions that an entry reaches, with their constants folded, and what the other names in them stand for."""

    def __init__(self, entry: Function) -> None:
        import triton.language as tl

        self.globals: dict[str, Any] = {"tl": tl}
        self._known: dict[int, Function] = {}
        self._callers: dict[Function, list[Function]] = {entry: []}
        order: list[Function] = []
        self._reach(entry, order)
        self._rename(reversed(order))
        entry.fixed, entry.not_none = True, {parameter.arg for parameter in entry.parameters}
        for function in reversed(order):  # callers come before the functions that they call
            if function.calls or function.fixed:
                _fold(self, function)
        self.functions = [function for function in order if function.body]
        """The entry is the last one."""

    def function(self, value: Any) -> Function | None:
        """Returns the function of the text for a function of a schedule or of an op, and None for anything else."""
        if isinstance(value, Function):
            return value
        if not hasattr(value, "arg_names") or is_tritons(value.__module__):
            return None
        if id(value) not in self._known:
            self._known[id(value)] = Function(definition_of(value), inspect.unwrap(value.fn).__globals__, False)
        return self._known[id(value)]

    def name(self, name: str, value: Any) -> str:
        """Returns the name of a module or of another value in the text."""
        while self.globals.setdefault(name, value) is not value:
            name += "_"
        return name

    def _reach(self, function: Function, order: list[Function]) -> None:
        for path in function.definition.paths:
            if (called := self.function(function.find(*path))) is not None:
                if called not in self._callers:
                    self._callers[called] = []
                    self._reach(called, order)
                self._callers[called].append(function)
        order.append(function)

    def _rename(self, functions: Iterator[Function]) -> None:
        taken: set[str] = set()
        for function in functions:
            local = set().union(*(caller.definition.local for caller in self._callers[function]))
            while function.name in taken | local:
                function.name += "_"
            taken.add(function.name)


def _fold(folding: Folding, function: Function) -> None:
    """Folds a function, after all functions that call it."""
    tree, calls = function.definition.tree, function.calls
    for number in reversed(range(len(function.parameters) if calls and not function.fixed else 0)):
        name, passed = function.parameters[number].arg, [call.args[number] for call in calls]
        if name in function.definition.stored:
            continue
        if all(map(is_constant, passed)) and len(set(map(ast.unparse, passed))) == 1:
            function.constants[name] = passed[0]
            del function.parameters[number]
            for call in calls:
                del call.args[number]
        elif all(getattr(node, "not_none", False) for node in passed):
            function.not_none.add(name)
    fold = _Fold(folding, function, function.constants)
    text = ast.get_docstring(tree)
    heading = [] if text is None else [ast.copy_location(ast.Expr(ast.Constant(text.split("\n")[0])), tree.body[0])]
    function.body = [
        *heading,
        *(fold.block(tree.body[len(heading) :]) or [ast.copy_location(ast.Pass(), tree.body[-1])]),
    ]
    function.parameters = [fold.expression(parameter) for parameter in function.parameters]
    fold.register_calls()


class _Fold:
    """Makes the folded statements of a function."""

    def __init__(self, folding: Folding, function: Function, constants: dict[str, ast.expr]) -> None:
        self.folding, self.function, self.constants = folding, function, constants

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Returns the folded statements, up to the first one that always returns."""
        folded: list[ast.stmt] = []
        for statement in statements:
            folded += self.statement(statement)
            if folded and isinstance(folded[-1], ast.Return):
                break
        return folded

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """Returns the statements that remain of one."""
        if isinstance(node, ast.If):
            test = self.expression(node.test)
            if (value := constant(test)) is not UNKNOWN:
                return self.block(node.body if value else node.orelse)
            body = self.block(node.body) or [ast.copy_location(ast.Pass(), node)]
            return [changed(node, test=test, body=body, orelse=self.block(node.orelse))]
        if isinstance(node, ast.For) and (unrolled := self._unrolled(node)) is not None:
            return unrolled
        if isinstance(node, ast.Pass):
            return []
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = self._rebuilt(node.value)
            inlined = self._inlined(call)
            return [changed(node, value=call if inlined is None else inlined.value)]
        new = self._rebuilt(node)
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name):
            if isinstance(new.value, ast.Name) and new.value.id == target.id:
                return []
            is_own = self.function.is_own and new.value is not None
            if is_own and is_constant(new.value) and self.function.definition.stored.count(target.id) == 1:
                self.constants[target.id] = new.value
                return []
        return [new]

    def _unrolled(self, node: ast.For) -> list[ast.stmt] | None:
        """Returns the statements of a loop with a constant range, or None if it stays a loop."""
        loop = self.expression(node.iter)
        kind = getattr(getattr(loop, "func", None), "attr", "")
        bounds = [constant(bound) for bound in getattr(loop, "args", ())]
        if kind not in ("range", "static_range") or not all(type(bound) is int for bound in bounds):
            return None
        numbers, folded, before, last = range(*bounds), list[ast.stmt](), self.constants, 0
        if kind == "range":
            return None if numbers else []
        assert isinstance(node.target, ast.Name)
        for number in numbers:
            self.constants = before | {node.target.id: literal(number)}
            body = self.block(node.body)
            self.constants = before
            if body and body[0].lineno <= last:
                return [changed(node, iter=loop, body=self.block(node.body))]
            folded += body
            last = max(last, last_line(body))
        return folded

    def _rebuilt(self, node: Any) -> Any:
        changes: dict[str, Any] = {}
        for name in node._fields:
            value = getattr(node, name, None)
            if value.__class__ is list:
                if value and isinstance(value[0], ast.stmt):
                    changes[name] = self.block(value) or [ast.copy_location(ast.Pass(), value[0])] * (name == "body")
                else:
                    changes[name] = [self.expression(item) for item in value]
            elif isinstance(value, ast.AST) and not isinstance(value, _LEAVES):
                changes[name] = self.expression(value)
        return changed(node, **changes)

    def expression(self, node: Any) -> Any:
        """Returns a folded expression, or another node that is not a statement."""
        kind = node.__class__
        if kind is ast.Name:
            if node.id in self.constants and isinstance(node.ctx, ast.Load):
                return self.constants[node.id]
            return self._named(node, node.id, self.function.find(node.id))
        if isinstance(node, _LEAVES) or not hasattr(node, "_fields"):
            return node
        if kind is ast.Attribute and isinstance(node.value, ast.Name):
            found = self.function.find(node.value.id, node.attr)
            if found is not UNKNOWN and self.folding.function(found) is not None:
                return self._named(node, node.attr, found)
            if found is not UNKNOWN and (number := literal(found)) is not None:
                return number
        if kind is ast.IfExp:
            test = self.expression(node.test)
            if (value := constant(test)) is not UNKNOWN:
                return self.expression(node.body if value else node.orelse)
        new = self._rebuilt(node)
        if kind is ast.BoolOp:
            return bool_operation(new)
        if kind is ast.Call:
            inlined = self._inlined(new)
            return inlined.value if isinstance(inlined, ast.Return) else new
        if kind is ast.Compare and constant(new.comparators[0]) is None and self._is_not_none(new.left):
            return literal(isinstance(new.ops[0], (ast.IsNot, ast.NotEq)))
        return operation(new)

    def _inlined(self, call: ast.Call) -> Any:
        """Returns the statement that remains of a function of a schedule for a call, or None if it cannot replace it.

        It computes everything in the same order: one argument may be an operation, and is the first one to be computed.
        """
        function: Any = getattr(call.func, "function", None)
        if function is None or not function.is_own or function.fixed or function.definition.noinline:
            return None
        body = function.definition.tree.body
        if len(body) > _SHORT or len(call.args) != len(function.definition.tree.args.args):
            return None
        self._mark(call)
        if (kind := tuple(map(_kind, call.args))) in function.kept:
            return None
        function.kept.add(kind)
        names = (parameter.arg for parameter in function.definition.tree.args.args)
        left = _Fold(self.folding, function, dict(zip(names, call.args, strict=True))).block(body[1:])
        if len(left) != 1 or not isinstance(left[0], (ast.Return, ast.Expr)) or isinstance(left[0].value, ast.Tuple):
            return None
        operations = [argument for argument in call.args if not is_simple(argument)]
        computed = [node for node in in_order(left[0].value) if node in operations or not is_simple(node)]
        if operations and (len(operations) > 1 or computed[:1] != operations or computed.count(operations[0]) != 1):
            return None
        function.kept.remove(kind)
        return left[0]

    def _named(self, node: Any, name: str, value: Any) -> Any:
        """Returns the node for a name or an attribute that stands for a value."""
        if value is UNKNOWN:
            return node
        if (function := self.folding.function(value)) is not None:
            new = ast.Name(function.name, ast.Load())
            new.function = function  # type: ignore[attr-defined]
            return new
        is_constexpr = type(value).__name__ == "constexpr"
        if (is_constexpr or self.function.is_own) and (found := literal(value)) is not None:
            return found
        return ast.Name(self.folding.name(name, value), ast.Load())

    def register_calls(self) -> None:
        """Adds the calls in the folded statements to the functions that they call."""
        self.assigned: dict[str, list[Any]] = {}
        nodes = nodes_in(*self.function.body)
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.assigned.setdefault(node.targets[0].id, []).append(node.value)
        called = set()
        for node in nodes:
            function = getattr(node.func, "function", None) if isinstance(node, ast.Call) else None
            if function is not None and not node.keywords and len(node.args) == len(function.parameters):
                called.add(node.func)
                function.calls.append(node)
                self._mark(node)
        for node in nodes:
            if (function := getattr(node, "function", None)) is not None and node not in called:
                function.fixed = True

    def _mark(self, call: ast.Call) -> None:
        """Marks the arguments that are certainly not None. Names are copied, because kernels share their nodes."""
        call.args = [changed(argument) if isinstance(argument, ast.Name) else argument for argument in call.args]
        for argument in call.args:
            argument.not_none = self._is_not_none(argument)  # type: ignore[attr-defined]

    def _is_not_none(self, node: ast.AST) -> bool:
        """Returns whether it is certain that an expression is not None."""
        if getattr(node, "not_none", False):
            return True
        if isinstance(node, ast.Name):
            values = getattr(self, "assigned", {}).get(node.id, ())
            all_known = len(values) == self.function.definition.stored.count(node.id) > 0
            return node.id in self.function.not_none or (all_known and all(isinstance(v, ast.Call) for v in values))
        return isinstance(node, (ast.Call, ast.BinOp, ast.Compare)) or constant(node) not in (None, UNKNOWN)


def _kind(argument: Any) -> tuple[Any, ...]:
    """Returns what decides whether a call with an argument can be replaced."""
    if (value := constant(argument)) is not UNKNOWN:
        return type(value), str(value)
    attribute = argument.attr if is_constant(argument) else ""
    return type(argument), attribute, is_simple(argument), argument.not_none
