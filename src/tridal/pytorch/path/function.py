"""The function of an op of rows with the arguments `dim` and `dtype`. It computes a call in one of three ways:

call -> call guard -> prepared call -> kernel     plain tensors
     -> registered op                             tensor subclasses, transforms, modes, tracers
     -> torch                                     devices and dtypes that no backend computes
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from tridal.devices import registry
from tridal.errors import PluginError
from tridal.ops import row_maths, table
from tridal.ops.argument_checks import check_choice, check_number, wrong
from tridal.ops.arguments import Argument, element_dtype
from tridal.ops.op import Op
from tridal.ops.row_reduce import has_tangent
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.device_context import DeviceContext, device_context, has_autocast
from tridal.pytorch.path.calls import PendingCall, call, call_prepared
from tridal.pytorch.path.checks import check, check_arguments
from tridal.pytorch.path.nodes import is_plain
from tridal.pytorch.path.registered import define
from tridal.pytorch.path.row_calls import rules_of
from tridal.pytorch.path.rules import DEFINED, Rules, check_newest, overload
from tridal.pytorch.path.streams import compiled_stream, on_stream
from tridal.pytorch.path.support import backend_computes, record_torch_call, torch_computes
from tridal.pytorch.torch.distributed import is_distributed
from tridal.pytorch.torch.private import skip_frames
from tridal.runtime.row_kernel import forget_functions

Tensor = torch.Tensor
FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""The public functions by op name."""
_compiling = torch.compiler.is_dynamo_compiling


def register(op: Op, function: Callable[..., Any] | None = None) -> Rules:
    """Registers an op and its gradient in `torch.ops.tridal`, and its public function. Returns the rules of the op.

    An op that is already registered keeps its rules. A module may declare an op again, for example in a notebook: then
    the newest declaration counts, and calls of the former function raise an error.

    Raises:
        TypeError: it is no `Op`.
        PluginError: the op is invalid (see `tridal.ops.table.check`), or an op of another module has its name.
    """
    if not isinstance(op, Op):
        raise TypeError(wrong("row_function", "op", "be a tridal.ops.Op", repr(op)))
    rules = DEFINED.get(op.name)
    if rules is None or rules.op is not op:
        table.check(op)
        again, rules = rules is not None, rules_of(op)
        define(rules)
        table.add(op)
        if again:
            FUNCTIONS.pop(op.name, None)
            forget_functions()
            registry.invalidate()
    if function is not None:
        FUNCTIONS[op.name] = function
    return rules


def row_function(op: Op) -> Callable[..., Any]:
    """Returns the function of an op: `f(*tensors, dim=-1, dtype=None, *, stream=None, **numbers)`.

    `dim`, `dtype` and `stream` are those of `tridal.softmax`. Registers the op and its gradient in `torch.ops.tridal`.

    Raises:
        PluginError: the declaration of the op is invalid, or another op has its name.

    Example:
        >>> from tridal.ops import Op, RowKernel, per_element
        >>> kernel = RowKernel("twice", "my_kernels", ("x",), (), ("twice",))  # the function twice(x) of my_kernels.py
        >>> op = Op("twice", (per_element("input"),), (kernel,), reference=lambda x, reduce: 2 * x)
        >>> twice = tridal.row_function(op)
        >>> twice(torch.tensor([1.0, 2.0]))  # no backend serves CPU tensors, so the reference computes it
        tensor([2., 4.])
    """
    if isinstance(op, Op) and op.fault() is None and not op.signature.casts:
        field = "argument dims" if op.dim is None else f"field dim={op.dim}"
        raise PluginError(
            f"op {op.name!r} has the {field}, so it has no function with the arguments dim and dtype: write its "
            "function, and register it with tridal.pytorch.register"
        )
    rules = register(op)
    if op.name in FUNCTIONS:
        return FUNCTIONS[op.name]
    tensors = [argument for argument in op.arguments if argument.type == "Tensor"]
    required = [argument.name for argument in tensors if not argument.optional]
    optional = [argument.name for argument in tensors if argument.optional]
    numbers = [argument for argument in op.arguments if argument.type != "Tensor"]
    # No argument has a name that begins with an underscore.
    scope: dict[str, Any] = {
        "_apply": apply, "_compiling": _compiling, "_numbers": numbers, "_number": _number, "_prepared": call_prepared,
        "_PendingCall": PendingCall, "_rules": rules,
    }  # fmt: skip
    parameters = [*required, *(f"{name}=None" for name in optional), "dim=-1", "dtype=None", "*", "stream=None"]
    parameters += [f"{n.name}=_numbers[{index}].default" for index, n in enumerate(numbers)]
    given = "".join(f"_number({op.name!r}, _numbers[{index}], {n.name}), " for index, n in enumerate(numbers))
    names = "".join(f"{argument.name}, " for argument in tensors)
    options = "".join(f"{argument.name}, " for argument in numbers)
    read = f"{names}{'None, ' * op.scale_mask}"  # the function takes no mask
    count = " - ".join([str(op.returned), *(f"({r.needs} is None)" for r in op.results[: op.returned] if r.needs)])
    exec(
        f"def {op.name}({', '.join(parameters)}):\n"
        f"    _results, _options = {count}, (dim, dtype, stream, {options})\n"
        f"    _pending = None if _compiling() else _prepared(_function, ({read}), _options, (), _results)\n"
        f"    if _pending is not None and _pending.__class__ is not _PendingCall: return _pending\n"
        f"    return _apply(_rules, _function, ({names}), dim, dtype, stream, ({given}), (), _pending, _results)\n",
        scope,
    )
    function: Callable[..., Any] = scope[op.name]
    scope["_function"] = function
    function.__doc__ = op.reference.__doc__
    FUNCTIONS[op.name] = function
    return function


def _number(op: str, argument: Argument, value: Any) -> Any:
    """Returns the value of an argument that is no tensor. Raises TypeError or ValueError if it is wrong."""
    if argument.type != "float":
        if type(value).__name__ != argument.type:
            raise TypeError(wrong(op, argument.name, f"be of the type {argument.type}", repr(value)))
        if argument.type == "str" and argument.range:
            check_choice(op, argument.name, value, argument.range)
        return value
    check_number(op, argument.name, value)
    return float(value) if value == value else math.nan  # cache keys compare NaN by identity


@functools.partial(skip_frames, inlined=True)
def apply(
    rules: Rules,
    function: Callable[..., Any],
    tensors: tuple[Any, ...],
    dim: Any,
    dtype: Any,
    stream: Any,
    numbers: tuple[Any, ...] = (),
    modification: tuple[Any, ...] = (),
    pending: Any = None,
    results: int = 1,
) -> Any:
    """Computes an op of rows for the arguments of its function, if no prepared call does.

    `modification` is (mask, scale, causal, zero_masked_rows), or empty if nothing modifies the scores. The first
    `results` results are returned.
    """
    check_newest(rules.op)
    if _compiling():
        return _compiled(rules, tensors, dim, dtype, stream, numbers, modification, results)
    op, input = rules.op, tensors[0]
    given = (*tensors, *modification[:1])
    if has_torch_function(given):
        named = dict(zip((a.name for a in op.arguments if a.type != "Tensor"), numbers, strict=True))
        pairs = list(zip(tensors, op.arguments, strict=False))
        ordered = [tensor for optional in (False, True) for tensor, a in pairs if a.optional is optional]
        return handle_torch_function(function, given, *ordered, dim, dtype, stream=stream, **named)
    if is_plain(input) and type(dim) is int and stream is None and not modification and op.torch_function is not None:
        if input.is_nested or (device_context(input.device).torch_computes and not has_tangent(input)):
            return _by_torch_function(op, input, dim, dtype)
    elif isinstance(input, Tensor) and input.is_nested and stream is None and op.torch_function is not None:
        arguments = (*tensors, dim, dtype or input.dtype, *numbers, *modification)
        return _by_torch(rules, arguments, "the tensor is nested", results)
    for tensor, argument in zip(tensors, op.signature.arguments, strict=False):
        if argument.role != "index" and (tensor is not None or not argument.optional):
            check(tensor, dim if argument.role == "element" else -1, dtype, op.name, argument.name)
    dim, context = operator.index(dim), device_context(input.device)
    if stream is not None:
        with on_stream(op.name, stream, context, *given):
            return apply(rules, function, tensors, dim, dtype, None, numbers, modification, None, results)
    wanted = dtype
    if not is_distributed(*given):
        if torch_computes(op.name, *tensors):
            arguments = (*tensors, dim, dtype or element_dtype(op.arguments, tensors), *numbers, *modification)
            return _by_torch(rules, arguments, None, results)
        if context.backend is None:
            backend_computes(context, set())  # raises NoBackendError
    if dtype is None and not context.torch_computes and _autocast_active(op, context):
        wanted = autocast_dtype(input)
    arguments = (*tensors, dim, wanted or element_dtype(op.arguments, tensors), *numbers, *modification)
    try:
        found = call(rules, op.signature.complete(arguments), pending)
    except TypeError:
        if type(input).__torch_dispatch__ is Tensor.__torch_dispatch__ or is_distributed(input):
            raise
        # a subclass such as MaskedTensor, which rejects the registered op
        return _by_torch(rules, arguments, f"{type(input).__name__} rejects tridal's op", results)
    return found[0] if results == 1 else found[:results]


def _by_torch_function(op: Op, input: Tensor, dim: Any, dtype: Any) -> Tensor:
    """Computes a call with torch's function. An invalid argument gets tridal's error, which is clearer than torch's."""
    assert op.torch_function is not None
    if RECORDERS:
        record_torch_call(op.name, dtype, input)
    try:
        found = op.torch_function(input, dim, dtype=dtype)
    except (IndexError, RuntimeError, TypeError, ValueError):
        if not input.is_nested:
            check(input, dim, dtype, op.name)
        raise
    if input.is_nested:
        return found
    return row_maths.with_new_memory((found,), (input,))[0]  # type: ignore[return-value]


def _by_torch(rules: Rules, arguments: tuple[Any, ...], reason: str | None, results: int) -> Any:
    """Computes a call with torch's ops. Records it with the reason, if there is one."""
    op, arguments = rules.op, rules.op.signature.complete(arguments)
    if RECORDERS and reason is not None:
        record_torch(op.name, arguments[0], reason)
    if not arguments[0].is_nested:
        check_arguments(op, op.signature, arguments)
    found = row_maths.compute(op, *arguments)
    return found[0] if results == 1 else found[:results]


def _compiled(
    rules: Rules,
    tensors: tuple[Tensor, ...],
    dim: Any,
    dtype: torch.dtype | None,
    stream: Any,
    numbers: tuple[Any, ...],
    modification: tuple[Any, ...],
    results: int,
) -> Any:
    """Computes a call in torch.compile and torch.export: as a registered op, or by torch if no backend serves it."""
    op, input = rules.op, tensors[0]
    if stream is not None:
        raise compiled_stream(op.name)
    if not input.is_nested and (len(modification) > 0 or type(dim) is not int):
        check(input, dim, dtype, op.name)
        dim = operator.index(dim)
    kind = input.device.type
    by_torch = input.is_nested or torch_computes(op.name, *tensors, *modification[:1])
    if not by_torch and dtype is None and op.autocast and has_autocast(kind) and torch.is_autocast_enabled(kind):
        dtype = autocast_dtype(input)
    arguments = (*tensors, dim, dtype or element_dtype(op.arguments, tensors), *numbers, *modification)
    if not by_torch:
        found = overload(op.name)(*arguments)
        return found if isinstance(found, Tensor) else found[0] if results == 1 else found[:results]
    return _by_torch(rules, arguments, None, results)


def _autocast_active(op: Op, context: DeviceContext) -> bool:
    return op.autocast and context.has_autocast and torch.is_autocast_enabled(context.device.type)


def autocast_dtype(input: Tensor) -> torch.dtype | None:
    """Returns the dtype to which autocast casts the input: float32, or None for float64, integer and bool input."""
    return torch.float32 if input.is_floating_point() and input.dtype is not torch.float64 else None
