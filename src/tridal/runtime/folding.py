"""Folds the constants in the Triton functions of a kernel, and removes dead branches.

A parameter that is the same constant in all calls of a function becomes a constant of it, too. A function of a
schedule of which one expression remains is written into its callers. The op's functions stay, because errors name them.
Statements keep the numbers of their lines, so a loop of `tl.static_range` is unrolled only if the lines stay in order.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import math
import operator
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.LShift: operator.lshift, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_,
    ast.IsNot: operator.is_not, ast.Not: operator.not_, ast.USub: operator.neg,
}  # fmt: skip
_UNKNOWN: Any = object()
_SHORT = 6
"""Statements of a function that may be written into its callers, with its docstring."""


class Definition:
    """The source of a function. Its tree is shared by all kernels, and is not changed."""

    def __init__(self, tree: ast.FunctionDef, file: str, lines: Sequence[str], noinline: bool) -> None:
        self.tree, self.file, self.lines, self.noinline = tree, file, lines, noinline
        nodes = [*ast.walk(tree)]
        names = [node for node in nodes if isinstance(node, ast.Name)]
        self.stored = [name.id for name in names if not isinstance(name.ctx, ast.Load)]
        self.local = {*self.stored, *(node.arg for node in nodes if isinstance(node, ast.arg))}
        paths = [(name.id, "") for name in names]
        paths += [(n.value.id, n.attr) for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
        self.paths = [path for path in dict.fromkeys(paths) if path[0] not in self.local]
        """The names that are not local variables, with the attribute that is read or with an empty string."""


@functools.lru_cache(maxsize=1024)
def definition_of(function: Any) -> Definition:
    """Returns the definition of a function that Triton has decorated."""
    python = inspect.unwrap(function.fn)
    lines, first = inspect.getsourcelines(python)
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    ast.increment_lineno(tree, first - 1)
    text = [""] * (first - 1) + [line.rstrip("\n") for line in lines]
    return Definition(tree, python.__code__.co_filename, text, bool(getattr(function, "noinline", False)))


class Function:
    """A Triton function of one kernel: its definition, what the names in it stand for, and its folded form."""

    def __init__(self, definition: Definition, names: Mapping[str, Any], is_own: bool) -> None:
        """`is_own`: whether it is a function of a schedule. All its names are known, and plain numbers are constants."""
        self.definition, self.names, self.is_own = definition, names, is_own
        self.name = definition.tree.name
        arguments = definition.tree.args
        self.parameters, self.body = [*arguments.args], list[ast.stmt]()
        self.calls: list[ast.Call] = []
        """All calls of it, with an argument for each parameter."""
        self.fixed = bool(arguments.defaults or arguments.kwonlyargs or arguments.vararg or arguments.kwarg)
        """Whether its parameters stay, because they have defaults, or because it is used in other ways."""
        self.constants: dict[str, ast.expr] = {}
        self.not_none: set[str] = set()

    def find(self, name: str, attribute: str = "") -> Any:
        """Returns what a name that is not local stands for, or an attribute of such a module that is not Triton's."""
        found = _UNKNOWN if name in self.definition.local else self.names.get(name, _UNKNOWN)
        if not attribute:
            return found
        is_module = isinstance(found, ModuleType) and not _is_tritons(found.__name__)
        return getattr(found, attribute, _UNKNOWN) if is_module else _UNKNOWN


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
        if not hasattr(value, "arg_names") or _is_tritons(value.__module__):
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
        if all(map(_is_constant, passed)) and len(set(map(ast.unparse, passed))) == 1:
            function.constants[name] = passed[0]
            del function.parameters[number]
            for call in calls:
                del call.args[number]
        elif all(getattr(node, "not_none", False) for node in passed):
            function.not_none.add(name)
    fold = _Fold(folding, function, function.constants)
    text = ast.get_docstring(tree)
    heading = [] if text is None else [ast.copy_location(ast.Expr(ast.Constant(text.split("\n")[0])), tree.body[0])]
    function.body = [*heading, *(fold.block(tree.body[len(heading) :]) or [ast.copy_location(ast.Pass(), tree.body[-1])])]
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
            if (value := constant(test)) is not _UNKNOWN:
                return self.block(node.body if value else node.orelse)
            body = self.block(node.body) or [ast.copy_location(ast.Pass(), node)]
            return [_changed(node, test=test, body=body, orelse=self.block(node.orelse))]
        if isinstance(node, ast.For) and (unrolled := self._unrolled(node)) is not None:
            return unrolled
        if isinstance(node, ast.Pass):
            return []
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = self._rebuilt(node.value)
            inlined = self._inlined(call)
            return [_changed(node, value=call if inlined is None else inlined.value)]
        new = self._rebuilt(node)
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name):
            if isinstance(new.value, ast.Name) and new.value.id == target.id:
                return []
            is_constant = self.function.is_own and new.value is not None and _is_constant(new.value)
            if is_constant and self.function.definition.stored.count(target.id) == 1:
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
        numbers, folded, before = range(*bounds), list[ast.stmt](), self.constants
        if kind == "range":
            return None if numbers else []
        assert isinstance(node.target, ast.Name)
        for number in numbers:
            self.constants = before | {node.target.id: literal(number)}
            body = self.block(node.body)
            self.constants = before
            if folded and body and body[0].lineno <= max(_lines(folded)):
                return [_changed(node, iter=loop, body=self.block(node.body))]
            folded += body
        return folded

    def _rebuilt(self, node: Any) -> Any:
        changes: dict[str, Any] = {}
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value:
                if isinstance(value[0], ast.stmt):
                    changes[name] = self.block(value) or [ast.copy_location(ast.Pass(), value[0])] * (name == "body")
                else:
                    changes[name] = [self.expression(item) for item in value]
            elif isinstance(value, ast.AST):
                changes[name] = self.expression(value)
        return _changed(node, **changes)

    def expression(self, node: Any) -> Any:
        """Returns a folded expression, or another node that is not a statement."""
        if isinstance(node, ast.Name):
            if node.id in self.constants and isinstance(node.ctx, ast.Load):
                return self.constants[node.id]
            return self._named(node, node.id, self.function.find(node.id))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = self.function.find(node.value.id, node.attr)
            if found is not _UNKNOWN:
                return self._named(node, node.attr, found)
        if isinstance(node, ast.IfExp):
            test = self.expression(node.test)
            if (value := constant(test)) is not _UNKNOWN:
                return self.expression(node.body if value else node.orelse)
        if isinstance(node, (ast.Constant, ast.expr_context, ast.operator, ast.cmpop)) or not isinstance(node, ast.AST):
            return node
        new = self._rebuilt(node)
        if isinstance(new, ast.BoolOp):
            return _bool_op(new)
        inlined = self._inlined(new) if isinstance(new, ast.Call) else None
        return inlined.value if isinstance(inlined, ast.Return) else self._operation(new)

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
        for argument in call.args:
            argument.not_none = self._is_not_none(argument)  # type: ignore[attr-defined]
        names = (parameter.arg for parameter in function.definition.tree.args.args)
        left = _Fold(self.folding, function, dict(zip(names, call.args, strict=True))).block(body[1:])
        if len(left) != 1 or not isinstance(left[0], (ast.Return, ast.Expr)) or isinstance(left[0].value, ast.Tuple):
            return None
        operations = [argument for argument in call.args if not _is_simple(argument)]
        computed = [node for node in _in_order(left[0].value) if node in operations or not _is_simple(node)]
        if operations and (len(operations) > 1 or computed[:1] != operations or computed.count(operations[0]) != 1):
            return None
        return left[0]

    def _operation(self, node: Any) -> Any:
        """Returns the result of an operation with constants."""
        operands: list[ast.expr] = []
        if isinstance(node, ast.BinOp):
            operands, operation = [node.left, node.right], node.op
        elif isinstance(node, ast.UnaryOp):
            operands, operation = [node.operand], node.op
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            operands, operation = [node.left, node.comparators[0]], node.ops[0]
            if constant(operands[1]) is None and self._is_not_none(operands[0]):
                return literal(isinstance(operation, (ast.IsNot, ast.NotEq)))
        values = [constant(operand) for operand in operands]
        if not values or _UNKNOWN in values or type(operation) not in _OPERATORS:
            return node
        try:
            return literal(_OPERATORS[type(operation)](*values))
        except (ArithmeticError, TypeError, ValueError):  # Triton refuses it, unless a condition keeps it from it
            return node

    def _named(self, node: Any, name: str, value: Any) -> Any:
        """Returns the node for a name or an attribute that stands for a value."""
        if value is _UNKNOWN:
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
        nodes = [node for statement in self.function.body for node in ast.walk(statement)]
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.assigned.setdefault(node.targets[0].id, []).append(node.value)
        called = set()
        for node in nodes:
            function = getattr(node.func, "function", None) if isinstance(node, ast.Call) else None
            if function is not None and not node.keywords and len(node.args) == len(function.parameters):
                called.add(node.func)
                function.calls.append(node)
                for argument in node.args:
                    argument.not_none = self._is_not_none(argument)
        for node in nodes:
            if (function := getattr(node, "function", None)) is not None and node not in called:
                function.fixed = True

    def _is_not_none(self, node: ast.AST) -> bool:
        """Returns whether it is certain that an expression is not None."""
        if getattr(node, "not_none", False):
            return True
        if isinstance(node, ast.Name):
            values = getattr(self, "assigned", {}).get(node.id, ())
            all_known = len(values) == self.function.definition.stored.count(node.id) > 0
            return node.id in self.function.not_none or (all_known and all(isinstance(v, ast.Call) for v in values))
        return isinstance(node, (ast.Call, ast.BinOp, ast.Compare)) or constant(node) not in (None, _UNKNOWN)


def _bool_op(node: ast.BoolOp) -> ast.expr:
    """Returns `and` or `or` without the constants that do not matter."""
    stops, kept = isinstance(node.op, ast.Or), list[ast.expr]()
    for value in node.values:
        found = constant(value)
        if found is _UNKNOWN or bool(found) is stops:
            kept.append(value)
        if found is not _UNKNOWN and bool(found) is stops:
            break
    if not kept:
        return literal(not stops)
    return kept[0] if len(kept) == 1 else _changed(node, values=kept)


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

    return next(name for name, value in vars(tl).items() if type(value) is type(dtype) and value == dtype)


def constant(node: Any) -> Any:
    """Returns the value of a node from `literal`, and `_UNKNOWN` for other nodes and for dtypes."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float":
        return float(node.args[0].value) if isinstance(node.args[0], ast.Constant) else _UNKNOWN
    return _UNKNOWN


def _is_constant(node: ast.expr) -> bool:
    is_dtype = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tl"
    return is_dtype or constant(node) is not _UNKNOWN


def _is_tritons(module: str) -> bool:
    return f"{module}.".startswith("triton.")


def _changed(node: Any, **changes: Any) -> Any:
    new = copy.copy(node)
    vars(new).update(changes)
    return new


def _is_simple(node: ast.AST) -> bool:
    """Returns whether the compiler makes no operation of a node."""
    kinds = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.keyword)
    return isinstance(node, kinds) or _is_constant(node) or (isinstance(node, ast.Attribute) and _is_simple(node.value))


def _in_order(node: Any) -> Iterator[ast.AST]:
    """Yields the nodes of an expression in the order in which they are computed."""
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)
    yield node


def _lines(statements: Sequence[ast.stmt]) -> Iterator[int]:
    return (node.lineno for statement in statements for node in ast.walk(statement) if isinstance(node, ast.stmt))
