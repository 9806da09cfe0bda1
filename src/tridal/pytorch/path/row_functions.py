"""The function of an op of rows with the arguments `dim` and `dtype`."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from tridal.errors import PluginError
from tridal.ops import row_math
from tridal.ops.argument_checks import check_choice, check_number, wrong
from tridal.ops.arguments import Argument, element_dtype
from tridal.ops.op import Op
from tridal.ops.row_reduce import has_tangent
from tridal.ops.scale_mask import check_scale_mask
from tridal.ops.signature import Arguments
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.device_context import backend_computes, device_context, has_autocast, record_torch_call
from tridal.pytorch.path.checks import check, check_arguments
from tridal.pytorch.path.defined import call_registered, picked
from tridal.pytorch.path.dispatch import torch_computes
from tridal.pytorch.path.function import FUNCTIONS, op_function, register
from tridal.pytorch.path.state import is_plain
from tridal.pytorch.torch.distributed import is_distributed

Tensor = torch.Tensor
_compiling = torch.compiler.is_dynamo_compiling


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
            "function with tridal.pytorch.op_function"
        )
    register(op)
    if op.name in FUNCTIONS:
        return FUNCTIONS[op.name]
    tensors = [argument for argument in op.arguments if argument.type == "Tensor"]
    ordered = sorted(tensors, key=lambda argument: argument.optional)
    numbers = [argument for argument in op.arguments if argument.type != "Tensor"]

    def body(call: Any, *given: Any, stream: Any = None, **values: Any) -> Any:
        *found, dim, dtype = given
        by_name = dict(zip((argument.name for argument in ordered), found, strict=True))
        named = [by_name[argument.name] for argument in tensors]
        checked = tuple(_number(op.name, argument, values[argument.name]) for argument in numbers)
        needed = [r.needs for r in op.results[: op.returned] if isinstance(r.needs, str)]
        absent = sum(by_name.get(name) is None for name in needed)
        return apply(op, call, tuple(named), dim, dtype, checked, results=op.returned - absent)

    plain, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("call", plain),
        *(_parameter(a.name, plain, None if a.optional else inspect.Parameter.empty) for a in ordered),
        _parameter("dim", plain, -1), _parameter("dtype", plain, None), _parameter("stream", keyword, None),
        *(_parameter(argument.name, keyword, argument.default) for argument in numbers),
    ]  # fmt: skip
    body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    body.__name__ = body.__qualname__ = op.name
    body.__doc__ = op.reference.__doc__
    body.__annotations__ = {}
    return op_function(op)(body)


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, kind, default=default)


def _number(op: str, argument: Argument, value: Any) -> Any:
    """Returns the value of an argument that is no tensor. Raises TypeError or ValueError if it is wrong."""
    if value is None and argument.optional:
        return None
    if argument.type != "float":
        if type(value).__name__ != argument.type:
            raise TypeError(wrong(op, argument.name, f"be of the type {argument.type}", repr(value)))
        if argument.type == "str" and argument.range:
            check_choice(op, argument.name, value, argument.range)
        return value
    check_number(op, argument.name, value)
    return float(value) if value == value else math.nan  # cache keys compare NaN by identity


def apply(
    op: Op, call: Callable[..., Any], tensors: tuple[Any, ...], dim: Any, dtype: Any, numbers: tuple[Any, ...] = (),
    modification: tuple[Any, ...] = (), results: int = 1,
) -> Any:  # fmt: skip
    """Computes an op of rows in the body of a function, for the function's arguments.

    Checks the tensors, `dim`, `dtype` and the modification; the caller has checked `numbers`. `call` is that of the
    body, see `op_function`. `modification` is (mask, scale, causal, zero_masked_rows), or empty if nothing modifies the
    scores. Returns the first result, or a tuple of the first `results`.
    """
    if _compiling():
        return _compiled(op, tensors, dim, dtype, numbers, modification, results)
    input = tensors[0]
    if is_plain(input) and type(dim) is int and not modification and op.torch_function is not None:
        if input.is_nested or (device_context(input.device).torch_computes and not has_tangent(input)):
            return call(by_torch=lambda input, *_: _by_torch_function(op, input, dim, dtype))
    elif isinstance(input, Tensor) and input.is_nested and op.torch_function is not None:
        _check_modification(op, input, dim, modification)
        arguments = _arguments(op, tensors, dim, dtype, numbers, modification)
        return _by_torch(op, arguments, "the tensor is nested", results)
    check_arguments(Arguments(op.signature, (*tensors, dim, dtype, *numbers, *modification)))
    dim, context = operator.index(dim), device_context(input.device)
    if not is_distributed(*tensors, *modification[:1]):
        if context.torch_computes:
            record_torch_call(op.name, None, *tensors)
            return _by_torch(op, _arguments(op, tensors, dim, dtype, numbers, modification), None, results)
        if context.backend is None:
            backend_computes(context, set())  # raises NoBackendError
    autocasts = op.autocast and context.has_autocast and not context.torch_computes
    if dtype is None and autocasts and torch.is_autocast_enabled(context.device.type):
        dtype = autocast_dtype(input)
    arguments = _arguments(op, tensors, dim, dtype, numbers, modification)
    try:
        return call(*arguments, results=results, checked=True)
    except TypeError:
        if type(input).__torch_dispatch__ is Tensor.__torch_dispatch__ or is_distributed(input):
            raise
        # a subclass such as MaskedTensor, which rejects the registered op
        return _by_torch(op, arguments, f"{type(input).__name__} rejects tridal's op", results)


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
    return row_math.with_new_memory((found,), (input,))[0]  # type: ignore[return-value]


def _arguments(
    op: Op, tensors: tuple[Any, ...], dim: int, dtype: torch.dtype | None, numbers: tuple[Any, ...],
    modification: tuple[Any, ...],
) -> tuple[Any, ...]:  # fmt: skip
    """Orders the checked arguments of the function as the registered op takes them."""
    if len(modification) > 0:
        mask, scale, *others = modification
        modification = (mask, float(scale) if scale == scale else math.nan, *others)  # NaN is not equal to another NaN
    dtype = dtype or element_dtype(op.arguments, tensors)
    return Arguments(op.signature, (*tensors, dim, dtype, *numbers, *modification)).values


def _check_modification(op: Op, input: Tensor, dim: int, modification: tuple[Any, ...]) -> None:
    if len(modification) > 0:
        mask, scale, causal, zero_masked_rows = modification
        check_scale_mask(op.name, input, dim, scale, mask, causal, "zero" if zero_masked_rows else "nan")


def _by_torch(op: Op, arguments: tuple[Any, ...], reason: str | None, results: int) -> Any:
    """Computes a call with torch's ops. Records it with the reason, if there is one."""
    if RECORDERS and reason is not None:
        record_torch(op.name, arguments[0], reason)
    return picked(row_math.compute(op, *arguments), results)


def _compiled(
    op: Op, tensors: tuple[Tensor, ...], dim: Any, dtype: torch.dtype | None, numbers: tuple[Any, ...],
    modification: tuple[Any, ...], results: int,
) -> Any:  # fmt: skip
    """Computes a call in torch.compile and torch.export: as a registered op, or by torch if no backend serves it."""
    input = tensors[0]
    if not input.is_nested and (len(modification) > 0 or type(dim) is not int):
        check(input, dim, dtype, op.name)
        dim = operator.index(dim)
    _check_modification(op, input, dim, modification)
    kind = input.device.type
    by_torch = input.is_nested or torch_computes(op.name, *tensors, *modification[:1])
    if not by_torch and dtype is None and op.autocast and has_autocast(kind) and torch.is_autocast_enabled(kind):
        dtype = autocast_dtype(input)
    arguments = _arguments(op, tensors, dim, dtype, numbers, modification)
    if not by_torch:
        return call_registered(op, arguments, results)
    if not input.is_nested:
        check_arguments(Arguments(op.signature, arguments))
    return _by_torch(op, arguments, None, results)


def autocast_dtype(input: Tensor) -> torch.dtype | None:
    """Returns the dtype to which autocast casts the input: float32, or None for float64, integer and bool input."""
    return torch.float32 if input.is_floating_point() and input.dtype is not torch.float64 else None
