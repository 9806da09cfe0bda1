"""Replaces the rotary embedding of an attention module by `tridal.rotary_embedding`, if it is the same.

An attention class of transformers calls a function of its Python module. A replaced attention runs the code of its
class, in which the name of this function stands for tridal's, inside the same decorators. The function is compared. The
attention is not called.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tridal.library.rotary.functions import rotary_embedding
from tridal.library.rotary.rotary import ROTARY_EMBEDDING
from tridal.models.comparison import NARROW, TOLERANCE, Pair, attempt, error, find_casting, isolated, with_gradients
from tridal.models.reads import Form, names_in, own_forward
from tridal.models.replacements import Replacement, is_patched, torch_computes
from tridal.ops import row_maths

Tensor = torch.Tensor
Rotate = Callable[..., Any]
"""A function of query, key, cos, sin and optionally the dim of the heads, `unsqueeze_dim`."""
NAME = re.compile("rotary|(^|_)m?rope(_|$)", re.IGNORECASE)
"""A name of a function that may be a rotary embedding. The comparison decides whether it is one."""
METHOD = re.compile("^_*apply_", re.IGNORECASE)
"""A method with such a `NAME` rotates, and does not compute angles."""
_KIND = "rotary embedding"
_SIZES = (2, 3, 8, 64)
"""The sizes of a query in the comparison: batch, heads, length and dim. A key has one head."""


@dataclass(frozen=True)
class RotaryForm(Form):
    """The rotary embedding that an attention computes."""

    name: str
    """The name of the function in the Python module of the attention's class."""
    casting: str

    def __str__(self) -> str:
        return "tridal.rotary_embedding" + (f", casting={self.casting!r}" if self.casting else "")


class Attention(Replacement):
    """The forward of an attention module with rotary embedding. The form says which function tridal replaces."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs of the class's forward. A compiler gets the function of the class, which it fuses."""
        forward: Any = super().forward  # type: ignore[misc]
        plain = self._tridal_form is None or not isinstance(forward, types.MethodType)
        if plain or torch.compiler.is_dynamo_compiling() or is_patched(self):
            return forward(*args, **kwargs)
        return _with_ours(forward.__func__, self._tridal_form)(self, *args, **kwargs)


def function_name(module: torch.nn.Module) -> str | None:
    """Returns the name of the function or method for a rotary embedding that a module's forward calls, or None."""
    forward = own_forward(module)
    if forward is None:
        return None
    names = [name for name in names_in(forward) if NAME.search(name)]
    functions = [name for name in names if _is_function(forward.__globals__.get(name))]
    methods = (name for name in names if METHOD.search(name) and callable(getattr(type(module), name, None)))
    return next(iter((*functions, *methods)), None)


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)


def find_form(module: torch.nn.Module) -> RotaryForm | str:
    """Returns the rotary embedding that a module with a `function_name` computes, or why it is another one."""
    forward: Any = type(module).forward
    name = function_name(module)
    assert name is not None
    function = inspect.unwrap(forward).__globals__.get(name)
    if not _is_function(function):
        return f"this form of {_KIND} is not supported: {name} is a method, and not a function of its Python module"
    found = _find(function, name)
    # The function that was compared is remembered here.
    if isinstance(found, RotaryForm) and _with_ours(forward, found) is forward:
        return f"a decorator of its forward keeps the code that calls {name} in another place than its closure"
    return found


@functools.cache
def _find(function: Rotate, name: str) -> RotaryForm | str:
    try:
        parameters = inspect.signature(function)
        parameters.bind(*"qkcs", unsqueeze_dim=1)
    except TypeError:
        takes = f"{name} takes ({', '.join(parameters.parameters)})"
        return f"this form of {_KIND} is not supported: {takes}, and not (query, key, cos, sin, unsqueeze_dim)"
    return attempt(_KIND, torch.device("cpu"), _compare, function, name)


def _compare(function: Rotate, name: str) -> RotaryForm | str:
    differs = "its rotary embedding differs from tridal.rotary_embedding"
    exact = max(error(*pair) for dim in (1, 2) for pair in _pairs(function, dim, torch.float64, torch.float64))
    if not exact <= TOLERANCE:
        return f"{differs} by {exact:.1e}"
    if not max(error(*pair) for dtype in NARROW for pair in _pairs(function, 1, dtype, torch.float32)[:2]) <= TOLERANCE:
        return f"{differs} for wider cos and sin"
    casting = find_casting(lambda casting, dtype: _pairs(function, 1, dtype, dtype, casting)[:2])
    if casting is None:
        return f"{differs} in 16-bit dtypes: the order of rounding differs"
    return RotaryForm(name, casting)


def _pairs(function: Rotate, heads: int, dtype: torch.dtype, other: torch.dtype, casting: str = "") -> list[Pair]:
    """Returns query, key and gradients of tridal and of the function. `other` is the dtype of cos and sin."""
    generator = torch.Generator("cpu").manual_seed(0)
    batch, count, length, dim = _SIZES
    shapes = (batch, count, length, dim), (batch, 1, length, dim), *2 * [(batch, length, dim)]
    query, key, cos, sin = (torch.randn(shape, generator=generator, device="cpu") for shape in shapes)
    inputs = [x.to(dtype).requires_grad_() for x in (query, key)]
    tensors = [x.transpose(1, 2) if heads == 2 else x for x in inputs] + [cos.to(other), sin.to(other)]
    results = [*function(*tensors, **({} if heads == 1 else {"unsqueeze_dim": heads}))]
    ours: Any = row_maths.compute(ROTARY_EMBEDDING, *tensors, None, heads, casting, False, False, False)
    for y, expected in zip(results, ours, strict=True):
        if y.shape != expected.shape or y.dtype is not expected.dtype:
            given = f"for a query of {dtype} with cos and sin of {other}"
            computed = f"{y.dtype} of shape {list(y.shape)}, and tridal.rotary_embedding"
            raise TypeError(f"{given}, it returns {computed} {expected.dtype} of shape {list(expected.shape)}")
    return list(zip(with_gradients(ours, inputs), with_gradients(results, inputs), strict=True))


@functools.cache
def _with_ours(forward: Any, form: RotaryForm) -> Any:
    """Returns `forward` with the same decorators and code, in which the form's name stands for tridal's function.

    Returns `forward` itself if the class of a loaded module has another function or another decorator.
    """
    inner: Any = inspect.unwrap(forward)
    function = inner.__globals__.get(form.name)
    if form.name not in names_in(inner) or not _is_function(function):
        return forward
    if isolated(_find, function, form.name) != form:
        return forward
    names = _Names(inner.__globals__, form.name, _rotate(function, form))
    return _decorated(forward, inner, _copy(inner, names, inner.__closure__)) or forward


def _copy(function: types.FunctionType, names: dict[str, Any], closure: Any) -> Any:
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copy, function)


def _decorated(function: Any, inner: Any, made: Any) -> Any:
    """Returns `function` with `made` instead of the function `inner` inside its decorators, or None.

    Decorators keep the function that they call in their closure, and `functools.wraps` makes it their `__wrapped__`.
    """
    if function is inner:
        return made
    wrapped = function.__wrapped__
    new = _decorated(wrapped, inner, made)
    cells = function.__closure__ or () if isinstance(function, types.FunctionType) else ()
    if new is None or all(cell.cell_contents is not wrapped for cell in cells):
        return None
    closure = tuple(types.CellType(new) if cell.cell_contents is wrapped else cell for cell in cells)
    copy = _copy(function, function.__globals__, closure)
    copy.__wrapped__ = new
    return copy


class _Names(dict[str, Any]):
    """The globals of a function, in which one name stands for something else until the program changes the global."""

    def __init__(self, names: dict[str, Any], replaced: str, value: Any) -> None:
        super().__init__()
        self._names, self._replaced, self._original, self._value = names, replaced, names[replaced], value

    def __getitem__(self, name: str) -> Any:
        found = self._names[name]
        return self._value if name == self._replaced and found is self._original else found


def _rotate(function: Rotate, form: RotaryForm) -> Rotate:
    """Returns tridal's rotary embedding with the parameters of a class's function, which computes the other calls."""
    parameters = inspect.signature(function).parameters.values()
    named = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = named if len(named) >= 4 else ["q", "k", "cos", "sin"]  # `kernels` wraps functions, whose names are unknown
    casting: Any = form.casting or None

    def rotate(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key, cos, sin = tensors = [given.pop(name, None) for name in names[:4]]
        dim = given.pop("unsqueeze_dim", 1)
        plain = isinstance(dim, int) and dim in (1, 2) and len(args) <= len(names)
        plain = plain and all(isinstance(x, Tensor) for x in tensors) and all(x is None for x in given.values())
        if plain and query.dim() == 4 and cos.shape[-1:] == query.shape[-1:] and not torch_computes(query.device):
            return rotary_embedding(query, key, cos, sin, unsqueeze_dim=dim, casting=casting)
        return function(*args, **kwargs)

    return rotate
