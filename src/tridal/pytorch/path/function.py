"""The public functions of ops: the code that finds a call by its key, and the first steps of all other calls.

function -> key -> CALLS -> call        a call like an earlier one
         -> __torch_function__          tensor subclasses, modes
         -> stream                      the same call again, on the stream
         -> body                        checks options and calls `call_op`
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch.overrides import handle_torch_function, has_torch_function

from tridal.devices import registry
from tridal.errors import PluginError, StreamError
from tridal.kernels.function_caches import forget_functions
from tridal.ops import table
from tridal.ops.argument_checks import wrong
from tridal.ops.op import Op
from tridal.pytorch.device_context import DeviceContext, device_context
from tridal.pytorch.path import keys
from tridal.pytorch.path.call import CALLS
from tridal.pytorch.path.defined import DEFINED, check_newest
from tridal.pytorch.path.dispatch import call_op
from tridal.pytorch.path.generated import generated
from tridal.pytorch.path.registered import define
from tridal.pytorch.path.shard_keys import direct_key
from tridal.pytorch.torch.distributed import is_distributed
from tridal.pytorch.torch.private import skip_frames

Tensor = torch.Tensor
P = ParamSpec("P")
R = TypeVar("R")
FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""The public functions by op name."""
_compiling = torch.compiler.is_dynamo_compiling


def register(op: Op) -> None:
    """Registers an op and its gradient in `torch.ops.tridal`.

    An op that is already registered stays as it is. A module may declare an op again, for example in a notebook: then
    the newest declaration counts, and calls of the former function raise an error.

    Raises:
        TypeError: it is no `Op`.
        PluginError: the op is invalid (see `tridal.ops.table.check`), or an op of another module has its name.
    """
    if not isinstance(op, Op):
        raise TypeError(wrong("row_function", "op", "be a tridal.ops.Op", repr(op)))
    known = DEFINED.get(op.name)
    if known is not op:
        table.check(op)
        define(op)
        table.add(op)
        if known is not None:
            FUNCTIONS.pop(op.name, None)
            forget_functions()
            registry.invalidate()


def op_function(
    op: Op,
    sizes: str | None = None,
    last: str | None = None,
    names: Mapping[str, str] | None = None,
    variants: Mapping[str, Op] | None = None,
) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[P, R]]:
    """Makes the public function of an op from a body: `body(call, *arguments)`. Registers the op.

    The function has the parameters of the body after `call`. If an earlier call had the same key, the function computes
    the call without the body. Otherwise it handles `__torch_function__` and the argument `stream`, and runs the body.
    The body returns `call(*arguments of the registered op, results=1)`, which checks these arguments, and returns the
    first result, a tuple of the first ones, or those with the indices `results=(0, 2)`. `call` also has the arguments
    `views`, `overwrites`, `by_torch` and `checked` of `tridal.pytorch.call_op`. The body may compute a call in another
    way, too. Then it runs at each such call.

    A parameter with the name of one of the op's tensors is this tensor. The body passes these tensors to `call`, or
    casts or `views` of them. What it does must depend on nothing but what is in the key of a call, see
    `tridal.pytorch.path.keys`.

    Args:
        op: the op.
        sizes: the name of a parameter that is a sequence of ints, as `normalized_shape` is. Its length is the number of
            dims of a row.
        last: an expression of the parameters that is true if rows run along the last dim. By default, this follows from
            the parameter `dim` or from the op; without both, rows run along the last dim.
        names: the op's tensors by the names of parameters that have other names.
        variants: other ops, by the names of tensors that `op` does not have. If such a tensor is given, its op computes
            the call, and the body passes the arguments of this op to `call`.

    Raises:
        PluginError: see `register`.

    Example:
        >>> from tridal.ops import Op, RowKernel, per_element
        >>> kernel = RowKernel("halved", "my_kernels", ("x",), (), ("halved",))
        >>> op = Op("halved", (per_element("input"),), (kernel,), reference=lambda input, reduce: input / 2)
        >>> @tridal.pytorch.op_function(op)
        ... def halved(call, input, *, stream=None):
        ...     return call(input, -1, input.dtype)
        >>> halved(torch.tensor([1.0, 2.0]))
        tensor([0.5000, 1.0000])
    """

    def decorate(body: Callable[Concatenate[Any, P], R]) -> Callable[P, R]:
        ops = {**(variants or {}), "": op}
        for each in ops.values():
            register(each)
        function = _function(ops, body, sizes, last, names or {})
        for each in ops.values():
            FUNCTIONS.setdefault(each.name, function)
        return function

    return decorate


def _function(
    ops: Mapping[str, Op], body: Callable[..., Any], sizes: str | None, last: str | None, renamed: Mapping[str, str]
) -> Callable[..., Any]:
    """Returns the public function of `ops`, by the tensor that selects each of them; the one of "" is the last.

    Its source is generated: it makes the key of a call, and finds the call.
    """
    signature = inspect.signature(body)
    parameters = list(signature.parameters.values())[1:]
    scope = keys.scope() | {f"default_{p.name}": p.default for p in parameters}
    source = ""
    for number, (selecting, op) in enumerate(ops.items()):
        code = _call_code(op, f"_enter{number}", parameters, [*ops], sizes, last, renamed)
        indented = code.replace("\n", "\n    ")
        source += f"if {selecting} is not None:\n    {indented}\n" if selecting else code
        scope[f"_enter{number}"] = functools.partial(_enter, op, body)
    scope |= {"CALLS": CALLS, "NO_KEY": keys.NO_KEY, "compiling": _compiling, "can_be_stored": _can_be_stored}
    if clashes := sorted({parameter.name for parameter in parameters} & scope.keys()):
        name = ops[""].name
        raise PluginError(f"op {name!r}: parameters: functions have a variable {clashes[0]!r}: choose another name")
    function = functools.wraps(body)(generated(body.__name__, _declared(parameters), [source], scope))
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    of_public = {*signature.parameters, "return"} - {next(iter(signature.parameters))}
    function.__annotations__ = {name: kind for name, kind in body.__annotations__.items() if name in of_public}
    del function.__wrapped__
    scope["_function"] = function
    return function


def _call_code(
    op: Op, enter: str, parameters: list[inspect.Parameter], selecting: list[str], sizes: str | None,
    last: str | None, renamed: Mapping[str, str],
) -> str:  # fmt: skip
    """Returns the code of a call of an op. `enter` is the name of its function for calls without a known key."""
    tensors = [op.signature.names[index] for index in op.signature.tensors]
    found = [parameter.name for parameter in parameters]
    names_of_tensors = {renamed.get(name, name): name for name in found}
    own = [names_of_tensors.get(name, "") for name in tensors]
    names = {name: name for name in (*op.signature.names, *own) if name in found}
    names |= {name: code for name, code in zip(tensors, own, strict=True) if code}
    if sizes is not None:
        names["dims"] = "_row_dims"
    flexible, dims = keys.rows_along(op.signature, names)
    flexible = flexible if last is None else f"({flexible}) and ({last})"
    may_be_none = {name for name, known in zip(own, tensors, strict=True) if known in op.signature.optional}
    optional = frozenset(p.name for p in parameters if p.name in own and (p.default is None or p.name in may_be_none))
    # Tensors that the op does not have cannot be in a key.
    others = [p.name for p in parameters if p.name not in (*own, *selecting) and "Tensor" in str(p.annotation)]
    unkeyed = [*others, *["stream"] * ("stream" in found)]
    removed = [p.name for p in parameters if p.kind is p.VAR_KEYWORD]
    options = [p for p in parameters if p.name not in (*own, sizes, *unkeyed, *selecting, *removed)]
    described = keys.describe(op.signature, own, optional, flexible, dims)
    of_sizes = keys.of_sizes(sizes) if sizes is not None else keys.Described([], [])
    lines = [f"if {' or '.join(f'{name} is not None' for name in unkeyed)}: no_key()"] * bool(unkeyed)
    lines += [f"if {name}: no_key()" for name in removed]
    lines += [*of_sizes.lines, keys.PLAIN_THREAD, keys.RECORDING, *described.lines]
    parts = [*described.parts, *keys.of_thread("_function"), *of_sizes.parts, *keys.of_options(options)]
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    keywords = "".join([*(f"{name}={name}, " for name in named), *(f"**{name}, " for name in removed)])
    given = ", ".join(name or "None" for name in own)
    kept = ", ".join([*(p.name for p in options), *([f"*{sizes}"] if sizes is not None else [])])
    lines = lines if op.prepares else ["no_key()"]
    code = [*lines, f"_key = ({', '.join(parts)})", "_call = CALLS.get(_key)"]
    computed = "\n".join(code).replace("\n", "\n        ")
    return f"""_key = _call = None
if not compiling():
    try:
        {computed}
    except NO_KEY:
        _key = _call = None
    if _call is not None:
        return _call.compute({given})
    if _key is not None and not can_be_stored(({kept}{"," * bool(kept)})):
        _key = None
return {enter}(_function, _key, ({given},), ({", ".join(positional)},), dict({keywords}))"""


class _Name(str):
    """A name in generated code, as the default of a parameter."""

    __slots__ = ()
    __repr__ = str.__str__


def _declared(parameters: list[inspect.Parameter]) -> str:
    """Returns the source of parameters, whose defaults are names: "x, dim=default_dim"."""
    named = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else _Name(f"default_{p.name}"))
        for p in parameters
    ]
    return str(inspect.Signature(named))[1:-1]


def _can_be_stored(values: tuple[Any, ...]) -> bool:
    """Returns whether these arguments can be in a key, in which they stay as they are and are equal to themselves.

    The value of a tensor, for example, may change, and NaN is equal to nothing.
    """
    return all(type(value) in keys.VALUES and value == value for value in values)


@functools.partial(skip_frames, inlined=True)
def _enter(
    op: Op, body: Callable[..., Any], function: Callable[..., Any], key: Any, tensors: tuple[Any, ...],
    positional: tuple[Any, ...], keywords: Mapping[str, Any],
) -> Any:  # fmt: skip
    """Computes a call of a function whose key is None or new. `function` is the public one."""
    check_newest(op)
    if not _compiling() and op.prepares and is_distributed(*tensors):
        if not _others(tensors, values := (*positional, *keywords.values())):
            key = direct_key((function, *keywords), values)
        if key is not None and (call := CALLS.get(key)) is not None:
            return call.compute(*tensors)
    # Jagged tensors would get torch's name of the function, and not its arguments.
    nested = any(getattr(tensor, "is_nested", False) is True for tensor in tensors)
    if not _compiling() and not nested and has_torch_function(tensors):
        return handle_torch_function(function, tensors, *positional, **keywords)
    stream = keywords.get("stream")
    if stream is not None and isinstance(tensors[0], Tensor):
        if _compiling():
            raise StreamError(
                f"{op.name}: stream= has no meaning in a compiled function, which runs on the current stream"
            )
        others = _others(tensors, keywords.values())
        with on_stream(op.name, stream, device_context(tensors[0].device), *tensors, *others):
            return function(*positional, **{**keywords, "stream": None})
    return body(functools.partial(call_op, op, key, tensors), *positional, **keywords)


def _others(tensors: tuple[Any, ...], values: Iterable[Any]) -> list[Tensor]:
    """Returns the tensors in the values that are none of the function's own."""
    known = {*map(id, tensors)}
    return [value for value in values if isinstance(value, Tensor) and id(value) not in known]


def on_stream(
    op: str, stream: Any, context: DeviceContext, *tensors: torch.Tensor | None
) -> AbstractContextManager[Any]:
    """Returns a context in which a stream is current on the context's device. All launches and the backward use it.

    Raises:
        StreamError: it is no stream of the device, or torch computes the device's tensors.
    """
    device = context.device
    if context.torch_computes:
        served = f"{device.type} tensors are served by torch and have no stream"
        raise StreamError(wrong(op, "stream", "be None", repr(stream), served))
    module, hint = torch.get_device_module(device.type), ""
    expected = f"be a torch stream of {device} or a raw handle (int)"
    if isinstance(stream, int) and not isinstance(stream, bool):
        if hasattr(module, "ExternalStream"):
            stream = module.ExternalStream(stream, device=device)
        else:
            expected, hint = f"be a torch stream of {device}", f"{device.type} devices take no raw stream handle"
    owner = None if isinstance(stream, torch.Tensor) else getattr(stream, "device", None)
    if owner != device:
        got = f"a stream of {owner}" if isinstance(owner, torch.device) else repr(stream)
        raise StreamError(wrong(op, "stream", expected, got, hint))
    for tensor in tensors:
        if tensor is not None and tensor.device == device:
            tensor.record_stream(stream)
    return module.stream(stream)  # type: ignore[no-any-return]
