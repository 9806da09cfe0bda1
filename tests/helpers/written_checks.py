"""Checks each kernel that is written in a test: no name is undefined, unused or unknown, and no line is too long."""

from __future__ import annotations

import ast
import re
from typing import Any

from pyflakes.checker import Checker

from tridal.kernels.kernel_names import taken_names
from tridal.kernels.op_functions import op_functions
from tridal.kernels.row_kernel import RowKernel
from tridal.kernels.written import WrittenKernel

WIDTH = 100
_checked: set[str] = set()
_write = WrittenKernel.__init__


def write_and_check(self: WrittenKernel, kernel: RowKernel, entry: str, *given: Any) -> None:
    """Replaces `WrittenKernel.__init__`."""
    _write(self, kernel, entry, *given)
    if self.text not in _checked and entry != "trial":  # a trial assigns whatever a function may declare
        found = faults(self, kernel)
        assert not found, "\n".join([*found, self.text])
        _checked.add(self.text)


def faults(written: WrittenKernel, kernel: RowKernel) -> list[str]:
    """Returns what is wrong with the text of a kernel."""
    tree, called = ast.parse(written.text), "\n".join(written.helpers.values())
    known = {"triton", "tl", "op_math", *re.findall(r"(?m)^def (\w+)", called)}
    messages = [str(message) for message in Checker(tree, builtins=known).messages]
    statistics = [repr(statistic.name) for statistic in kernel.statistics]  # `writing` keeps those without a use
    found = [message for message in messages if not any(name in message for name in statistics)]
    found += [f"longer than {WIDTH} columns: {line}" for line in written.text.split("\n") if len(line) > WIDTH]
    found += [
        f"no effect: {line}" for line in written.text.split("\n") if re.search(r" \* 1\b(?!\.)| [+-] 0\b(?!\.)", line)
    ]
    results = {part for f in op_functions(kernel) for name in (f.name, f"{f.name}_value") for part in _parts(name)}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    parameters = {name for name in _parameters(tree, "rebase_statistic") if not name.endswith("_number")}
    unknown = names - taken_names(kernel) - results - parameters - {"float"}
    return found + [f"not in SCHEDULE_NAMES: {name}" for name in sorted(unknown)]


def _parts(name: str) -> tuple[str, ...]:
    return name, *(f"{name}_{area}" for area in ("edge", "rest", "chunk", "top"))


def _parameters(tree: ast.Module, name: str) -> set[str]:
    """Returns the parameters of a function, if there is one of this name."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return {argument.arg for function in functions for argument in function.args.args}
