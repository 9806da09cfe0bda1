"""The keys of calls: calls with equal keys are computed by one `Call`.

A key holds everything that decides how a call is computed. The source of the code that makes a key is generated,
because a loop over the tensors takes twice the time. The code raises an exception if a call has no key: for subclasses
of torch.Tensor, in modes, transforms and tracers, and for tensors without memory.

A key has these parts:

- the function, the settings, whether autograd records the call, and the state of autocast;
- of each tensor: sizes, strides, dtype, device, class, the bits of the address that decide its alignment, the negative
  bit, and whether it requires a gradient;
- of each other argument: its value and its type.

The number of rows is rounded (`row_bucket`) if rows run along the last dims of a contiguous tensor, or of a matrix with
contiguous rows. All other sizes and strides are exact. Whether the number of rows is a multiple of 16 is a part where
kernels depend on it. Modes that only torch's functions read, such as the deterministic mode, are not in the key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from tridal.devices.problem import EXACT_ROWS, row_bucket
from tridal.devices.settings import current
from tridal.devices.types import ALIGNMENT
from tridal.ops.signature import Signature
from tridal.pytorch.path.generated import generated
from tridal.pytorch.torch import private
from tridal.runtime.specialization import ADDRESS_BITS

NO_KEY = Exception
"""What the code raises for a call without a key. An argument of any type may be given, whose methods raise anything."""
SIZES = (tuple, list, torch.Size)
VALUES = (int, float, bool, str, type(None), torch.dtype)
"""The types of the arguments in a key. Their values do not change."""


class Described(NamedTuple):
    """The code that describes arguments of a call."""

    lines: list[str]
    """Statements that come before the key."""
    parts: list[str]
    """Expressions, the parts of a key. The first one of tensors is the rounded number of rows, or None. One raises an
    exception if a tensor has no description."""


def describe(
    signature: Signature, names: Sequence[str], optional: frozenset[str], flexible: str, dims: str = "1",
    gradients: int = 0,
) -> Described:  # fmt: skip
    """Returns the code that describes tensors.

    Args:
        signature: has the roles of the tensors.
        names: the tensors of the signature, in order. They are names in the code, and empty for absent ones.
        optional: the names of those that may be None.
        flexible: an expression with `_shape` and `_main_rank` (of the main tensor): whether rows run along its last
            dims, and any number of them is computed alike.
        dims: an expression for the number of dims of a row.
        gradients: how many of the tensors are the gradients of a backward, whose tensors require no gradient. Only
            these may be batches of torch's legacy vmap.
    """
    main = names[signature.tensors.index(signature.main)]
    roles = {name: signature.arguments[index].role for name, index in zip(names, signature.tensors, strict=True)}
    roles.pop("", None)
    plain = "{0}.__class__ is Tensor or {0}.__class__ is Parameter"
    # The class comes first, because a subclass may do anything when another attribute is read.
    classes = {name: f"{name}.__class__ if {plain.format(name)} else no_key()" for name in roles}
    classes |= {name: f"no_key() if batched({name}) else {classes[name]}" for name in names[:gradients] if name}
    # Steps, and kernels that merge 16 rows (`merges_rows`), may depend on whether the rows are a multiple of 16.
    has_multiple = signature.steps is not None or (signature.kernel is not None and not signature.kernel.statistics)
    lines = [f"_main_class = {classes[main]}", *_rows(main, roles, flexible, dims, has_multiple)]
    parts = ["_rows", "_sizes", *["_multiple"] * has_multiple, "_main_rank", "_strides"]
    for name, role in roles.items():
        strides = f"{name}.is_contiguous() or ({name}.stride(), {name}.shape)"
        found = ["_main_class"] if name == main else [classes[name], _shape(name, role), strides]
        # A process has one type of accelerators, so an index, or -1 for the CPU, is a device.
        found += [f"{name}.get_device()", f"{name}.dtype"]
        found += [f"({name}.data_ptr() or no_key()) & {ADDRESS_BITS}", f"{name}.is_neg()"]
        found += [f"_recording and {name}.requires_grad and not inference()"] * (not gradients)
        parts += [f"None if {name} is None else ({', '.join(found)})"] if name in optional else found
    return Described(lines, [*parts, f"any_autocast() and autocast({main}.device)"])


def _rows(main: str, roles: Mapping[str, Any], flexible: str, dims: str, has_multiple: bool) -> list[str]:
    """Returns the code for the sizes of the main tensor: `_shape`, `_main_rank`, `_rows`, `_sizes`, `_leading`."""
    cols = "_sizes" if dims == "1" else "_cols"
    of_rows = any(role in ("row", "index") or callable(role) for role in roles.values())
    lines = [
        f"_shape, _strides = {main}.shape, {main}.is_contiguous() or {main}.stride()",
        "_main_rank = len(_shape)",
        f"if ({flexible}) and _main_rank > {dims} and (",
        "    _strides is True or (_main_rank == 2 and _strides[1] == 1) or not any(_strides)",
        "):",
        f"    _sizes = {'' if dims == '1' else '_cols = '}_shape[-1]",
        *[f"    if {dims} > 1: _sizes, _cols = _shape[-{dims}:], _shape[-{dims}:].numel()"] * (dims != "1"),
        f"    _rows = _shape[0] if _main_rank == 2 else {main}.numel() // {cols}",  # torch's methods take longer
        *[f"    _leading = (_rows,) if _main_rank == 2 else _shape[:-{dims}]"] * of_rows,
    ]
    rounds = f"if _rows > {EXACT_ROWS}: _rows = row_bucket(_rows, {cols})[1]"
    if has_multiple:
        lines.append(f"    _multiple = _rows % {ALIGNMENT} == 0")
        lines.append(f"    if _multiple and {cols} % {ALIGNMENT}:")  # the bucket is that of the merged rows
        lines.append(f"        _rows = row_bucket(_rows // {ALIGNMENT}, {cols} * {ALIGNMENT})[1] * {ALIGNMENT}")
        rounds = f"el{rounds}"
    return [*lines, f"    {rounds}", "else:", "    _rows, _sizes, _multiple, _leading = None, _shape, False, None"]


def _shape(name: str, role: Any) -> str:
    """Returns the expression for the shape of a tensor that is not the main one."""
    if role == "element":
        return f"{name}.shape == _shape or {name}.shape"
    if callable(role):  # most have a number per row
        return f"2 if {name}.shape == _leading else 1 if {name}.shape == _shape else {name}.shape"
    return f"2 if {name}.shape == _leading else {name}.shape" if role in ("row", "index") else f"{name}.shape"


PLAIN_THREAD = (
    "if function_modes() or dispatch_modes() or transforms_active() or forward_ad._current_level >= 0"
    " or tracing_state() is not None: no_key()"
)
"""The statement that refuses a key in modes, transforms and tracers."""
RECORDING = "_recording = grad_enabled()"
"""The statement that sets the variable `_recording`: whether autograd is enabled."""


def of_thread(function: str) -> list[str]:
    """Returns the parts of a key for the function, which is an expression, and for the thread. See `RECORDING`."""
    return [function, "current()", "_recording"]


def of_options(parameters: Sequence[Any]) -> list[str]:
    """Returns the parts of a key for arguments that are neither tensors nor sizes.

    The default of an argument is `default_` and its name in the code.
    """
    parts = []
    for parameter in parameters:
        name = parameter.name
        if parameter.default is parameter.empty:
            parts += [name, f"{name}.__class__"]
        else:  # most calls have the default, and `is` is faster than the value and its type
            parts.append(f"None if {name} is default_{name} else ({name}, {name}.__class__)")
    return parts


def of_sizes(name: str) -> Described:
    """Returns the code for an argument that is a sequence of ints of length `_row_dims`, as `normalized_shape` is."""
    types = f"{name}[0].__class__ if _row_dims == 1 else tuple(map(type, {name}))"
    values = f"{name} if {name}.__class__ is tuple else tuple({name})"
    return Described([f"if {name}.__class__ not in SIZES: no_key()", f"_row_dims = len({name})"], [values, types])


def scope() -> dict[str, Any]:
    """Returns the names that the generated code uses, with their values."""
    return {
        "Tensor": torch.Tensor, "Parameter": torch.nn.Parameter, "no_key": no_key, "current": current,
        "function_modes": private.function_modes, "dispatch_modes": private.dispatch_modes,
        "transforms_active": private.transforms_active, "tracing_state": private.tracing_state,
        "forward_ad": private.FORWARD_AD, "grad_enabled": torch.is_grad_enabled,
        "inference": torch.is_inference_mode_enabled, "any_autocast": private.any_autocast, "autocast": autocast,
        "batched": private.is_batched_gradient, "row_bucket": row_bucket, "SIZES": SIZES,
    }  # fmt: skip


def most_rows(key: tuple[Any, ...] | None) -> int | None:
    """Returns the largest number of rows with a key, or None if all sizes in it are exact or the call has no key."""
    return None if key is None else key[0]


def no_key() -> NoReturn:
    """Raises the exception of a call without a key."""
    raise TypeError


def autocast(device: torch.device) -> Any:
    """Returns the dtype of autocast on a device, or False if it is not enabled."""
    kind = device.type
    return private.autocast_enabled(kind) and torch.get_autocast_dtype(kind)


@functools.lru_cache(maxsize=1024)
def key_function(signature: Signature, gradients: int = 0) -> Callable[..., tuple[Any, ...]]:
    """Returns key(what, *arguments), the key of a call of a registered op. `what` is a part of the key.

    Args:
        signature: that of the op, or of its gradient.
        gradients: how many of the first tensors are gradients in a backward, for which `what` is the call of the
            forward, which decides all numbers. If it is 0, the caller has made sure that no mode and no transform has
            to see the call.

    The function raises TypeError if the call has no key.
    """
    names = [f"a{index}" for index in range(len(signature.arguments))]
    flexible, dims = rows_along(signature, dict(zip(signature.names, names, strict=True)))
    tensors = [names[index] for index in signature.tensors]
    optional = frozenset(names[index] for index in signature.tensors if signature.arguments[index].optional)
    found = describe(signature, tensors, optional, flexible, dims, gradients)
    if gradients:
        lines, others = [PLAIN_THREAD, "if grad_enabled(): no_key()"], ["what"]
    else:
        numbers = [names[index] for index in signature.numbers]
        values = [f"tuple({n}) if {n}.__class__ is list else {n}" for n in numbers]
        lines, others = [RECORDING], [*of_thread("what"), *values, *(f"{n}.__class__" for n in numbers)]
    lines += [*found.lines, f"return ({', '.join([*found.parts, *others])})"]
    return generated("key", ", ".join(["what", *names]), lines, scope())


def rows_along(signature: Signature, names: dict[str, str]) -> tuple[str, str]:
    """Returns the expressions `flexible` and `dims` of `describe`. `names` are those of arguments in the code."""
    conditions = [] if signature.any_rows else ["False"]
    if "dim" in names:
        conditions.append(f"({names['dim']} == -1 or {names['dim']} == _main_rank - 1)")
    elif signature.dim is not None and signature.dim >= 0:
        conditions.append(f"_main_rank == {signature.dim + 1}")
    per_block = (names.get(signature.names[index]) for index in signature.per_block)
    conditions += [f"({name} is None or {name}.shape == _shape)" for name in per_block if name]
    conditions += [f"{names[name]} is None" for name in ("mask",) if name in names]
    conditions += [f"{names[name]} is False" for name in ("causal",) if name in names]
    return " and ".join(conditions) or "True", names.get("dims", "1")
