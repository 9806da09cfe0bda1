"""Faults of the declaration of an op: what does not fit together."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Iterator
from typing import Any

from tridal.kernels.kernel_names import names_fault
from tridal.kernels.row_kernel import RowKernel
from tridal.ops.arguments import DTYPE, Argument, Result
from tridal.ops.signature import Signature

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ARGUMENTS = frozenset({
    "input", "grad", "output", "dim", "dtype", "stream", "scale", "mask", "causal", "masked_rows", "zero_masked_rows",
    "reduce", "output_mask",
})  # fmt: skip
"""Arguments of the functions of ops and of their declarations, and of the registered ops."""


def faults(op: Any) -> Iterator[str]:
    """Yields descriptions of the faults of an `Op`."""
    for kernel in op.kernels:
        if not isinstance(kernel, RowKernel):
            yield f"expected a RowKernel, found {kernel!r}"
            return
        if (fault := kernel.fault()) is not None:
            yield fault
    if not isinstance(op.name, str) or not _NAME.fullmatch(op.name):
        yield f"name: expected lower-case letters, digits and underscores, found {op.name!r}"
    elif keyword.iskeyword(op.name):
        yield f"name: {op.name!r} is a keyword of Python, so torch.ops cannot have an op with this name"
    for name, value in (("arguments", op.arguments), ("results", op.results)):
        wanted = Argument if name == "arguments" else Result
        if not isinstance(value, tuple) or not value or not all(isinstance(item, wanted) for item in value):
            yield f"{name}: expected a tuple of {wanted.__name__}s, found {value!r}"
            return
    if not callable(op.reference):
        yield f"it has no reference: expected a function made of torch's ops, found {op.reference!r}"
        return
    if not isinstance(op.benchmark, str | None):
        yield f"benchmark: expected the name of an OpBenchmark as 'module:object', found {op.benchmark!r}"
    if op.arguments[0].role not in ("element", "whole") or op.arguments[0].optional:
        yield "arguments: expected a tensor with a number per element as the first argument"
    if any(a.type != "Tensor" and b.type == "Tensor" for a, b in zip(op.arguments, op.arguments[1:], strict=False)):
        yield "arguments: expected the tensors before the numbers"
    for argument in op.arguments:
        name, is_tensor = argument.name, argument.type == "Tensor"
        if not _NAME.fullmatch(name) or keyword.iskeyword(name):
            yield f"parameters: expected names in lower case that are no keywords, found {name!r}"
        elif name in _ARGUMENTS and not (name == "input" and is_tensor) and (argument != DTYPE or op.dim is None):
            yield f"parameters: {name!r} is the name of another argument, so choose another name"
    names = [item.name for item in op.arguments]
    if len({*names}) < len(names):
        yield f"arguments: expected a name for each, found {', '.join(names)}"
    yield from filter(None, map(names_fault, op.kernels))
    names += [item.name for item in op.results]
    if len({*names}) < len(names):
        yield f"results: expected other names than those of arguments and other results, found {', '.join(names)}"
    yield from _result_faults(op)
    if op.gradient is not None:
        yield from _gradient_faults(op)
    if op.steps is None:
        yield from _kernels_faults(op)
    elif not callable(op.steps) or (op.gradient is None) != (op.gradient_steps is None):
        yield "steps: expected functions `steps` and, if the op has a `gradient`, `gradient_steps`"
    yield from _function_faults(op)


def _function_faults(op: Any) -> Iterator[str]:
    """Yields which functions of the declaration cannot be called with what they get."""
    functions = [("reference", op.reference, op.signature)]
    if op.gradient is not None:
        functions.append(("gradient", op.gradient, op.gradient_signature))
        names = op.gradient_signature.names
        if len({*names}) < len(names) or not all(map(str.isidentifier, names)):
            yield f"gradient: expected other names for saved tensors and gradients of results, found {', '.join(names)}"
    calls = [(name, function, [*s.function_tensors, "reduce"], s.function_numbers) for name, function, s in functions]
    calls += [(name, getattr(op, name), ["call", "named"], []) for name in ("steps", "gradient_steps")]
    calls += [("constants", op.constants, ["named"], []), ("unsupported", op.unsupported, ["named", "dtypes"], [])]
    for name, function, given, numbers in calls:
        try:
            parameters = None if function is None else inspect.signature(function)
            if parameters is not None:
                also = {"output_mask"} & {*parameters.parameters}
                parameters.bind(*given, **dict.fromkeys((*numbers, *also)))
        except ValueError:  # a builtin function without a signature
            continue
        except TypeError as error:
            yield f"{name}: it gets ({', '.join((*given, *(f'{number}=...' for number in numbers)))}), but {error}"


def _kernels_faults(op: Any) -> Iterator[str]:
    """Yields where the kernels of an op without steps do not fit its arguments and results."""
    for argument in op.arguments:
        if argument.type != "Tensor":
            yield from _number_faults(op, argument)
    names = [op.name, f"{op.name}_backward"][: len(op.kernels)]
    if not op.kernels or len(op.kernels) > 2 or [kernel.name for kernel in op.kernels] != names:
        found = " and ".join(repr(kernel.name) for kernel in op.kernels)
        yield f"its kernels are called {found or 'nothing'}: expected {op.name!r}, and {f'{op.name}_backward'!r} if any"
        return
    if op.gradient is None and len(op.kernels) == 2:
        yield f"kernel {names[1]!r} needs the same math in torch's ops: declare the function `gradient`"
        return
    if op.gradient is not None and len(op.kernels) == 1:
        kernel = f"{op.name}_backward"
        yield f"gradient: expected a kernel {kernel!r}, or no gradient: autograd differentiates `reference`"
    yield from _kernel_faults(op.signature)
    if op.gradient is not None:
        yield from _kernel_faults(op.gradient_signature)


def _number_faults(op: Any, number: Argument) -> Iterator[str]:
    """Yields the faults of an argument that is no tensor."""
    name, default = number.name, number.default
    takes_dim = all(argument.name != "dims" for argument in op.arguments)
    if takes_dim and number.type == "float" and type(default) not in (int, float):
        yield f"parameters: expected a number as the default of {name!r}, found {default!r}"
    elif number.range is not None:
        yield from _range_faults(number)
    used = {parameter for kernel in op.kernels for parameter in kernel.parameters}
    if op.constants is None and name != "dims" and name not in used:
        how = (
            "add it to a kernel's parameters"
            if number.type == "float"
            else "kernels get it by the function `constants`"
        )
        yield f"parameters: no kernel uses {name!r}: {how}"


def _range_faults(number: Argument) -> Iterator[str]:
    """Yields the faults of a range, which has the smallest and the largest number, or all values of a string."""
    name, default, known = number.name, number.default, number.range
    is_text = number.type == "str"
    if not isinstance(known, tuple) or (not is_text and (len(known) != 2 or not known[0] <= known[1])):
        yield f"parameters: expected (smallest, largest) as the range of {name!r}, found {known!r}"
    elif default is not None and not (default in known if is_text else known[0] <= default <= known[1]):
        yield f"parameters: the default of {name!r} is {default!r}, outside of its range {known!r}"


def _result_faults(op: Any) -> Iterator[str]:
    """Yields faults in the order of the results: a function returns, and autograd differentiates, the first ones."""
    for what, flags in (
        ("with a gradient", [result.gradient is None for result in op.results]),
        ("that are returned", [not result.returned for result in op.results]),
        ("that every call has", [result.needs is not None for result in op.results if result.returned]),
    ):
        if flags != sorted(flags):
            yield f"results: expected those {what} first, found {', '.join(result.name for result in op.results)}"
    top = [result.name for result in op.results if result.role in ("top", "top_index")]
    if top and (op.dim != -1 or all(argument.name != "k" for argument in op.arguments)):
        yield f"results: {top[0]!r} has k numbers per row: expected dim=-1 and an argument 'k'"
    optional = {argument.name for argument in op.arguments if argument.optional}
    for result in op.results:
        if isinstance(result.needs, str) and result.needs not in optional:
            yield f"results: {result.name!r} needs {result.needs!r}: expected the name of an optional tensor"
    if len({result.needs for result in op.results if isinstance(result.needs, str) and result.returned}) > 1:
        yield "results: expected one optional tensor that returned results need, found several"
    added = op.kernels[1].added if op.steps is None and len(op.kernels) == 2 else None
    if wrong := [r for r in op.results if isinstance(r.needs, str) and r.gradient not in (None, added)]:
        name = wrong[0].name
        yield f"results: the gradient of {name!r} may be absent: expected it in `added` of the gradient's kernel"


def _gradient_faults(op: Any) -> Iterator[str]:
    """Yields faults of what the gradient reads and returns."""
    if not callable(op.gradient):
        yield f"gradient: expected a function made of torch's ops, found {op.gradient!r}"
        return
    if all(result.gradient is None for result in op.results):
        yield "results: no result has a gradient: name it with gradient=..., as the kernel of the gradient does"
    if not isinstance(op.saves, tuple):
        hint = f": write ({op.saves!r},)" if isinstance(op.saves, str) else ""
        yield f"saves: expected a tuple of names, found {op.saves!r}{hint}"
        return
    for saved in op.saves:
        if not isinstance(saved, str) and (not isinstance(saved, tuple) or len(saved) < 2):
            yield f"saves: expected names, or (name, other names, ...), found {saved!r}"
            return
    known = {*(argument.name for argument in op.arguments), *(result.name for result in op.results)}
    if unknown := {name for sources in op.saved.values() for name in sources} - known:
        found = ", ".join(map(repr, sorted(unknown)))
        yield f"saves: expected names of arguments and results, found {found} (known: {', '.join(sorted(known))})"
        return
    tensors = {argument.name for argument in op.arguments if argument.type == "Tensor"}
    grouped = [name for names in op.gradients for name in names]
    if wrong := [name for name in grouped if name not in tensors or grouped.count(name) > 1]:
        yield f"gradients: expected the name of each tensor once, found {wrong[0]!r}"


def _kernel_faults(signature: Signature) -> Iterator[str]:
    """Yields where the tensors and parameters of a kernel differ from the arguments and results of its signature."""
    kernel = signature.kernel
    assert kernel is not None
    reads = {"element": (*kernel.reads, *kernel.named("added")), "row": kernel.row_reads, "column": kernel.column_reads}
    reads |= {"index": kernel.named("row_index"), "top": kernel.top_reads, "top_index": kernel.named("top_index")}
    writes = {"element": kernel.writes, "row": kernel.row_writes, "column": kernel.column_writes}
    for what, given, items in (("reads", reads, signature.arguments), ("writes", writes, signature.results)):
        for role, names in given.items():
            wanted = [item.name for item in items if item.role == role]
            if len(wanted) != len(names):
                kind = "an index per row" if role == "index" else f"a number per {role}"
                yield (
                    f"kernel {kernel.name!r} {what} {', '.join(names) or 'nothing'} with {kind}: expected "
                    f"{len(wanted)} tensor(s){f': {chr(44).join(wanted)}' if wanted else ''}"
                )
    known = {argument.name for argument in signature.arguments}
    if unknown := [name for name in kernel.parameters if name not in known]:
        yield f"kernel {kernel.name!r} has unknown parameters: {', '.join(unknown)}"
