"""The small faults that can be put into a module, and random ones of them."""

from __future__ import annotations

import ast
import fnmatch
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCES = ("src", "backends")
_SWAPS: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and", ast.Add: "-", ast.Sub: "+",
    ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "+", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """A text that replaces another one in a module."""

    module: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    """The position of the first byte of `before` in the file."""

    def put(self, source: bytes) -> bytes:
        """Returns the source of the module with the fault."""
        head, tail = source[: self.start], source[self.start :].removeprefix(self.before.encode())
        return head + self.after.encode() + tail


def faults(module: str, source: bytes) -> list[Fault]:
    """Returns all faults of a module. Annotations, the messages of errors and docstrings get none."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def fault(node: ast.expr | ast.stmt, kind: str, after: str) -> Fault:
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return Fault(module, node.lineno, kind, source[start:end].decode(), after, start)

    return [fault(*found) for node in _executed(ast.parse(source)) for found in _changes(node)]


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that are executed, without annotations, imports and the arguments of `raise`."""
    yield node
    if isinstance(node, (ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr)):
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _executed(child)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Yields (the node to replace, the kind of the fault, the new text)."""
    text = ast.unparse
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = text(node.left), text(node.comparators[0])
        yield node, "comparison", f"({left} {_SWAPS[type(node.ops[0])]} {right})"
    elif isinstance(node, ast.BoolOp):
        yield node, "boolean", f"({f' {_SWAPS[type(node.op)]} '.join(f'({text(value)})' for value in node.values)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, "boolean", f"bool({text(node.operand)})"
    elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPS:
        yield node, "arithmetic", f"(({text(node.left)}) {_SWAPS[type(node.op)]} ({text(node.right)}))"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, "constant", str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield node, "constant", f"({node.value!r} + 1)"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "removed call", "pass"
    elif isinstance(node, ast.Return) and node.value is not None and text(node.value) != "None":
        yield node, "returned None", "return None"


def modules(root: Path, patterns: Sequence[str]) -> list[str]:
    """Returns the modules whose paths in the checkout, or in their package, fit one of the patterns."""
    found = sorted(path.relative_to(root).as_posix() for folder in SOURCES for path in (root / folder).rglob("*.py"))
    short = {module: (module, module.removeprefix("src/tridal/")) for module in found}
    return [m for m in found if not patterns or any(fnmatch.fnmatch(name, p) for p in patterns for name in short[m])]


def random_faults(root: Path, names: Sequence[str], count: int, seed: int) -> list[Fault]:
    """Returns `count` random faults, in as many of the modules as possible."""
    generator = random.Random(seed)
    left = {name: faults(name, (root / name).read_bytes()) for name in names}
    for found in left.values():
        generator.shuffle(found)
    chosen: list[Fault] = []
    while len(chosen) < count and any(left.values()):
        for name in generator.sample(sorted(left), len(left)):
            if left[name] and len(chosen) < count:
                chosen.append(left[name].pop())
    return chosen
