"""Replaces the rotary embedding of an attention module by `tridal.rotary_embedding`, if it is the same.

An attention class of transformers calls a function of its Python module. A replaced attention runs the code of its
class, in which the name of this function stands for tridal's, inside the same decorators. The function is compared. The
attention is not called.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import torch

from tridal.errors import ShapeError
from tridal.library.rotary.functions import rotary_embedding
from tridal.models.comparison import attempt, isolated
from tridal.models.forwards import copy_function, decorated
from tridal.models.reads import names_in, own_forward
from tridal.models.replacements import Rewritten, torch_computes
from tridal.models.rotary_comparison import RotaryForm, Rotate, compare, parameters_of

Tensor = torch.Tensor
NAME = re.compile("rotary|(^|_)m?rope(_|$)", re.IGNORECASE)
"""A name of a function that may be a rotary embedding. The comparison decides whether it is one."""
_ANGLES = re.compile("^_*(get|make|build|create|compute|precompute)_", re.IGNORECASE)
"""A function with such a `NAME` returns angles."""
METHOD = re.compile("^_*apply_", re.IGNORECASE)
"""A method with such a `NAME` rotates, and does not compute angles."""
KIND = "rotary embedding"


class Attention(Rewritten):
    """The forward of an attention module with rotary embedding. The form says which function tridal replaces."""

    def _tridal_rewritten(self, forward: Any) -> Any:
        return _with_ours(forward, self._tridal_form)


def function_name(module: torch.nn.Module) -> str | None:
    """Returns the name of the function or method for a rotary embedding that the forward of a module calls, or None."""
    return called_by(own_forward(module), type(module))


def called_by(caller: Any, kind: Any) -> str | None:
    """Returns the name of such a function that a function calls, or of a method of `kind`, or None."""
    if caller is None:
        return None
    names = [name for name in names_in(caller) if NAME.search(name) and not _ANGLES.search(name)]
    functions = [name for name in names if _is_function(caller.__globals__.get(name))]
    methods = (name for name in names if METHOD.search(name) and callable(getattr(kind, name, None)))
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
        return f"this form of {KIND} is not supported: {name} is a method, and not a function of its Python module"
    found = _find(function, name)
    # The function that was compared is remembered here.
    if isinstance(found, RotaryForm) and _with_ours(forward, found) is forward:
        return f"a decorator of its forward keeps the code that calls {name} outside its closure"
    return found


@functools.cache
def _find(function: Rotate, name: str) -> RotaryForm | str:
    if parameters_of(function) is None:
        takes = f"{name} takes ({', '.join(inspect.signature(function).parameters)})"
        return f"this form of {KIND} is not supported: {takes}, and not (query, key, cos, sin, unsqueeze_dim)"
    return attempt(KIND, torch.device("cpu"), compare, function, name)


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
    names = Names(inner.__globals__, form.name, rotate_as(function, form))
    return decorated(forward, inner, copy_function(inner, inner.__code__, names, inner.__closure__)) or forward


class Names(dict[str, Any]):
    """The globals of a function, in which one name stands for something else until the program changes the global."""

    def __init__(self, names: dict[str, Any], replaced: str, value: Any) -> None:
        super().__init__()
        self._names, self._replaced, self._original, self._value = names, replaced, names[replaced], value

    def __getitem__(self, name: str) -> Any:
        found = self._names[name]
        return self._value if name == self._replaced and found is self._original else found


def rotate_as(function: Rotate, form: RotaryForm) -> Rotate:
    """Returns tridal's rotary embedding with the parameters of a class's function, which computes the other calls."""
    parameters = parameters_of(function)
    assert parameters is not None
    own = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    names, first, *others = own or parameters.tensors, *parameters.rotated
    second = others[0] if others else None
    casting: Any = form.casting or None
    options: Any = {"keep_dtype": form.keep_dtype, "interleaved": form.interleaved, "to_halves": form.to_halves}
    dims, has_elements = form.dims, form.factor == "element"

    def rotate(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, cos, sin = given.pop(first, None), given.pop("cos", None), given.pop("sin", None)
        key = given.pop(second, None) if second is not None else None
        heads = given.pop("unsqueeze_dim", dims.heads)
        plain = isinstance(heads, int) and 0 <= heads <= 2 and len(args) <= len(names)
        tensors = (query, cos, sin) if second is None else (query, key, cos, sin)
        plain = plain and all(isinstance(x, Tensor) for x in tensors) and all(x is None for x in given.values())
        if plain and query.dim() == dims.rank and _fits(form, query, cos) and not torch_computes(query.device):
            size = None
            if not has_elements:
                cos, sin, size = form.factors(cos, sin)
            try:
                return rotary_embedding(
                    query, key, cos, sin, unsqueeze_dim=heads, casting=casting, rotary_dim=size, **options
                )
            except ShapeError:  # torch broadcasts cos and sin of more shapes
                pass
        return function(*args, **kwargs)

    return rotate


def _fits(form: RotaryForm, query: Tensor, cos: Tensor) -> bool:
    """Returns whether the function rotates all elements of query, or the first ones."""
    size, dim = form.size(cos), query.shape[-1]
    return size == dim or (form.partial and size < dim)
