"""Replaces the rotary embedding that the processor of an attention module calls, as in diffusers.

The function takes one tensor, a pair of cos and sin, and options. It is compared for the options of each call in the
source of the processor. A replaced attention runs the code of its class and of its processor, in which the name of the
function stands for tridal's.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tridal.models.comparison import attempt, isolated
from tridal.models.forwards import compiled, copy_function, decorated, definition
from tridal.models.reads import Form, names_in, own_forward
from tridal.models.replacements import Rewritten
from tridal.models.rotary import KIND, Names, called_by, rotate_as
from tridal.models.rotary_comparison import RotaryForm, Rotate, compare

PROCESSOR, _CALL = "processor", "_tridal_processor"
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class ProcessorForm(Form):
    """The rotary embedding of a processor."""

    name: str
    """The name of the function in the Python module of the processor."""
    kind: type
    """The class of the processor."""
    forms: Mapping[Options, RotaryForm] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return "; ".join(dict.fromkeys(map(str, self.forms.values())))


class Processed(Rewritten):
    """The forward of an attention module whose processor computes it."""

    def _tridal_rewritten(self, forward: Any) -> Any:
        return _with_processor(forward)


def function_name(module: torch.nn.Module) -> str | None:
    """Returns the name of the function for a rotary embedding that the processor of a module calls, or None."""
    processor = getattr(module, PROCESSOR, None)
    forward = own_forward(module)
    return called_by(_call_of(type(processor)), None) if PROCESSOR in names_in(forward) else None


def _call_of(kind: Any) -> types.FunctionType | None:
    call = getattr(kind, "__call__", None)  # noqa: B004
    return call if isinstance(call, types.FunctionType) else None


def find_form(module: Any) -> ProcessorForm | str:
    """Returns the rotary embedding that the processor of a module computes, or why it computes another one."""
    kind, name = type(module.processor), function_name(module)
    call: Any = _call_of(kind)
    assert name is not None
    if _with_processor(type(module).forward) is type(module).forward:
        return f"the source of its forward does not show that it calls its {PROCESSOR}"
    found = forms_of(call, name)
    forms = {options: form for options, form in found.items() if isinstance(form, RotaryForm)}
    if forms:
        return ProcessorForm(name, kind, forms=forms)
    reason = next((str(reason) for reason in found.values()), "no call has a tensor, a pair and constants")
    return f"its processor {kind.__name__} calls {name}: {reason}"


def forms_of(call: types.FunctionType, name: str) -> dict[Options, RotaryForm | str]:
    """Returns the rotary embedding for the options of each call of a function by name, or why it is another one."""
    return {options: _find(call.__globals__[name], options) for options in _options(call, name)}


def _options(call: types.FunctionType, name: str) -> Iterator[Options]:
    """Yields the options of the calls of a function with two tensors."""
    for node in ast.walk(definition(call) or ast.Pass()):
        match node:
            case ast.Call(func=ast.Name(id=called), args=[_, _], keywords=keywords) if called == name and all(
                isinstance(k.value, ast.Constant) for k in keywords
            ):
                yield tuple(sorted((str(k.arg), k.value.value) for k in keywords))  # type: ignore[attr-defined]


def _of_pair(function: Rotate, options: Options) -> Rotate:
    return lambda x, cos, sin: function(x, (cos, sin), **dict(options))


@functools.cache
def _find(function: Rotate, options: Options) -> RotaryForm | str:
    return isolated(attempt, KIND, torch.device("cpu"), compare, _of_pair(function, options), function.__name__)


@functools.cache
def _with_processor(forward: Any) -> Any:
    """Returns a forward in which `_compute` calls the processor, or `forward` itself if its source has no such call."""
    inner: Any = inspect.unwrap(forward)
    node, own = copy.deepcopy(definition(inner)), inner.__code__.co_varnames[0]
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)] if node is not None else []
    calls = [call for call in calls if ast.unparse(call.func) == f"{own}.{PROCESSOR}"]
    for call in calls:
        call.func, call.args = ast.Name(_CALL, ast.Load()), [ast.Name(own, ast.Load()), *call.args]
    if node is None or not calls:
        return forward
    return decorated(forward, inner, compiled(inner, node, {_CALL: _compute})) or forward


def _compute(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the processor of a module, with tridal's function if it has the class that was compared."""
    processor, form = module.processor, module._tridal_form
    if type(processor) is form.kind and (call := _call_of(form.kind)) is not None:
        return _with_ours(call, form)(processor, *args, **kwargs)
    return processor(*args, **kwargs)


@functools.cache
def _with_ours(call: types.FunctionType, form: ProcessorForm) -> Any:
    function = call.__globals__[form.name]
    if any(isolated(_find, function, options) != known for options, known in form.forms.items()):
        return call
    ours = {options: rotate_as(_of_pair(function, options), known) for options, known in form.forms.items()}

    def rotate(x: Any, pair: Any, **options: Any) -> Any:
        known = ours.get(tuple(sorted(options.items())))
        if known is None or not isinstance(pair, tuple) or pair[0].device != x.device:
            return function(x, pair, **options)
        return known(x, *pair)

    return copy_function(call, call.__code__, Names(call.__globals__, form.name, rotate), call.__closure__)
