"""Removes what no result of a kernel depends on from its folded functions: variables, parameters and results."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tridal.runtime.constant_nodes import nodes_in
from tridal.runtime.triton_functions import Function

_PURE = frozenset((
    "arange", "cast", "cdiv", "exp", "exp2", "expand_dims", "float", "fma", "full", "max", "max_constancy",
    "max_contiguous", "maximum", "minimum", "multiple_of", "num_programs", "program_id", "reshape", "sum", "to",
    "where", "zeros", "zeros_like",
))  # fmt: skip
"""The functions without side effects whose results may be dropped. `float` is Python's."""


class _Pruned:
    """A function, and how often each variable is read in it."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.nodes = nodes_in(*function.body)
        self.reads = Counter(node.id for node in self.nodes if isinstance(node, ast.Name))
        self.reads.subtract(node.id for node in self.nodes if isinstance(node, ast.Name) and not _is_read(node))
        self.targets = {
            id(node.value): node.targets[0].elts
            for node in self.nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
        }
        """The variables to which the results of a call are assigned, by the call."""
        self.is_pure: bool | None = None


class Pruning:
    """Removes unused parts of the functions of a kernel."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self.known = {function: _Pruned(function) for function in functions}
        self.callers = {
            id(call): pruned for pruned in self.known.values() for call in pruned.nodes if isinstance(call, ast.Call)
        }
        entry = functions[-1]
        pending = [*functions]
        while pending:
            function = pending.pop()
            if function is not entry and not function.calls and not function.fixed:
                changed = self._forget(self.known.pop(function), function.body) if function in self.known else set()
            elif function in self.known:
                changed = self._prune(self.known[function])
            pending += (f for f in functions if f in changed and f not in pending)
        self.functions = [function for function in functions if function in self.known]

    def _prune(self, pruned: _Pruned) -> set[Function]:
        """Prunes a function once. Returns the functions that have to be pruned again."""
        changed: set[Function] = set()
        function = pruned.function
        if function.is_own:
            left = self._block(pruned, function.body, changed)
            function.body = left or [ast.copy_location(ast.Pass(), function.body[0])]
        if function.fixed:
            return changed
        for number in reversed(range(len(function.parameters))):
            unread = not pruned.reads[function.parameters[number].arg]
            if unread and self._unneeded(call.args[number] for call in function.calls):
                del function.parameters[number]
                for call in function.calls:
                    caller = self.callers[id(call)]
                    changed |= {caller.function} | self._forget(caller, [call.args.pop(number)])
        returns = [n for n in nodes_in(*function.body) if isinstance(n, ast.Return)]
        callers = [(self.callers[id(call)], id(call)) for call in function.calls]
        targets: list[Any] = [(caller, caller.targets.get(call)) for caller, call in callers]
        values: list[Any] = [getattr(node.value, "elts", None) for node in returns]
        sizes = {0 if found is None else len(found) for found in [*values, *(variables for _, variables in targets)]}
        for number in reversed(range(sizes.pop() if len(sizes) == 1 else 0)):
            unused = all(isinstance(v[number], ast.Name) and not c.reads[v[number].id] for c, v in targets)
            if unused and len(values[0]) > 2 and self._unneeded(elements[number] for elements in values):
                for elements in values:
                    changed |= {function} | self._forget(pruned, [elements.pop(number)])
                for _, variables in targets:
                    variables.pop(number)
        return changed

    def _block(self, pruned: _Pruned, statements: list[ast.stmt], changed: set[Function]) -> list[ast.stmt]:
        """Returns the statements that are needed. Goes backwards, so that the variables in dropped ones are dropped."""
        kept: list[ast.stmt] = []
        for node in reversed(statements):
            parts = []
            for name in ("orelse", "body"):
                if block := getattr(node, name, None):
                    parts += (left := self._block(pruned, block, changed))
                    setattr(node, name, left or [ast.copy_location(ast.Pass(), node)] * (name == "body"))
            if self._is_dead(pruned, node, bool(parts)):
                changed |= {pruned.function} | self._forget(pruned, [node])
            else:
                kept.insert(0, node)
        return kept

    def _is_dead(self, pruned: _Pruned, node: Any, has_body: bool) -> bool:
        if isinstance(node, ast.If):
            return not has_body and self._unneeded([node.test])
        if type(node) not in (ast.Assign, ast.AugAssign, ast.AnnAssign):
            return False
        target = node.targets[0] if type(node) is ast.Assign else node.target
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for number in reversed(range(len(target.elts))):
                variable, value = target.elts[number], node.value.elts[number]
                if len(target.elts) > 1 and not pruned.reads[getattr(variable, "id", "")] and self._unneeded([value]):
                    self._forget(pruned, [node.value.elts.pop(number)])
                    target.elts.pop(number)
            if len(target.elts) == 1:
                (target,), (node.value,) = target.elts, node.value.elts
                node.targets = [target]
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        unread = all(isinstance(name, ast.Name) and not pruned.reads[name.id] for name in names)
        return unread and node.value is not None and self._unneeded([node.value])

    def _forget(self, pruned: _Pruned, nodes: Sequence[ast.AST]) -> set[Function]:
        """Counts what is read in removed nodes no more. Returns the functions that are called less often."""
        called = set()
        for node in nodes_in(*nodes):
            if isinstance(node, ast.Name) and _is_read(node):
                pruned.reads[node.id] -= 1
            function = getattr(getattr(node, "func", None), "function", None)
            if function is not None:
                function.calls.remove(node)
                called.add(function)
        return called

    def _unneeded(self, nodes: Iterator[ast.AST] | Sequence[ast.AST]) -> bool:
        """Returns whether expressions may be dropped if nothing reads their results."""
        return all(self._is_pure(node) for node in nodes_in(*nodes) if isinstance(node, ast.Call))

    def _is_pure(self, call: ast.Call) -> bool:
        function = getattr(call.func, "function", None)
        if function is None:
            return getattr(call.func, "attr", getattr(call.func, "id", "")) in _PURE
        pruned = self.known.get(function)
        if pruned is None:
            return False
        if pruned.is_pure is None:
            kinds = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.If, ast.Expr, ast.Pass)
            simple = all(isinstance(node, kinds) for node in pruned.nodes if isinstance(node, ast.stmt))
            pruned.is_pure = simple and self._unneeded(function.body)
        return pruned.is_pure


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)
